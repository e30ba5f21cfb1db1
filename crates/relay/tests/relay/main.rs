//! The face as its clients see it: the real binary on a real socket, answers compared byte for byte.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod contract;
mod lifecycle;
mod load;
mod ssh;
mod streams;
