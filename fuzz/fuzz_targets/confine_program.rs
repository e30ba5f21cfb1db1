//! Arbitrary bytes as a sandbox program are refused, or are a program that can be described and round-trips.

#![no_main]

use libfuzzer_sys::fuzz_target;
use outpost_sys::confine::Program;

fuzz_target!(|bytes: &[u8]| {
    if let Some(program) = Program::from_bytes(bytes) {
        assert_eq!(program.as_bytes(), bytes);
        let mut described = 0;
        while program.describe(described).is_some() {
            described += 1;
        }
        assert!(described <= bytes.len());
    }
});
