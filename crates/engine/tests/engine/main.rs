//! The engine over a keeper in a thread: output, input, terminals, ends of processes and of whole trees.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

mod adoption;
mod disk;
mod ending;
mod input;
mod keeper_loss;
mod kept;
mod load;
mod open_files;
mod output;
mod reboot;
mod recycling;
mod starting;
mod usage;
