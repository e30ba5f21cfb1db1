//! Keys that were meant for something else decide nothing.

use crate::kit::{broker, denied, ok, plain, same, sh};
use serde_json::json;
use std::time::{Duration, Instant};

/// Keys are ignored for 0.7 s; a press that was seen to come this early must have been.
const SURELY_EARLY: Duration = Duration::from_millis(500);

#[test]
fn a_key_that_was_on_its_way_when_the_prompt_came_approves_nothing() {
    outpost_testkit::require!(crate::kit::ours());
    let mut broker = broker();
    // A machine that stands still for half a second makes an early key a late one; then it proves nothing.
    for attempt in 0..20 {
        let file = broker.path(&format!("ran{attempt}"));
        let id = attempt.to_string();
        let begun = Instant::now();
        let mut client = broker.send(&plain(&id, json!([["touch", file]])));
        broker.wait_prompt();
        broker.key(b"y");
        if begun.elapsed() < SURELY_EARLY {
            broker.deny();
            same(&client.answer(), &denied(&id));
            assert!(!file.exists());
            return;
        }
        let _whatever = client.answer();
        broker.skip_screen();
    }
    panic!("no key could be pressed in time");
}

#[test]
fn a_key_that_was_on_its_way_when_the_prompt_came_denies_nothing() {
    outpost_testkit::require!(crate::kit::ours());
    let mut broker = broker();
    for attempt in 0..20 {
        let id = attempt.to_string();
        let begun = Instant::now();
        let mut client = broker.send(&sh(&id, "echo x"));
        broker.wait_prompt();
        broker.key(b"n");
        if begun.elapsed() < SURELY_EARLY {
            broker.approve();
            same(&client.answer(), &ok(&id, &[(0, "")], "x\n"));
            return;
        }
        let _whatever = client.answer();
        broker.skip_screen();
    }
    panic!("no key could be pressed in time");
}

/// Arrows, function keys, and sequences that end like an answer.
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
fn an_escape_sequence_is_nothing_as_a_whole() {
    outpost_testkit::require!(crate::kit::ours());
    let mut broker = broker();
    let mut client = broker.send(&sh("a", "echo x"));
    broker.wait_prompt();
    let begun = Instant::now();
    // For longer than keys are ignored anyway.
    while begun.elapsed() < Duration::from_millis(1_500) {
        for sequence in SEQUENCES {
            broker.key(sequence.as_bytes());
        }
        assert!(!client.has_answer(Duration::from_millis(100)), "{}", broker.screen());
    }
    broker.approve();
    same(&client.answer(), &ok("a", &[(0, "")], "x\n"));
}
