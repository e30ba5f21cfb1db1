//! Real commands, really confined: as root, and the same again as an ordinary user.

#![allow(clippy::indexing_slicing, clippy::unwrap_used)]

mod basics;
mod files;
mod kit;
mod process;
mod user;
mod walls;
