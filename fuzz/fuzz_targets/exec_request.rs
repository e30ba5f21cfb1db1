//! Arbitrary bytes as a line of the exec face are read without a panic, and the reply is one line of JSON.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|line: &[u8]| {
    if let Some(reply) = outpost_exec::read_line(line) {
        let (end, rest) = reply.split_last().unwrap();
        assert_eq!(*end, b'\n');
        assert!(!rest.contains(&b'\n'), "a reply of two lines");
        let reply: Value = serde_json::from_slice(rest).unwrap();
        assert!(reply.get("id").is_some() && reply.get("error").is_some(), "{reply}");
    }
});
