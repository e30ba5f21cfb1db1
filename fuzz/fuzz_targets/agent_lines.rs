//! Arbitrary bytes as an agent CLI's output become events without a panic. Each event is one line of JSON,
//! numbers have no gap, and nothing follows a terminal event.

#![no_main]

use libfuzzer_sys::fuzz_target;
use outpost_sessions::{Cli, Mode};
use serde_json::Value;

fuzz_target!(|given: (u8, &[u8])| {
    let (choice, lines) = given;
    let cli = Cli::ALL[usize::from(choice) % 4];
    let mode = Mode::ALL[usize::from(choice / 4) % 4];
    let events = outpost_sessions::events_of(cli, mode, choice >= 128, lines);
    let text = std::str::from_utf8(&events).unwrap();
    let mut is_over = false;
    for (number, event) in text.split_terminator("\n\n").enumerate() {
        assert!(!is_over, "something follows a terminal event");
        let event: Value = serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(event["seq"], number as u64 + 1);
        is_over = matches!(event["type"].as_str().unwrap(), "result" | "error" | "interrupted");
    }
});
