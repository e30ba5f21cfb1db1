//! Keys that were not meant for the prompt decide nothing.

use crate::kit::{broker, denied, ok, plain, same, sh};
use serde_json::json;
use std::time::{Duration, Instant};

/// The prompt ignores keys for 0.7 s. A key within this time is certainly ignored.
const IGNORED_FOR: Duration = Duration::from_millis(500);

#[test]
fn a_key_typed_as_the_prompt_appears_approves_nothing() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let mut broker = broker();
    // On a stalled machine the key may arrive late. Such an attempt proves nothing.
    for attempt in 0..20 {
        let file = broker.path(&format!("ran{attempt}"));
        let id = attempt.to_string();
        let begun = Instant::now();
        let mut client = broker.send(&plain(&id, json!([["touch", file]])));
        broker.wait_prompt();
        broker.key(b"y");
        if begun.elapsed() < IGNORED_FOR {
            broker.deny();
            same(&client.answer(), &denied(&id));
            assert!(!file.exists());
            return;
        }
        let _either = client.answer();
        broker.skip_screen();
    }
    panic!("no key arrived in time");
}

#[test]
fn a_key_typed_as_the_prompt_appears_denies_nothing() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let mut broker = broker();
    for attempt in 0..20 {
        let id = attempt.to_string();
        let begun = Instant::now();
        let mut client = broker.send(&sh(&id, "echo x"));
        broker.wait_prompt();
        broker.key(b"n");
        if begun.elapsed() < IGNORED_FOR {
            broker.approve();
            same(&client.answer(), &ok(&id, &[(0, "")], "x\n"));
            return;
        }
        let _either = client.answer();
        broker.skip_screen();
    }
    panic!("no key arrived in time");
}

/// Arrows, function keys, and sequences that end in `y` or `n`.
const SEQUENCES: [&str; 10] = [
    "\x1b[A",
    "\x1b[B",
    "\x1bOA",
    "\x1b[1;5C",
    "\x1b[3~",
    "\x1b[15~",
    "\x1b[y",
    "\x1bOy",
    "\x1b[1;2y",
    "\x1b[1;2n",
];

#[test]
fn escape_sequences_are_ignored_as_a_whole() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let mut broker = broker();
    let mut client = broker.send(&sh("a", "echo x"));
    broker.wait_prompt();
    let begun = Instant::now();
    // Longer than the time in which all keys are ignored.
    while begun.elapsed() < Duration::from_millis(1_500) {
        for sequence in SEQUENCES {
            broker.key(sequence.as_bytes());
        }
        assert!(!client.has_answer(Duration::from_millis(100)), "{}", broker.screen());
    }
    broker.approve();
    same(&client.answer(), &ok("a", &[(0, "")], "x\n"));
}
