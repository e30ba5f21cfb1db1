//! The actions of protocol 1.1, `ping` and `stop`: they need no approval but pass every check.

use crate::kit::{broker, check, error, message, ok, ping, plain, pong, same, with};
use outpost_sys::pidfd::ExitCause;
use outpost_testkit::stamp;
use serde_json::{Value, json};

fn stop(id: &str) -> Value {
    with(ping(id), json!({"action": "stop"}))
}

/// The response to `stop`: `ok` without stages.
fn stopped(id: &str) -> String {
    json!({"id": id, "status": "ok", "stdout": "", "version": "1.2.0"}).to_string()
}

#[test]
fn a_ping_needs_no_approval() {
    let broker = broker();
    let answer = broker.request(&ping("a"));
    assert_eq!(answer, r#"{"id":"a","status":"ok","stdout":"","message":"pong","version":"1.2.0"}"#);
    // Its other fields have no effect.
    check(
        &broker,
        &[
            (with(ping("b"), json!({"privileged": false})), pong("b")),
            (with(ping("c"), json!({"pipeline": [["reboot"]]})), pong("c")),
            (json!({"id": "d", "time": stamp(0), "action": "ping"}), pong("d")),
        ],
    );
}

#[test]
fn a_ping_passes_every_check() {
    let broker = broker();
    let rows = [
        (with(ping("a"), json!({"time": ""})), error("a", "missing time field")),
        (with(ping("b"), json!({"time": "x"})), error("b", "malformed time field")),
        (
            with(ping("c"), json!({"session": "\u{1b}"})),
            error("c", "session contains forbidden control/bidi characters"),
        ),
        (
            with(ping("d"), json!({"env": {"PATH": "x"}})),
            error("d", "environment variable not allowed: PATH"),
        ),
        (with(ping("e"), json!({"pipeline": [["x"], []]})), error("e", "pipeline stage 1 must not be empty")),
        (ping("f"), pong("f")),
        (ping("f"), error("f", "duplicate request id: f")),
    ];
    check(&broker, &rows);
}

#[test]
fn the_default_action_may_be_explicit() {
    let mut broker = broker();
    let request = with(plain("a", json!([["printf", "x"]])), json!({"action": "exec"}));
    same(&broker.run(&request), &ok("a", &[(0, "")], "x"));
    let empty = with(plain("b", json!([])), json!({"action": "exec"}));
    same(&broker.request(&empty), &error("b", "pipeline must not be empty"));
}

#[test]
fn a_ping_is_answered_during_a_prompt() {
    let mut broker = broker();
    let mut client = broker.send(&plain("asked", json!([["true"]])));
    broker.wait_prompt();
    same(&broker.request(&ping("a")), &pong("a"));
    broker.approve();
    same(&client.answer(), &ok("asked", &[(0, "")], ""));
}

#[test]
fn a_stop_is_answered_and_the_daemon_exits_and_removes_its_socket() {
    let mut broker = broker();
    let request = with(stop("a"), json!({"session": "the-stopper"}));
    assert_eq!(broker.request(&request), stopped("a"));
    assert_eq!(broker.wait().cause, ExitCause::Code(0));
    assert!(!broker.socket().exists());
    broker.wait_screen("the-stopper");
}

#[test]
fn a_stop_does_not_wait_for_a_prompt() {
    let mut broker = broker();
    let mut pending = broker.send(&plain("asked", json!([["true"]])));
    broker.wait_prompt();
    same(&broker.request(&stop("a")), &stopped("a"));
    assert_eq!(broker.wait().cause, ExitCause::Code(0));
    // The pending client gets no `ok`.
    let rest = String::from_utf8(pending.rest()).unwrap();
    assert!(!rest.contains(r#""status":"ok""#), "{rest}");
}

#[test]
fn a_stop_that_fails_a_check_has_no_effect() {
    let mut broker = broker();
    let rows = [
        (with(stop("a"), json!({"time": ""})), error("a", "missing time field")),
        (
            with(stop("b"), json!({"forward_agent": true})),
            error("b", "forward_agent is only allowed for unprivileged commands"),
        ),
        (ping("c"), pong("c")),
        (stop("c"), error("c", "duplicate request id: c")),
    ];
    check(&broker, &rows);
    assert!(
        message(&broker.request(&with(stop("d"), json!({"time": stamp(-90)}))))
            .starts_with("request too old: ")
    );
    same(&broker.request(&ping("e")), &pong("e"));
    assert!(broker.terminal().runs());
}
