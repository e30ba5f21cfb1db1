//! A request is an object, and who sends one that is wrong is told which it was.

use crate::kit::{broker, check_lines, error, message};
use outpost_testkit::stamp;
use serde_json::json;

#[test]
fn the_refusal_of_what_is_json_names_the_request() {
    outpost_testkit::require!(crate::kit::ours());
    let broker = broker();
    let told = |text: &str| error("some id", &format!("invalid JSON: {text}"));
    let rows = [
        (
            r#"{"host":7,"id":"some id"}"#,
            told("invalid type: integer `7`, expected a string at line 1 column 9"),
        ),
        (
            r#"{"id":"some id","action":"fly"}"#,
            told("unknown variant `fly`, expected one of `exec`, `stop`, `ping` at line 1 column 30"),
        ),
        (r#"{"host":"a","host":"b","id":"some id"}"#, told("duplicate field `host` at line 1 column 18")),
    ];
    check_lines(&broker, &rows.map(|(line, expected)| (line.to_owned(), expected)));
}

#[test]
fn an_array_is_no_request() {
    outpost_testkit::require!(crate::kit::ours());
    let broker = broker();
    let line = json!(["a", "host", "session", stamp(0), [], "ping"]);
    let answer = broker.send_raw(format!("{line}\n")).answer();
    assert!(answer.contains(r#""status":"error""#), "{answer}");
    assert!(message(&answer).starts_with("invalid JSON: "), "{answer}");
}
