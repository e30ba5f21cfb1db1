//! What is no request: unknown methods, and, where the original is silent, the answers of our own.

use crate::table::{PROBE, danger, server};
use serde_json::{Value, json};

/// The list behind it is the original's own, with everything that is not of this family.
#[test]
fn an_unknown_method_is_named_in_the_answer() {
    let mut server = server();
    let long = "x".repeat(300);
    for method in [
        "nope",
        "",
        "command/nope",
        "command/exec/",
        "command/exec/outputDelta",
        "COMMAND/EXEC",
        "command/exec ",
        "a`b\"c\\d\né",
        &long,
    ] {
        for params in [json!({}), json!(5), Value::Null, danger(&["/bin/true"])] {
            let id = server.request(method, &params);
            let reply: Value = serde_json::from_str(&server.reply(id)).unwrap();
            assert_eq!(reply["error"]["code"], -32600, "{method}: {reply}");
            let text = reply["error"]["message"].as_str().unwrap();
            let begin =
                format!("Invalid request: unknown variant `{method}`, expected one of `initialize`, ");
            assert!(text.starts_with(&begin), "{text:.400}");
            for known in
                ["command/exec", "command/exec/write", "command/exec/terminate", "command/exec/resize"]
            {
                assert!(text.contains(&format!("`{known}`")), "{known} is not in {text}");
            }
        }
    }
}

/// Lines that the original passes over without a word. A client would wait for ever.
fn answered(lines: &[&str], code: i32) {
    let mut server = server();
    let mut wrong = String::new();
    for line in lines {
        server.send(format!("{line}\n"));
        let got = server.line();
        let reply: Value = serde_json::from_str(&got).unwrap();
        let begin = format!(r#"{{"error":{{"code":{code},"message":""#);
        let whole = got.starts_with(&begin) && got.ends_with(r#"},"id":null}"#);
        if !whole || reply["error"]["message"].as_str().is_none_or(str::is_empty) {
            wrong += &format!("\n{line}\n  {got}");
        }
    }
    assert!(wrong.is_empty(), "expected {code} and no id:{wrong}");
    server.exec(&danger(&["/bin/true"]));
}

#[test]
fn malformed_json_is_reported() {
    outpost_testkit::require!(crate::table::skip_on_original());
    answered(
        &[
            "x",
            "{",
            "}",
            "{}{}",
            "{} x",
            r#"{"id":1,"method":"command/exec","params":{"command":["true"]}"#,
            r#"{"id":1,"method":"command/exec","params":{"command":["true"],}}"#,
            r#"{'id':1}"#,
            r#"{"id":01,"method":"x"}"#,
            r#"{"id":NaN,"method":"x"}"#,
            r#"{"id":"\x41","method":"x"}"#,
            r#"{"id":"open}"#,
            "{\"id\":\"tab\tinside\"}",
            "[1,",
            "nul",
        ],
        -32700,
    );
}

#[test]
fn a_request_whose_id_is_none_is_refused() {
    outpost_testkit::require!(crate::table::skip_on_original());
    let lines: Vec<String> = [
        "null",
        "1.5",
        "1.0",
        "1e3",
        "true",
        "false",
        "[]",
        "{}",
        "9223372036854775808",
        "-9223372036854775809",
    ]
    .iter()
    .map(|id| format!("{{\"id\":{id},{PROBE}}}"))
    .collect();
    answered(&lines.iter().map(String::as_str).collect::<Vec<_>>(), -32600);
}

#[test]
fn batches_and_other_things_that_are_no_requests_are_refused() {
    outpost_testkit::require!(crate::table::skip_on_original());
    answered(&["[]", r#"[{"id":1,"method":"x"}]"#, "5", "-1.5", "\"text\"", "null", "true", "{}"], -32600);
}
