//! "Field defaults (every field except pipeline is optional on the wire)": the values and the default of each field.

use crate::kit::{
    broker, check, check_concurrently, check_lines, error, in_every_field, message, ok, original_part, ping,
    plain, pong, privilege, same, with,
};
use outpost_testkit::{Broker, require, stamp};
use serde_json::{Value, json};

/// "defaults to a fresh UUIDv4"
fn is_uuid_v4(id: &str) -> bool {
    let hexadecimal = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let parts: Vec<&str> = id.split('-').collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    lengths == [8, 4, 4, 4, 12]
        && parts.iter().all(|part| hexadecimal(part))
        && parts.get(2).is_some_and(|part| part.starts_with('4'))
        && parts.get(3).is_some_and(|part| part.starts_with(['8', '9', 'a', 'b']))
}

#[test]
fn the_contracts_example_request_is_accepted() {
    require!(privilege());
    let mut broker = broker();
    let request = json!({
        "id": "550e8400-e29b-41d4-a716-446655440000",
        "host": "workstation.local",
        "session": "claude-code-project-alpha",
        "time": stamp(0),
        "pipeline": [["printf", "installed"]],
        "env": {"DEBIAN_FRONTEND": "noninteractive"},
        "reason": "Install nginx to set up a web server",
        "privileged": true,
        "forward_agent": false
    });
    let answer = broker.run(&request);
    same(&answer, &ok("550e8400-e29b-41d4-a716-446655440000", &[(0, "")], "installed"));
}

#[test]
fn pipeline_and_time_are_the_only_required_fields() {
    require!(privilege());
    let mut broker = broker();
    let mut ids = Vec::new();
    for _ in 0..2 {
        let answer = broker.run(&json!({"time": stamp(0), "pipeline": [["printf", "x"]]}));
        let fields: Value = serde_json::from_str(&answer).unwrap();
        let id = fields["id"].as_str().unwrap().to_owned();
        assert!(is_uuid_v4(&id), "{id}");
        same(&answer, &ok(&id, &[(0, "")], "x"));
        ids.push(id);
    }
    assert_ne!(ids.first(), ids.last());
    assert!(broker.screen().contains("unknown"), "the default session is missing: {}", broker.screen());
}

#[test]
fn a_refused_request_without_an_id_gets_a_fresh_id() {
    let broker = broker();
    let answer = broker.request(&json!({"pipeline": [["true"]]}));
    let fields: Value = serde_json::from_str(&answer).unwrap();
    let id = fields["id"].as_str().unwrap();
    assert!(is_uuid_v4(id), "{answer}");
    same(&answer, &error(id, "missing time field"));
}

#[test]
fn an_id_may_be_any_text() {
    let broker = broker();
    let long = "x".repeat(100_000);
    let rows = ["", " ", "not a uuid", "ä€😀", "\"\\/", "1", &long].map(|id| (ping(id), pong(id)));
    check(&broker, &rows);
}

#[test]
fn pipelines_and_stages_must_not_be_empty() {
    let broker = broker();
    let empty = "pipeline must not be empty";
    let stage = |index: usize| format!("pipeline stage {index} must not be empty");
    let rows = [
        (json!({"id": "a", "time": stamp(0)}), error("a", empty)),
        (plain("b", json!([])), error("b", empty)),
        (plain("c", json!([[]])), error("c", &stage(0))),
        (plain("d", json!([["true"], []])), error("d", &stage(1))),
        (plain("e", json!([["true"], ["true"], [], []])), error("e", &stage(2))),
        (json!({}), error("", empty)),
    ];
    let (last, rows) = rows.split_last().unwrap();
    check(&broker, rows);
    assert_eq!(message(&broker.request(&last.0)), empty);
}

#[test]
fn privileged_is_the_default() {
    let broker = broker();
    let only = "forward_agent is only allowed for unprivileged commands";
    let request =
        |id: &str| json!({"id": id, "time": stamp(0), "pipeline": [["true"]], "forward_agent": true});
    let rows = [
        (request("a"), error("a", only)),
        (with(request("b"), json!({"privileged": true})), error("b", only)),
        (with(ping("c"), json!({"forward_agent": true})), error("c", only)),
        (with(ping("d"), json!({"forward_agent": true, "privileged": false})), pong("d")),
    ];
    check(&broker, &rows);
}

