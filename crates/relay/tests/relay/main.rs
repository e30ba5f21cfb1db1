//! Integration tests of the relay face: the real binary on a real socket, replies compared byte for byte.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod contract;
mod lifecycle;
mod load;
mod ssh;
mod streams;
