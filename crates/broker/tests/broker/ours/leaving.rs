//! A request is withdrawn by its client's leaving: nobody is left who could want it.

use crate::kit::{broker, busy, error, ok, ours_only, ping, plain, pong, press_too_late, same};
use outpost_testkit::Broker;
use serde_json::json;
use std::time::Duration;

/// Waits until the screen says that the request is withdrawn.
#[track_caller]
fn wait_withdrawn(broker: &mut Broker) {
    let patience = Duration::from_secs(20);
    // In either case of its first letter.
    let found = broker.terminal().find("ithdrawn", 0, patience);
    assert!(found.is_some(), "the screen does not say so: {}", broker.screen());
}

#[test]
fn a_prompt_whose_client_has_left_can_no_longer_be_approved() {
    outpost_testkit::require!(crate::kit::ours());
    let mut broker = broker();
    let file = broker.path("ran");
    let client = broker.send(&plain("a", json!([["touch", file]])));
    broker.wait_prompt();
    drop(client);
    wait_withdrawn(&mut broker);
    press_too_late(&mut broker);
    assert!(!file.exists());
}

#[test]
fn a_request_that_waits_for_its_turn_is_withdrawn_unseen() {
    outpost_testkit::require!(crate::kit::ours());
    let mut broker = broker();
    let file = broker.path("ran");
    let mut first = broker.send(&plain("first", json!([["printf", "x"]])));
    broker.wait_prompt();
    let second = broker.send(&plain("second", json!([["touch", file]])));
    // A ping that came after it was answered: it has arrived.
    same(&broker.request(&ping("later")), &pong("later"));
    drop(second);
    let mut third = broker.send(&plain("third", json!([["printf", "y"]])));
    broker.approve();
    same(&first.answer(), &ok("first", &[(0, "")], "x"));
    broker.wait_prompt();
    assert!(!broker.unread().contains("touch"), "{}", broker.unread());
    broker.approve();
    same(&third.answer(), &ok("third", &[(0, "")], "y"));
    assert!(!file.exists());
}

#[test]
fn a_withdrawn_request_is_still_not_to_be_repeated() {
    outpost_testkit::require!(crate::kit::ours());
    let mut broker = broker();
    let request = plain("a", json!([["true"]]));
    let client = broker.send(&request);
    broker.wait_prompt();
    drop(client);
    wait_withdrawn(&mut broker);
    same(&broker.request(&request), &error("a", "duplicate request id: a"));
}

#[test]
fn who_connects_and_says_nothing_is_in_nobodys_way() {
    let broker = broker();
    let silent: Vec<_> = (0..64).map(|_| broker.connect()).collect();
    let expected = if ours_only() { busy() } else { pong("a") };
    same(&broker.request(&ping("a")), &expected);
    drop(silent);
}
