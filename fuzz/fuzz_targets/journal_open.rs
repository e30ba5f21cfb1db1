//! A journal of arbitrary bytes opens without a panic, and reads the same when it is opened again.
//!
//! The body is also a test of the journal crate, so that it runs on stable Rust with inputs derived from real
//! journals.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/journal/tests/journal/open_any_bytes.rs"]
mod open_any_bytes;

fuzz_target!(|input: &[u8]| open_any_bytes::open_any_bytes(input));
