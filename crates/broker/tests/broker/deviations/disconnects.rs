//! A client's disconnect withdraws its undecided request.

use crate::kit::{broker, busy, error, ok, ping, plain, pong, press_too_late, same, skip_on_original};
use outpost_testkit::Broker;
use serde_json::json;
use std::time::Duration;

/// Waits until the screen shows that the request is withdrawn.
#[track_caller]
fn wait_withdrawn(broker: &mut Broker) {
    // Either case of the first letter.
    let found = broker.terminal().find("ithdrawn", 0, Duration::from_secs(20));
    assert!(found.is_some(), "not withdrawn: {}", broker.screen());
}

#[test]
fn a_prompt_cannot_be_approved_after_its_client_disconnected() {
    outpost_testkit::require!(crate::kit::deviation_tests());
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
fn a_queued_request_is_withdrawn_without_a_prompt() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let mut broker = broker();
    let file = broker.path("ran");
    let mut first = broker.send(&plain("first", json!([["printf", "x"]])));
    broker.wait_prompt();
    let second = broker.send(&plain("second", json!([["touch", file]])));
    // The answered later ping shows that the second request has arrived.
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
fn a_withdrawn_request_cannot_be_repeated() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let mut broker = broker();
    let request = plain("a", json!([["true"]]));
    let client = broker.send(&request);
    broker.wait_prompt();
    drop(client);
    wait_withdrawn(&mut broker);
    same(&broker.request(&request), &error("a", "duplicate request id: a"));
}

#[test]
fn idle_connections_do_not_count_as_requests_in_flight() {
    let broker = broker();
    let silent: Vec<_> = (0..64).map(|_| broker.connect()).collect();
    let expected = if skip_on_original() { busy() } else { pong("a") };
    same(&broker.request(&ping("a")), &expected);
    drop(silent);
}
