//! Real commands in real sandboxes: as root, and again as an ordinary user.

#![allow(clippy::indexing_slicing, clippy::unwrap_used)]

mod basics;
mod files;
mod kit;
mod process;
mod user;
mod walls;
