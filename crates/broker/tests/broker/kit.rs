//! Builders for requests and expected responses, and table-driven checks.

use outpost_testkit::{Broker, BrokerOptions, Lack, stamp};
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

/// Outpost's additional fields, at the end of a response and of a stage. Clients "should ignore unknown fields".
const ADDED_TO_RESPONSE: [&str; 4] = ["decision", "approved_by", "digest", "timed_out"];
const ADDED_TO_STAGE: [&str; 3] = ["signal", "duration_ms", "resolved"];

pub(crate) fn broker() -> Broker {
    Broker::start(&BrokerOptions::default())
}

/// Whether to skip tests of intended differences: the original is under test, and `OUTPOST_BROKER_ALL` is unset.
pub(crate) fn skip_on_original() -> bool {
    Broker::is_original() && std::env::var_os("OUTPOST_BROKER_ALL").is_none()
}

/// The requirement of a test of an intended difference.
pub(crate) fn deviation_tests() -> Result<(), Lack> {
    match skip_on_original() {
        true => Err(Lack::of_host("the original behaves differently")),
        false => Ok(()),
    }
}

/// The requirement of a test of a feature that the original lacks.
pub(crate) fn extension_tests() -> Result<(), Lack> {
    match Broker::is_original() {
        true => Err(Lack::of_host("the original lacks this feature")),
        false => Ok(()),
    }
}

/// The `outpost` binary under test.
pub(crate) fn binary() -> std::path::PathBuf {
    let test = std::env::current_exe().unwrap();
    outpost_testkit::binary_beside(test.parent().unwrap(), "outpost")
}

/// A fresh unprivileged request for a pipeline.
pub(crate) fn plain(id: &str, pipeline: Value) -> Value {
    json!({"id": id, "time": stamp(0), "pipeline": pipeline, "privileged": false})
}

/// A fresh unprivileged request for one shell script.
pub(crate) fn sh(id: &str, script: &str) -> Value {
    plain(id, json!([["sh", "-c", script]]))
}

/// A request that passes every check and needs no approval.
pub(crate) fn ping(id: &str) -> Value {
    json!({"id": id, "time": stamp(0), "pipeline": [], "action": "ping"})
}

/// The request with these fields replaced or added.
pub(crate) fn with(mut request: Value, more: Value) -> Value {
    for (name, value) in more.as_object().unwrap() {
        request[name] = value.clone();
    }
    request
}

pub(crate) fn base64(bytes: impl AsRef<[u8]>) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

pub(crate) fn decoded(text: &Value) -> Vec<u8> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.decode(text.as_str().unwrap()).unwrap()
}

/// The response of a pipeline that ran: exit code and stderr of each stage, and stdout of the last.
pub(crate) fn ok(id: &str, stages: &[(i32, &str)], stdout: &str) -> String {
    let stages: Vec<Value> =
        stages.iter().map(|(code, stderr)| json!({"exit_code": code, "stderr": base64(stderr)})).collect();
    json!({"id": id, "status": "ok", "stages": stages, "stdout": base64(stdout), "version": "1.2.0"})
        .to_string()
}

pub(crate) fn error(id: &str, message: &str) -> String {
    json!({"id": id, "status": "error", "message": message, "version": "1.2.0"}).to_string()
}

pub(crate) fn denied(id: &str) -> String {
    json!({"id": id, "status": "denied", "version": "1.2.0"}).to_string()
}

pub(crate) fn timeout(id: &str) -> String {
    json!({"id": id, "status": "timeout", "version": "1.2.0"}).to_string()
}

/// The response beyond the limit of requests in flight.
pub(crate) fn busy() -> String {
    error("", "server busy: too many in-flight requests")
}

pub(crate) fn pong(id: &str) -> String {
    json!({"id": id, "status": "ok", "stdout": "", "message": "pong", "version": "1.2.0"}).to_string()
}

/// A response without Outpost's additional fields. Panics on a field that follows them but is unknown, so additions are
/// accepted only behind the original's fields.
pub(crate) fn original_part(answer: &str) -> String {
    let mut fields: Map<String, Value> =
        serde_json::from_str(answer).unwrap_or_else(|error| panic!("{answer:.300}: {error}"));
    let written = serde_json::to_string(&fields).unwrap();
    assert!(written == answer, "not in compact serialization: {answer:.600}");
    drop_additions(&mut fields, &ADDED_TO_RESPONSE, answer);
    for stage in fields.get_mut("stages").and_then(Value::as_array_mut).into_iter().flatten() {
        drop_additions(stage.as_object_mut().unwrap(), &ADDED_TO_STAGE, answer);
    }
    serde_json::to_string(&fields).unwrap()
}

fn drop_additions(fields: &mut Map<String, Value>, additions: &[&str], answer: &str) {
    let first = fields.keys().position(|name| additions.contains(&name.as_str())).unwrap_or(fields.len());
    let stray = fields.keys().skip(first).find(|name| !additions.contains(&name.as_str()));
    assert!(stray.is_none(), "{stray:?} follows an additional field: {answer:.600}");
    let kept = std::mem::take(fields).into_iter().take(first);
    fields.extend(kept);
}

/// Asserts that a response equals the original's byte for byte, additional fields aside.
#[track_caller]
pub(crate) fn same(answer: &str, expected: &str) {
    let got = original_part(answer);
    assert!(got == expected, "\n  expected {expected:.900}\n  got      {answer:.900}");
}

/// Sends a request, denies it, and checks the response.
#[track_caller]
pub(crate) fn deny(broker: &mut Broker, request: &Value) {
    let mut client = broker.send(request);
    broker.deny();
    same(&client.answer(), &denied(request["id"].as_str().unwrap()));
}

