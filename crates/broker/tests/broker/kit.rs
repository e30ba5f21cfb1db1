//! Requests and answers in tables, and the few shapes that answers have.

use outpost_testkit::{Broker, BrokerOptions, Lack, stamp};
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

/// What the original does not have, at the end of an answer and of a stage. Clients "should ignore unknown fields".
const MORE_IN_ANSWER: [&str; 4] = ["decision", "approved_by", "digest", "timed_out"];
const MORE_IN_STAGE: [&str; 3] = ["signal", "duration_ms", "resolved"];

pub(crate) fn broker() -> Broker {
    Broker::start(&BrokerOptions::default())
}

/// True for a test of what we do otherwise on purpose, when the original has our place. With `OUTPOST_BROKER_ALL` such a
/// test runs there too: it must fail, or it would not notice when we do as the original does.
pub(crate) fn ours_only() -> bool {
    Broker::is_original() && std::env::var_os("OUTPOST_BROKER_ALL").is_none()
}

/// For a test of what we do otherwise on purpose.
pub(crate) fn ours() -> Result<(), Lack> {
    match ours_only() {
        true => Err(Lack::of_host("the original does otherwise")),
        false => Ok(()),
    }
}

/// For a test that needs more than the original has.
pub(crate) fn no_original() -> Result<(), Lack> {
    match Broker::is_original() {
        true => Err(Lack::of_host("the original has nothing of the kind")),
        false => Ok(()),
    }
}

/// Our own binary.
pub(crate) fn binary() -> std::path::PathBuf {
    let test = std::env::current_exe().unwrap();
    outpost_testkit::binary_beside(test.parent().unwrap(), "outpost")
}

/// A request of now for a pipeline without privileges.
pub(crate) fn plain(id: &str, pipeline: Value) -> Value {
    json!({"id": id, "time": stamp(0), "pipeline": pipeline, "privileged": false})
}

/// The same for one script.
pub(crate) fn sh(id: &str, script: &str) -> Value {
    plain(id, json!([["sh", "-c", script]]))
}

/// A request that is answered without anyone being asked, and still passes every gate.
pub(crate) fn ping(id: &str) -> Value {
    json!({"id": id, "time": stamp(0), "pipeline": [], "action": "ping"})
}

/// A request with other fields over it.
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

/// The line of a pipeline that ran: exit code and stderr of each stage, and stdout of the last.
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

/// For whoever comes when there are too many already.
pub(crate) fn busy() -> String {
    error("", "server busy: too many in-flight requests")
}

pub(crate) fn pong(id: &str) -> String {
    json!({"id": id, "status": "ok", "stdout": "", "message": "pong", "version": "1.2.0"}).to_string()
}

/// An answer as the original would write it: without what may follow its own fields. Panics where anything unknown does, or
/// where a known addition stands anywhere else than behind the original's fields.
pub(crate) fn original_part(answer: &str) -> String {
    let mut fields: Map<String, Value> =
        serde_json::from_str(answer).unwrap_or_else(|error| panic!("{answer:.300}: {error}"));
    let written = serde_json::to_string(&fields).unwrap();
    assert!(written == answer, "not as a plain serializer writes it: {answer:.600}");
    cut(&mut fields, &MORE_IN_ANSWER, answer);
    for stage in fields.get_mut("stages").and_then(Value::as_array_mut).into_iter().flatten() {
        cut(stage.as_object_mut().unwrap(), &MORE_IN_STAGE, answer);
    }
    serde_json::to_string(&fields).unwrap()
}

fn cut(fields: &mut Map<String, Value>, additions: &[&str], answer: &str) {
    let first = fields.keys().position(|name| additions.contains(&name.as_str())).unwrap_or(fields.len());
    let stray = fields.keys().skip(first).find(|name| !additions.contains(&name.as_str()));
    assert!(stray.is_none(), "{stray:?} stands behind an addition of ours: {answer:.600}");
    let kept = std::mem::take(fields).into_iter().take(first);
    fields.extend(kept);
}