#[test]
fn unknown_fields_are_ignored() {
    let broker = broker();
    let more = json!({"user": "root", "stdin": 3, "nested": {"id": "no"}, "": null, "Action": "stop", "argv": ["rm"]});
    check(&broker, &[(with(ping("a"), more), pong("a"))]);
}

#[test]
fn the_order_of_fields_does_not_matter() {
    let broker = broker();
    let line = format!(r#"{{"action":"ping","pipeline":[],"time":"{}","id":"a"}}"#, stamp(0));
    check_lines(&broker, &[(line, pong("a"))]);
}

/// A JSON line that is not a valid request, and the expected response. Outpost includes the id, which the original leaves
/// empty.
fn invalid_json(line: &str, text: &str) -> (String, String) {
    let id = if Broker::is_original() { "" } else { "x" };
    (line.to_owned(), error(id, &format!("invalid JSON: {text}")))
}

#[test]
fn a_field_of_the_wrong_type_is_reported_with_its_position() {
    let broker = broker();
    let rows = [
        (r#"{"id":"x","host":7}"#, "integer `7`", "a string", 18),
        (r#"{"id":"x","host":null}"#, "null", "a string", 21),
        (r#"{"id":"x","session":[]}"#, "sequence", "a string", 20),
        (r#"{"id":"x","time":1.5}"#, "floating point `1.5`", "a string", 20),
        (r#"{"id":"x","reason":{}}"#, "map", "a string", 19),
        (r#"{"id":"x","version":true}"#, "boolean `true`", "a string", 24),
        (r#"{"id":"x","pipeline":"ls"}"#, "string \"ls\"", "a sequence", 25),
        (r#"{"id":"x","pipeline":["ls"]}"#, "string \"ls\"", "a sequence", 26),
        (r#"{"id":"x","pipeline":[[1]]}"#, "integer `1`", "a string", 24),
        (r#"{"id":"x","pipeline":null}"#, "null", "a sequence", 25),
        (r#"{"id":"x","env":[]}"#, "sequence", "a map", 16),
        (r#"{"id":"x","env":{"TZ":1}}"#, "integer `1`", "a string", 23),
        (r#"{"id":"x","env":{"TZ":null}}"#, "null", "a string", 26),
        (r#"{"id":"x","privileged":"no"}"#, "string \"no\"", "a boolean", 27),
        (r#"{"id":"x","privileged":null}"#, "null", "a boolean", 27),
        (r#"{"id":"x","privileged":0}"#, "integer `0`", "a boolean", 24),
        (r#"{"id":"x","forward_agent":1}"#, "integer `1`", "a boolean", 27),
    ];
    let rows = rows.map(|(line, found, wanted, column)| {
        invalid_json(line, &format!("invalid type: {found}, expected {wanted} at line 1 column {column}"))
    });
    check_lines(&broker, &rows);
}

#[test]
fn an_unknown_action_is_reported_with_its_position() {
    let broker = broker();
    let rows = [
        invalid_json(
            r#"{"id":"x","action":"restart"}"#,
            "unknown variant `restart`, expected one of `exec`, `stop`, `ping` at line 1 column 28",
        ),
        invalid_json(
            r#"{"id":"x","action":"Ping"}"#,
            "unknown variant `Ping`, expected one of `exec`, `stop`, `ping` at line 1 column 25",
        ),
        invalid_json(r#"{"id":"x","action":null}"#, "expected value at line 1 column 20"),
    ];
    check_lines(&broker, &rows);
}

#[test]
fn a_duplicate_field_is_refused() {
    let broker = broker();
    let rows = [
        invalid_json(r#"{"id":"x","host":"a","host":"b"}"#, "duplicate field `host` at line 1 column 27"),
        invalid_json(
            r#"{"id":"x","pipeline":[],"pipeline":[["id"]]}"#,
            "duplicate field `pipeline` at line 1 column 34",
        ),
        invalid_json(
            r#"{"id":"x","privileged":true,"privileged":false}"#,
            "duplicate field `privileged` at line 1 column 40",
        ),
        invalid_json(r#"{"id":"x","time":"","time":""}"#, "duplicate field `time` at line 1 column 26"),
    ];
    check_lines(&broker, &rows);
    // With two ids, none is returned.
    let answer = broker.send_raw("{\"id\":\"x\",\"id\":\"y\"}\n").answer();
    assert_eq!(message(&answer), "invalid JSON: duplicate field `id` at line 1 column 14");
}

#[test]
fn json_that_is_not_an_object_is_refused_without_an_id() {
    let broker = broker();
    let rows = [
        ("1", "invalid type: integer `1`, expected struct Request at line 1 column 1"),
        ("null", "invalid type: null, expected struct Request at line 1 column 4"),
        ("true", "invalid type: boolean `true`, expected struct Request at line 1 column 4"),
        ("\"x\"", "invalid type: string \"x\", expected struct Request at line 1 column 3"),
    ];
    let rows = rows.map(|(line, text)| (line.to_owned(), error("", &format!("invalid JSON: {text}"))));
    check_lines(&broker, &rows);
    for line in [r#"{"id":7}"#, r#"{"id":null}"#, r#"{"id":["x"]}"#] {
        let answer = broker.send_raw(format!("{line}\n")).answer();
        assert!(
            original_part(&answer).starts_with(r#"{"id":"","status":"error","message":"invalid JSON: "#),
            "{answer}"
        );
    }
}

/// Characters that no field may contain.
const FORBIDDEN: [char; 19] = [
    '\0', '\u{1}', '\u{7}', '\u{8}', '\u{b}', '\u{c}', '\r', '\u{1b}', '\u{1f}', '\u{200b}', '\u{200c}',
    '\u{200d}', '\u{200e}', '\u{200f}', '\u{202a}', '\u{202e}', '\u{2066}', '\u{2068}', '\u{2069}',
];

#[test]
fn control_and_bidi_characters_are_refused_with_the_name_of_their_field() {
    let broker = broker();
    let rows: Vec<_> =
        FORBIDDEN.into_iter().flat_map(|character| in_every_field(&format!("a{character}b"))).collect();
    check_concurrently(&broker, &rows);
}

#[test]
fn letters_of_all_scripts_are_accepted() {
    let mut broker = broker();
    let text = "ä ß é ñ ж 日本語 ع 😀";
    let request = with(
        plain("a", json!([["printf", "%s", text]])),
        json!({"reason": text, "session": text, "host": text}),
    );
    same(&broker.run(&request), &ok("a", &[(0, "")], text));
}

#[test]
fn a_newline_is_refused_in_every_field_but_an_argument() {
    let broker = broker();
    let rows = [
        (
            plain("a", json!([["ls\n"]])),
            error("a", "pipeline[0][0] contains forbidden control/bidi characters"),
        ),
        (
            with(ping("b"), json!({"reason": "x\ny"})),
            error("b", "reason contains forbidden control/bidi characters"),
        ),
        (
            with(ping("c"), json!({"session": "\n"})),
            error("c", "session contains forbidden control/bidi characters"),
        ),
        (
            with(ping("d"), json!({"env": {"TZ": "\n"}})),
            error("d", "env value contains forbidden characters"),
        ),
    ];
    check(&broker, &rows);
}

#[test]
fn the_checks_apply_in_the_contracts_order() {
    let mut broker = broker();
    let all_wrong = json!({
        "id": "a", "time": "never", "pipeline": [[]], "reason": "\u{1b}", "env": {"LD_PRELOAD": "x"},
        "forward_agent": true, "privileged": true
    });
    let forbidden = "reason contains forbidden control/bidi characters";
    let steps: [(Value, &str); 6] = [
        (json!({"pipeline": [[]]}), "pipeline stage 0 must not be empty"),
        (json!({"pipeline": [["true"]]}), forbidden),
        (json!({"reason": ""}), "forward_agent is only allowed for unprivileged commands"),
        (json!({"forward_agent": false, "privileged": false}), "malformed time field"),
        (json!({"time": stamp(0)}), "environment variable not allowed: LD_PRELOAD"),
        (json!({"env": {}}), ""),
    ];
    let mut request = all_wrong;
    for (fix, message) in steps {
        request = with(request, fix);
        if message.is_empty() {
            // The refusals left the id unused and caused no prompt.
            assert!(!broker.has_prompt());
            same(&broker.run(&request), &ok("a", &[(0, "")], ""));
        } else {
            same(&broker.request(&request), &error("a", message));
        }
    }
    // The duplicate check is the last one.
    let again = with(request.clone(), json!({"env": {"LD_PRELOAD": "x"}}));
    same(&broker.request(&again), &error("a", "environment variable not allowed: LD_PRELOAD"));
    same(&broker.request(&request), &error("a", "duplicate request id: a"));
}
