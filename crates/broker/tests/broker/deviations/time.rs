//! `time` accepts every form of RFC 3339, respects offsets, and has a limit in both directions.

use crate::kit::{broker, check, message, ping, pong, with};
use outpost_testkit::{Broker, stamp};
use serde_json::{Value, json};

fn at(id: &str, time: &str) -> Value {
    with(ping(id), json!({"time": time}))
}

/// The time at this offset from now, with `end` in place of `Z`.
fn stamp_with_end(offset_seconds: i64, end: &str) -> String {
    stamp(offset_seconds).replace('Z', end)
}

/// Asserts that each of these times is accepted.
#[track_caller]
fn check_accepted(times: &[String]) {
    let broker = broker();
    let rows: Vec<_> = times.iter().map(|time| (at(time, time), pong(time))).collect();
    check(&broker, &rows);
}

/// Asserts that this time is refused with a message that starts with `begin`.
#[track_caller]
fn check_refused(broker: &Broker, time: &str, begin: &str) {
    let answer = broker.request(&at(time, time));
    assert!(answer.contains(r#""status":"error""#), "{time} was accepted: {answer}");
    let text = message(&answer);
    assert!(text.starts_with(begin), "{time}: {text}");
}

#[test]
fn a_time_may_have_a_fraction() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    check_accepted(
        &[".1Z", ".123Z", ".123456Z", ".999999999Z", ".000+00:00"].map(|end| stamp_with_end(0, end)),
    );
}

#[test]
fn a_time_may_be_in_lower_case() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    check_accepted(&[
        stamp(0).to_lowercase(),
        stamp(0).replace('T', "t"),
        stamp_with_end(0, "z"),
        stamp_with_end(0, ".5z"),
    ]);
}

#[test]
fn an_offset_is_applied() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let hours = 3_600;
    check_accepted(&[
        stamp_with_end(0, "+00:00"),
        stamp_with_end(0, "-00:00"),
        stamp_with_end(2 * hours, "+02:00"),
        stamp_with_end(-5 * hours, "-05:00"),
        stamp_with_end(5 * hours + 1_800, "+05:30"),
        stamp_with_end(14 * hours, ".25+14:00"),
    ]);
}

#[test]
fn an_offset_can_make_a_time_stale() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    check_refused(&broker(), &stamp_with_end(0, "+02:00"), "request too old: 72");
}

#[test]
fn a_request_from_the_future_is_refused() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let broker = broker();
    for seconds in [10, 90, 86_400, 1_000_000_000] {
        check_refused(&broker, &stamp(seconds), "request from the future");
    }
    check_refused(&broker, &stamp_with_end(0, "-05:00"), "request from the future");
}

#[test]
fn a_time_with_other_characters_is_refused() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let broker = broker();
    let now = stamp(0);
    // The original skips characters that are not digits.
    let (date, clock) = now.split_once('T').unwrap();
    for time in
        [format!("{date}-x{}", stamp_with_end(0, "").replacen(date, "", 1)), format!("{date}T{clock}:x")]
    {
        check_refused(&broker, &time, "malformed time field");
    }
}
