//! Invalid requests: error responses carry the request's id, and an array is not a request.

use crate::kit::{broker, check_lines, error, message};
use outpost_testkit::stamp;
use serde_json::json;

#[test]
fn an_error_for_valid_json_carries_the_id() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let broker = broker();
    let refusal = |text: &str| error("some id", &format!("invalid JSON: {text}"));
    let rows = [
        (
            r#"{"host":7,"id":"some id"}"#,
            refusal("invalid type: integer `7`, expected a string at line 1 column 9"),
        ),
        (
            r#"{"id":"some id","action":"fly"}"#,
            refusal("unknown variant `fly`, expected one of `exec`, `stop`, `ping` at line 1 column 30"),
        ),
        (r#"{"host":"a","host":"b","id":"some id"}"#, refusal("duplicate field `host` at line 1 column 18")),
    ];
    check_lines(&broker, &rows.map(|(line, expected)| (line.to_owned(), expected)));
}

#[test]
fn an_array_is_not_a_request() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let broker = broker();
    let line = json!(["a", "host", "session", stamp(0), [], "ping"]);
    let answer = broker.send_raw(format!("{line}\n")).answer();
    assert!(answer.contains(r#""status":"error""#), "{answer}");
    assert!(message(&answer).starts_with("invalid JSON: "), "{answer}");
}
