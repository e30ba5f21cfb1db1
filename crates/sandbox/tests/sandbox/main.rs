//! Real commands, really confined: as root, and the same again as an ordinary user.

#![allow(clippy::indexing_slicing)]

mod basics;
mod files;
mod kit;
mod latency;
mod user;
mod walls;
