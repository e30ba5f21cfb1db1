//! Replay protection: each id is accepted once, refused requests leave it unused, and concurrent duplicates race.

use crate::kit::{broker, check, deny, error, ok, ping, plain, pong, same, sh, with};
use outpost_testkit::stamp;
use serde_json::json;

fn duplicate(id: &str) -> String {
    error(id, &format!("duplicate request id: {id}"))
}

#[test]
fn a_request_that_ran_is_never_run_again() {
    let mut broker = broker();
    let file = broker.path("runs");
    let request = sh("a", &format!("echo run >>{}", file.display()));
    same(&broker.run(&request), &ok("a", &[(0, "")], ""));
    same(&broker.request(&request), &duplicate("a"));
    // Another request with the same id is refused too.
    same(&broker.request(&plain("a", json!([["false"]]))), &duplicate("a"));
    same(&broker.request(&ping("a")), &duplicate("a"));
    assert_eq!(std::fs::read_to_string(file).unwrap(), "run\n");
    assert!(!broker.has_prompt());
}

#[test]
fn a_ping_and_a_denial_use_up_the_id() {
    let mut broker = broker();
    check(&broker, &[(ping("a"), pong("a")), (ping("a"), duplicate("a")), (ping("b"), pong("b"))]);
    check(&broker, &[(ping(""), pong("")), (ping(""), duplicate(""))]);
    deny(&mut broker, &plain("c", json!([["true"]])));
    same(&broker.request(&plain("c", json!([["true"]]))), &duplicate("c"));
}

#[test]
fn a_duplicate_of_a_pending_request_is_refused_at_once() {
    let mut broker = broker();
    let mut first = broker.send(&plain("a", json!([["printf", "once"]])));
    broker.wait_prompt();
    same(&broker.request(&plain("a", json!([["printf", "once"]]))), &duplicate("a"));
    broker.approve();
    same(&first.answer(), &ok("a", &[(0, "")], "once"));
    assert!(!broker.has_prompt());
}

#[test]
fn a_refused_request_leaves_its_id_unused() {
    let broker = broker();
    let rows = [
        (with(ping("a"), json!({"time": ""})), error("a", "missing time field")),
        (
            with(ping("a"), json!({"reason": "\u{1b}"})),
            error("a", "reason contains forbidden control/bidi characters"),
        ),
        (
            with(ping("a"), json!({"env": {"PATH": "/"}})),
            error("a", "environment variable not allowed: PATH"),
        ),
        (plain("a", json!([])), error("a", "pipeline must not be empty")),
        (ping("a"), pong("a")),
        (ping("a"), duplicate("a")),
    ];
    check(&broker, &rows);
}

#[test]
fn ids_are_compared_byte_by_byte() {
    let broker = broker();
    let rows = ["a", "A", "a ", " a", "ä", "a\u{308}"].map(|id| (ping(id), pong(id)));
    check(&broker, &rows);
}

#[test]
fn exactly_one_of_concurrent_duplicates_wins() {
    let broker = broker();
    let request = ping("raced");
    let answers: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..20).map(|_| scope.spawn(|| broker.request(&request))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let won = answers.iter().filter(|answer| **answer == pong("raced")).count();
    let lost = answers.iter().filter(|answer| **answer == duplicate("raced")).count();
    assert_eq!((won, lost), (1, 19), "{answers:?}");
}

#[test]
fn another_id_is_another_request() {
    let mut broker = broker();
    for id in ["a", "b"] {
        let request = json!({"id": id, "time": stamp(0), "pipeline": [["printf", "x"]], "privileged": false});
        same(&broker.run(&request), &ok(id, &[(0, "")], "x"));
    }
}
