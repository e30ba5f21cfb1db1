//! Used ids survive a restart of the daemon.

use crate::kit::{broker, deny, error, ok, ping, plain, pong, same, sh};
use serde_json::json;

fn duplicate(id: &str) -> String {
    error(id, &format!("duplicate request id: {id}"))
}

#[test]
fn a_request_that_ran_is_not_run_again_by_the_next_daemon() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let mut broker = broker();
    let file = broker.path("runs");
    let request = sh("a", &format!("echo run >>{}", file.display()));
    same(&broker.run(&request), &ok("a", &[(0, "")], ""));
    broker.restart();
    same(&broker.request_unasked(&request), &duplicate("a"));
    assert_eq!(std::fs::read_to_string(file).unwrap(), "run\n");
}

#[test]
fn a_ping_and_a_denied_request_are_not_accepted_again() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let mut broker = broker();
    same(&broker.request(&ping("a")), &pong("a"));
    deny(&mut broker, &plain("b", json!([["true"]])));
    broker.restart();
    same(&broker.request(&ping("a")), &duplicate("a"));
    same(&broker.request_unasked(&plain("b", json!([["true"]]))), &duplicate("b"));
}

#[test]
fn a_request_that_was_pending_at_the_kill_is_not_accepted_again() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let mut broker = broker();
    let request = plain("a", json!([["true"]]));
    let _client = broker.send(&request);
    broker.wait_prompt();
    broker.restart();
    same(&broker.request_unasked(&request), &duplicate("a"));
}
