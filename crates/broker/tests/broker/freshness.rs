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
fn malformed_times_are_refused() {
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
fn a_request_is_fresh_for_sixty_seconds() {
    let broker = broker();
    // Not exactly 60: the limit could pass before the request arrives.
    check(&broker, &[(at("a", &stamp(-57)), pong("a")), (at("b", &stamp(0)), pong("b"))]);
    for (id, age) in [("c", 62), ("d", 3_600), ("e", 40_000_000)] {
        let text = message(&broker.request(&at(id, &stamp(-age))));
        let seconds = |extra: i64| format!("request too old: {}s (max 60s)", age + extra);
        assert!((0..5).any(|extra| text == seconds(extra)), "{text}");
    }
    assert!(message(&broker.request(&at("f", "1970-01-01T00:00:00Z"))).starts_with("request too old: "));
    assert!(!broker.has_prompt());
}

#[test]
fn a_time_without_an_offset_is_utc() {
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
fn freshness_is_checked_on_arrival_and_not_at_the_prompt() {
    let mut broker = broker();
    let first = broker.send(&plain("first", json!([["true"]])));
    broker.wait_prompt();
    // Fresh now, but stale when its own prompt is answered.
    let waited_since = std::time::Instant::now();
    let mut second = broker.send(&with(plain("second", json!([["true"]])), json!({"time": stamp(-57)})));
    // The answered later ping shows that the request has arrived.
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
fn only_the_original_accepts_almost_valid_times() {
    let broker = broker();
    let now = stamp(0);
    // Surrounding spaces, two Z, and a day that does not exist.
    for (id, time) in
        [("a", format!(" {now} ")), ("b", format!("{now}Z")), ("c", "2099-02-30T00:00:00Z".to_owned())]
    {
        let answer = broker.request(&at(id, &time));
        let expected = if Broker::is_original() { pong(id) } else { error(id, "malformed time field") };
        same(&answer, &expected);
    }
}