/// Presses `y` after a prompt ended. The key must not approve the next prompt.
#[track_caller]
pub(crate) fn press_too_late(broker: &mut Broker) {
    broker.skip_screen();
    broker.key(b"y");
    deny(broker, &plain("next", json!([["true"]])));
}

/// Sends every request and compares every response. Reports all differences. No request may cause a prompt.
#[track_caller]
pub(crate) fn check(broker: &Broker, rows: &[(Value, String)]) {
    let rows: Vec<(String, String)> =
        rows.iter().map(|(request, expected)| (request.to_string(), expected.clone())).collect();
    check_lines(broker, &rows);
}

/// Like `check`, for raw lines.
#[track_caller]
pub(crate) fn check_lines(broker: &Broker, rows: &[(String, String)]) {
    let mut wrong = String::new();
    for (line, expected) in rows {
        let answer = broker.send_raw(format!("{line}\n")).answer();
        if original_part(&answer) != *expected {
            wrong += &format!("\n{line:.300}\n  expected {expected}\n  got      {answer:.600}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(!broker.has_prompt(), "unexpected prompt: {}", broker.screen());
}

/// Like `check`, for independent rows: sends 32 at a time, since the original polls for connections only every 50 ms.
#[track_caller]
pub(crate) fn check_concurrently(broker: &Broker, rows: &[(Value, String)]) {
    let mut wrong = String::new();
    for chunk in rows.chunks(32) {
        let mut clients: Vec<_> = chunk.iter().map(|(request, _)| broker.send(request)).collect();
        for ((request, expected), client) in chunk.iter().zip(&mut clients) {
            // A request that causes a prompt gets no response. The others still do.
            let begun = Instant::now();
            while !client.has_answer(Duration::from_millis(100)) && !broker.has_prompt() {
                assert!(
                    begun.elapsed() < Duration::from_secs(60),
                    "neither prompt nor answer: {request:.300}"
                );
            }
            let asked = !client.has_answer(Duration::from_millis(200));
            let answer = if asked { "a prompt, or a wait for one".to_owned() } else { client.answer() };
            if asked || original_part(&answer) != *expected {
                wrong += &format!("\n{request:.300}\n  expected {expected}\n  got      {answer:.600}");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(!broker.has_prompt(), "unexpected prompt: {}", broker.screen());
}

/// Requests with this text in one field each, and the expected refusals if the text is forbidden.
pub(crate) fn in_every_field(bad: &str) -> Vec<(Value, String)> {
    let named = |name: &str| error("x", &format!("{name} contains forbidden control/bidi characters"));
    vec![
        (plain("x", json!([[bad]])), named("pipeline[0][0]")),
        (plain("x", json!([["echo", bad]])), named("pipeline[0][1]")),
        (plain("x", json!([["echo"], ["cat", "-", bad]])), named("pipeline[1][2]")),
        (with(ping("x"), json!({"reason": bad})), named("reason")),
        (with(ping("x"), json!({"session": bad})), named("session")),
        (with(ping("x"), json!({"host": bad})), named("host")),
        (with(ping("x"), json!({"version": bad})), named("version")),
        (with(ping("x"), json!({"env": {"TZ": bad}})), error("x", "env value contains forbidden characters")),
        (
            with(ping("x"), json!({"env": {bad: "x"}})),
            error("x", &format!("env key '{bad}' contains forbidden characters")),
        ),
        (ping(bad), error(bad, "id contains forbidden control/bidi characters")),
    ]
}

/// Sends a request that must be refused without a prompt. Returns the message.
#[track_caller]
pub(crate) fn refused_unasked(broker: &Broker, request: &Value) -> String {
    let answer = broker.request_unasked(request);
    assert!(answer.contains(&format!(r#"{{"id":{},"status":"error","#, request["id"])), "{answer}");
    message(&answer)
}

/// Writes an executable shell script.
pub(crate) fn script(path: &std::path::Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

/// The requirement that privileged commands run without a password.
pub(crate) fn privilege() -> Result<(), Lack> {
    use std::os::unix::fs::MetadataExt;
    // As root, the original still runs sudo. Outpost does not.
    let needs_no_sudo = !Broker::is_original() && std::fs::metadata("/proc/self").unwrap().uid() == 0;
    let sudo = || std::process::Command::new("sudo").args(["-n", "true"]).output();
    if needs_no_sudo || sudo().is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    Err(Lack::of_host("sudo needs a password"))
}

/// The `message` of an error response.
#[track_caller]
pub(crate) fn message(answer: &str) -> String {
    let answer: Value = serde_json::from_str(answer).unwrap();
    assert_eq!(answer["status"], "error", "{answer}");
    answer["message"].as_str().unwrap().to_owned()
}

#[test]
fn the_comparison_ignores_only_known_fields_at_the_end() {
    let original = ok("a", &[(0, "x")], "y");
    let stage = r#""stderr":"eA==""#;
    let added_to_stage =
        format!(r#"{stage},"signal":"TERM","duration_ms":1,"resolved":{{"path":"/x","sha256":"0"}}"#);
    let ours = original.replace(stage, &added_to_stage);
    let ours = ours.replace(r#""1.2.0"}"#, r#""1.2.0","decision":"human","digest":"0","timed_out":true}"#);
    assert_eq!(original_part(&ours), original);
    let unknown = original.replace(r#""1.2.0"}"#, r#""1.2.0","surprise":1}"#);
    assert_ne!(original_part(&unknown), original);
    for misplaced in [
        original.replace(r#""version""#, r#""digest":"0","version""#),
        original.replace(r#""stderr""#, r#""signal":"TERM","stderr""#),
        original.replace(':', ": "),
    ] {
        assert!(std::panic::catch_unwind(|| original_part(&misplaced)).is_err(), "{misplaced}");
    }
}
