//! The keeper by its protocol: a client on one end of the link, an embedded keeper in a thread on the other.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod children;
mod daemon;
mod faults;
mod held;
mod kit;
mod link;
mod signals;
mod slow;
mod state;
mod teardown;
