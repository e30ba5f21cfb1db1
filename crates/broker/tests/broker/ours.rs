//! What we do otherwise than the original, on purpose. Each test here fails against the original (`OUTPOST_BROKER_ALL=1`).

mod characters;
mod command;
mod ending;
mod json;
mod keys;
mod leaving;
mod memory;
mod screen;
mod time;
