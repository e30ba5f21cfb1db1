//! "`time` must be a fresh, non-empty ISO 8601 timestamp; missing or unparseable values are rejected".

use crate::kit::{broker, check, error, message, ok, ping, plain, pong, same, with};
use outpost_testkit::{Broker, stamp};
use serde_json::json;

fn at(id: &str, time: &str) -> serde_json::Value {
    with(ping(id), json!({"time": time}))
}

#[test]
fn a_request_without_a_time_is_refused() {
    let broker = broker();
    let mut without = ping("a");
    without.as_object_mut().unwrap().remove("time");
    let rows = [(without, error("a", "missing time field")), (at("b", ""), error("b", "missing time field"))];
    check(&broker, &rows);
}

#[test]
fn what_is_no_time_is_refused() {
    let broker = broker();
    let texts = [
        "never",
        "T",
        "now",
        "0",
        "1700000000",
        "2026-02-13",
        "14:30:00",
        "2026-02-13T14:30Z",
        "2026-02-13 14:30:00Z",
        "2026-13-01T00:00:00Z",
        "2026-00-01T00:00:00Z",
        "2026-01-00T00:00:00Z",
        "2026-01-32T00:00:00Z",
        "2026-01-01T24:00:00Z",
        "2026-01-01T00:60:00Z",
        "2026-01-01T00:00:61Z",
        "1969-12-31T23:59:59Z",
        "2026-01-01T00:00:00ZT",
        "Fri, 13 Feb 2026 14:30:00 GMT",
    ];
    let rows: Vec<_> =
        texts.iter().map(|text| (at(text, text), error(text, "malformed time field"))).collect();
    check(&broker, &rows);
}

#[test]
fn a_request_is_good_for_sixty_seconds() {
    let broker = broker();
    // The very limit may pass while the request is under way.
    check(&broker, &[(at("a", &stamp(-57)), pong("a")), (at("b", &stamp(0)), pong("b"))]);
    for (id, age) in [("c", 62), ("d", 3_600), ("e", 40_000_000)] {
        let told = message(&broker.request(&at(id, &stamp(-age))));
        let seconds = |extra: i64| format!("request too old: {}s (max 60s)", age + extra);
        assert!((0..5).any(|extra| told == seconds(extra)), "{told}");
    }
    assert!(message(&broker.request(&at("f", "1970-01-01T00:00:00Z"))).starts_with("request too old: "));
    assert!(!broker.has_prompt());
}

#[test]
fn a_time_without_its_z_is_utc() {
    let broker = broker();
    let bare = stamp(0).trim_end_matches('Z').to_owned();
    check(&broker, &[(at("a", &bare), pong("a"))]);
    let old = stamp(-600).trim_end_matches('Z').to_owned();
    assert!(message(&broker.request(&at("b", &old))).starts_with("request too old: 60"));
}

#[test]
fn clocks_may_differ_by_a_few_seconds() {
    let broker = broker();
    check(&broker, &[(at("a", &stamp(3)), pong("a"))]);
}

#[test]
fn freshness_is_judged_on_arrival_and_not_after_waiting_for_the_prompt() {
    let mut broker = broker();
    let first = broker.send(&plain("first", json!([["true"]])));
    broker.wait_prompt();
    // Fresh for some seconds more. By the time that its own prompt is answered it is not.
    let waited_since = std::time::Instant::now();
    let mut second = broker.send(&with(plain("second", json!([["true"]])), json!({"time": stamp(-57)})));
    // Nothing tells that it has arrived but the clock: a ping that was sent later has.
    same(&broker.request(&ping("later")), &pong("later"));
    while waited_since.elapsed() < std::time::Duration::from_secs(5) {
        assert!(!second.has_answer(std::time::Duration::from_millis(500)), "{}", second.answer());
    }
    broker.approve();
    drop(first);
    broker.approve();
    same(&second.answer(), &ok("second", &[(0, "")], ""));
}

#[test]
fn what_only_looks_like_a_time_is_taken_by_the_original_alone() {
    let broker = broker();
    let now = stamp(0);
    // Spaces around it, more than one Z, a day that the month does not have.
    for (id, time) in
        [("a", format!(" {now} ")), ("b", format!("{now}Z")), ("c", "2099-02-30T00:00:00Z".to_owned())]
    {
        let answer = broker.request(&at(id, &time));
        let expected = if Broker::is_original() { pong(id) } else { error(id, "malformed time field") };
        same(&answer, &expected);
    }
}
