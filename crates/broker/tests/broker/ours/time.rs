//! `time` is RFC 3339 in full, read for what it says, and has a bound on either side.

use crate::kit::{broker, check, message, ping, pong, with};
use outpost_testkit::{Broker, stamp};
use serde_json::{Value, json};

fn at(id: &str, time: &str) -> Value {
    with(ping(id), json!({"time": time}))
}

/// The time so many seconds from now, with something else in place of its `Z`.
fn ending(offset_seconds: i64, end: &str) -> String {
    stamp(offset_seconds).replace('Z', end)
}

/// Every one of these is now.
#[track_caller]
fn accepted(times: &[String]) {
    let broker = broker();
    let rows: Vec<_> = times.iter().map(|time| (at(time, time), pong(time))).collect();
    check(&broker, &rows);
}

/// The refusal must begin so.
#[track_caller]
fn refused(broker: &Broker, time: &str, begin: &str) {
    let answer = broker.request(&at(time, time));
    assert!(answer.contains(r#""status":"error""#), "{time} was accepted: {answer}");
    let told = message(&answer);
    assert!(told.starts_with(begin), "{time}: {told}");
}

#[test]
fn a_time_may_have_a_fraction() {
    outpost_testkit::require!(crate::kit::ours());
    accepted(&[".1Z", ".123Z", ".123456Z", ".999999999Z", ".000+00:00"].map(|end| ending(0, end)));
}

#[test]
fn a_time_may_be_in_lower_case() {
    outpost_testkit::require!(crate::kit::ours());
    accepted(&[stamp(0).to_lowercase(), stamp(0).replace('T', "t"), ending(0, "z"), ending(0, ".5z")]);
}

#[test]
fn an_offset_is_read_for_what_it_says() {
    outpost_testkit::require!(crate::kit::ours());
    let hours = 3_600;
    accepted(&[
        ending(0, "+00:00"),
        ending(0, "-00:00"),
        ending(2 * hours, "+02:00"),
        ending(-5 * hours, "-05:00"),
        ending(5 * hours + 1_800, "+05:30"),
        ending(14 * hours, ".25+14:00"),
    ]);
}

#[test]
fn an_old_time_is_not_made_fresh_by_its_offset() {
    outpost_testkit::require!(crate::kit::ours());
    refused(&broker(), &ending(0, "+02:00"), "request too old: 72");
}

#[test]
fn a_request_from_the_future_is_refused() {
    outpost_testkit::require!(crate::kit::ours());
    let broker = broker();
    for seconds in [10, 90, 86_400, 1_000_000_000] {
        refused(&broker, &stamp(seconds), "request from the future");
    }
    refused(&broker, &ending(0, "-05:00"), "request from the future");
}

#[test]
fn a_time_is_read_whole() {
    outpost_testkit::require!(crate::kit::ours());
    let broker = broker();
    let now = stamp(0);
    // What the original skips as being no number.
    let (date, clock) = now.split_once('T').unwrap();
    for time in [format!("{date}-x{}", ending(0, "").replacen(date, "", 1)), format!("{date}T{clock}:x")] {
        refused(&broker, &time, "malformed time field");
    }
}
