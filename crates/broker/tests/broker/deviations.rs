//! Intended differences from the original. Each test here must fail against the original (`OUTPOST_BROKER_ALL=1`).

mod characters;
mod command;
mod disconnects;
mod json;
mod keys;
mod replay;
mod screen;
mod time;
mod timeouts;