/// Compares an answer byte for byte with the original's, additions aside.
#[track_caller]
pub(crate) fn same(answer: &str, expected: &str) {
    let got = original_part(answer);
    assert!(got == expected, "\n  expected {expected:.900}\n  got      {answer:.900}");
}

/// Denies a request, and expects its client to be told so.
#[track_caller]
pub(crate) fn deny(broker: &mut Broker, request: &Value) {
    let mut client = broker.send(request);
    broker.deny();
    same(&client.answer(), &denied(request["id"].as_str().unwrap()));
}

/// Presses `y` after a prompt that is over: that is for nobody, not for the next one either.
#[track_caller]
pub(crate) fn press_too_late(broker: &mut Broker) {
    broker.skip_screen();
    broker.key(b"y");
    deny(broker, &plain("next", json!([["true"]])));
}

/// Sends every request, none of which may lead to a prompt, and compares every answer; tells all that differ.
#[track_caller]
pub(crate) fn check(broker: &Broker, rows: &[(Value, String)]) {
    let rows: Vec<(String, String)> =
        rows.iter().map(|(request, expected)| (request.to_string(), expected.clone())).collect();
    check_lines(broker, &rows);
}

/// The same for whole lines as they are sent.
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
    assert!(!broker.has_prompt(), "someone was asked: {}", broker.screen());
}

/// The same for rows that have nothing to do with each other: some at a time, since the original looks for new
/// connections only every 50 ms.
#[track_caller]
pub(crate) fn check_at_once(broker: &Broker, rows: &[(Value, String)]) {
    let mut wrong = String::new();
    for some in rows.chunks(32) {
        let mut clients: Vec<_> = some.iter().map(|(request, _)| broker.send(request)).collect();
        for ((request, expected), client) in some.iter().zip(&mut clients) {
            // One that someone is asked about will not be answered; the others still will.
            let begun = Instant::now();
            while !client.has_answer(Duration::from_millis(100)) && !broker.has_prompt() {
                assert!(
                    begun.elapsed() < Duration::from_secs(60),
                    "neither prompt nor answer: {request:.300}"
                );
            }
            let asked = !client.has_answer(Duration::from_millis(200));
            let answer = if asked { "a prompt, or a place behind one".to_owned() } else { client.answer() };
            if asked || original_part(&answer) != *expected {
                wrong += &format!("\n{request:.300}\n  expected {expected}\n  got      {answer:.600}");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(!broker.has_prompt(), "someone was asked: {}", broker.screen());
}

/// Requests that have this text in one field each, and how they are refused if that text is forbidden.
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

/// Sends a request that must be refused without anyone being asked; the message of that.
#[track_caller]
pub(crate) fn refused_unasked(broker: &Broker, request: &Value) -> String {
    let answer = broker.request_unasked(request);
    assert!(answer.contains(&format!(r#"{{"id":{},"status":"error","#, request["id"])), "{answer}");
    message(&answer)
}

/// An executable script.
pub(crate) fn script(path: &std::path::Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

/// Needs a privileged command that runs without a password.
pub(crate) fn privilege() -> Result<(), Lack> {
    use std::os::unix::fs::MetadataExt;
    // As root the original asks `sudo` all the same, and we do not.
    let without = !Broker::is_original() && std::fs::metadata("/proc/self").unwrap().uid() == 0;
    let sudo = || std::process::Command::new("sudo").args(["-n", "true"]).output();
    if without || sudo().is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    Err(Lack::of_host("no command may run as root without a password"))
}

/// The `message` of an answer that must be an error.
#[track_caller]
pub(crate) fn message(answer: &str) -> String {
    let answer: Value = serde_json::from_str(answer).unwrap();
    assert_eq!(answer["status"], "error", "{answer}");
    answer["message"].as_str().unwrap().to_owned()
}

#[test]
fn the_comparison_forgives_known_additions_in_their_place_and_nothing_else() {
    let original = ok("a", &[(0, "x")], "y");
    let stage = r#""stderr":"eA==""#;
    let more_in_stage =
        format!(r#"{stage},"signal":"TERM","duration_ms":1,"resolved":{{"path":"/x","sha256":"0"}}"#);
    let ours = original.replace(stage, &more_in_stage);
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
