//! A journal made of any bytes opens without a panic, and tells the same when opened again.
//!
//! The body is a test of the journal crate too, so that it runs on stable with inputs made from real journals.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/journal/tests/journal/open_any_bytes.rs"]
mod open_any_bytes;

fuzz_target!(|input: &[u8]| open_any_bytes::open_any_bytes(input));
