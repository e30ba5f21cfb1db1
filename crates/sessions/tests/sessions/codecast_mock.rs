//! The checks of codecast-daemon's own integration tests, with the prompts of its mock: `echo:TEXT`, `error`, `slow`,
//! `tools`.

use crate::kit::{Host, kinds, message, terminal_event};
use serde_json::json;

#[test]
fn echo_is_answered_with_init_partial_text_and_result() {
    let host = Host::start();
    let id = host.create();
    let events = host.client().send(&id, "echo:hello world").rest();
    assert_eq!(kinds(&events), ["system", "partial", "text", "result"]);
    assert_eq!(
        (&events[1]["content"], &events[2]["content"]),
        (&json!("hello world"), &json!("hello world"))
    );
    assert!(events[0]["session_id"].is_string() && events[3]["session_id"].is_string());
    assert_eq!(host.listed(&id)["sdkSessionId"], events[3]["session_id"]);
}

#[test]
fn echo_keeps_any_text() {
    let host = Host::start();
    let id = host.create();
    for text in
        ["ünï¢ødé 🎉", "quote \" and \\ back", "two\nlines", "<b>&amp;</b>", "$(touch /tmp/never) `id`"]
    {
        let events = host.client().send(&id, &format!("echo:{text}")).rest();
        assert_eq!(events[2]["content"], text);
    }
}

#[test]
fn an_error_is_reported_and_the_session_stays_usable() {
    let host = Host::start();
    let id = host.create();
    let events = host.client().send(&id, "error").rest();
    let error = terminal_event(&events, 1);
    assert!(message(error).starts_with("Claude process exited abnormally (code=1, signal=null)"), "{error}");
    assert!(message(error).contains("mock error"), "{error}");
    assert_eq!(host.listed(&id)["status"], "idle");
    assert_eq!(kinds(&host.client().send(&id, "echo:again").rest()).last(), Some(&"result"));
}

#[test]
fn tools_are_reported_with_their_input() {
    let host = Host::start();
    let id = host.create();
    let events = host.client().send(&id, "tools").rest();
    let tool = events.iter().find(|event| event["type"] == "tool_use").unwrap();
    assert_eq!((&tool["tool"], &tool["input"]), (&json!("Bash"), &json!({ "command": "ls -la" })));
}

#[test]
fn messages_queue_behind_slow_and_an_interrupt_ends_it() {
    let host = Host::start();
    let id = host.create();
    let mut slow = host.client().send(&id, "slow");
    slow.event();
    assert_eq!(host.listed(&id)["status"], "busy");
    assert_eq!(kinds(&host.client().send(&id, "echo:second").rest()), ["queued"]);
    let stopped = host.client().result("session.interrupt", json!({ "sessionId": id }));
    assert_eq!(stopped, json!({ "ok": true, "interrupted": true }));
    let events = slow.rest();
    assert!(kinds(&events).ends_with(&["interrupted", "interrupted"]), "{events:?}");
}

#[test]
fn slow_ends_by_itself() {
    let host = Host::start();
    let id = host.create();
    let events = host.client().send(&id, "slow").rest();
    assert_eq!(kinds(&events), ["system", "partial", "partial", "text", "result"]);
}

#[test]
fn the_lifecycle_of_a_session() {
    let host = Host::start();
    let client = host.client();
    let id = host.create();
    client.send(&id, "echo:1").rest();
    client.result("session.set_mode", json!({ "sessionId": id, "mode": "code" }));
    client.result("session.set_model", json!({ "sessionId": id, "model": "claude-opus" }));
    let events = client.send(&id, "echo:2").rest();
    assert_eq!(events[0]["model"], "claude-opus");
    let resumed =
        client.result("session.resume", json!({ "sessionId": id, "sdkSessionId": events[3]["session_id"] }));
    assert_eq!(resumed, json!({ "ok": true, "fallback": false }));
    assert_eq!(client.result("session.destroy", json!({ "sessionId": id })), json!({ "ok": true }));
    let after = client.send(&id, "echo:3").rest();
    assert_eq!(
        (kinds(&after), message(&after[0])),
        (vec!["error"], format!("Session not found: {id}").as_str())
    );
    assert_eq!(client.result("health.check", json!({}))["sessions"], 0);
}

#[test]
fn concurrent_sessions_are_independent() {
    let host = Host::start();
    let ids: Vec<String> = (0..5).map(|_| host.create()).collect();
    std::thread::scope(|scope| {
        for (number, id) in ids.iter().enumerate() {
            let client = host.client();
            scope.spawn(move || {
                for round in 0..5 {
                    let text = format!("{number}-{round}");
                    let events = client.send(id, &format!("echo:{text}")).rest();
                    assert_eq!(events[2]["content"], text);
                }
            });
        }
    });
}
