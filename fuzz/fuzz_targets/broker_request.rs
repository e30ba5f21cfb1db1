//! Arbitrary bytes as a request line of the broker are read without a panic. A refusal is one line of JSON
//! with the request's id. An accepted request is displayed in printable ASCII.

#![no_main]

use libfuzzer_sys::fuzz_target;
use outpost_approvals::display;
use serde_json::Value;

fuzz_target!(|line: &[u8]| {
    match outpost_broker::read_line(line) {
        Err(answer) => {
            let (end, rest) = answer.split_last().unwrap();
            assert_eq!(*end, b'\n');
            assert!(!rest.contains(&b'\n'), "an answer of two lines");
            let answer: Value = serde_json::from_slice(rest).unwrap();
            assert_eq!(answer["status"], "error");
            if let Ok(Value::Object(request)) = serde_json::from_slice(line)
                && let Some(Value::String(id)) = request.get("id")
            {
                assert_eq!(answer["id"], id.as_str(), "the reply has another id");
            }
        }
        Ok(request) => {
            assert!(!line.trim_ascii_start().starts_with(b"["), "an array was taken for a request");
            let drawn = [display::command(&request.pipeline), display::escape_untrusted(&request.reason, 500)];
            for drawn in drawn {
                assert!(drawn.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{drawn:?}");
            }
        }
    }
});
