//! An id is good for one request: what uses it up, what does not, and who wins when two come at once.

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
    // Another request under the same id is no better.
    same(&broker.request(&plain("a", json!([["false"]]))), &duplicate("a"));
    same(&broker.request(&ping("a")), &duplicate("a"));
    assert_eq!(std::fs::read_to_string(file).unwrap(), "run\n");
    assert!(!broker.has_prompt());
}

#[test]
fn an_id_is_used_up_by_a_ping_and_by_a_denial() {
    let mut broker = broker();
    check(&broker, &[(ping("a"), pong("a")), (ping("a"), duplicate("a")), (ping("b"), pong("b"))]);
    check(&broker, &[(ping(""), pong("")), (ping(""), duplicate(""))]);
    deny(&mut broker, &plain("c", json!([["true"]])));
    same(&broker.request(&plain("c", json!([["true"]]))), &duplicate("c"));
}

#[test]
fn a_duplicate_of_one_that_still_waits_is_refused_at_once() {
    let mut broker = broker();
    let mut first = broker.send(&plain("a", json!([["printf", "once"]])));
    broker.wait_prompt();
    same(&broker.request(&plain("a", json!([["printf", "once"]]))), &duplicate("a"));
    broker.approve();
    same(&first.answer(), &ok("a", &[(0, "")], "once"));
    assert!(!broker.has_prompt());
}

#[test]
fn a_refused_request_does_not_use_its_id_up() {
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
fn ids_are_compared_as_they_are() {
    let broker = broker();
    let rows = ["a", "A", "a ", " a", "ä", "a\u{308}"].map(|id| (ping(id), pong(id)));
    check(&broker, &rows);
}

#[test]
fn of_many_at_once_under_one_id_exactly_one_wins() {
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
