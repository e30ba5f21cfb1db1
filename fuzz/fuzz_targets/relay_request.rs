//! Arbitrary bytes as a request line are read without a panic, and a reply is one line of JSON with the
//! request's id.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|line: &[u8]| {
    let reply = outpost_relay::read_request(line);
    if let Some(reply) = &reply {
        let (end, rest) = reply.split_last().unwrap();
        assert_eq!(*end, b'\n');
        assert!(!rest.contains(&b'\n'), "a reply of two lines");
        // Invalid UTF-8 in an id is passed on unchanged; everything else must be valid JSON.
        if std::str::from_utf8(rest).is_ok()
            && rest.len() < 1000
            && !line.windows(2).any(|pair| pair == b"[[" || pair == b":{")
        {
            let parsed: Result<Value, _> = serde_json::from_slice(rest);
            assert!(parsed.is_ok() || has_odd_number_or_escape(rest), "{}", String::from_utf8_lossy(rest));
        }
    }
    // What another parser accepts as an object of strings is never refused.
    if let Ok(Value::Object(members)) = serde_json::from_slice(line)
        && members.values().all(Value::is_string)
    {
        assert!(reply.is_some(), "{}", String::from_utf8_lossy(line));
    }
});

/// Whether the text has floats out of range or lone surrogates, which are well-formed JSON but refused by
/// some parsers.
fn has_odd_number_or_escape(text: &[u8]) -> bool {
    text.iter().any(|byte| matches!(byte, b'e' | b'E'))
        || text.windows(3).any(|bytes| bytes.eq_ignore_ascii_case(b"\\ud"))
}
