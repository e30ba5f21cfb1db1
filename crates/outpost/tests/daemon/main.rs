//! The real binary: keeper and worker as processes, killed, replaced and locked out.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod deaths;
mod replacement;
mod start;
mod support;
