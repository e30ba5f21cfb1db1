//! Notices of an agent: readable text, and never before `init`.

use crate::kit::{Host, kinds, message, terminal_event};
use serde_json::{Value, json};

/// A host whose codex is interactive and warns before it has a thread.
fn host(variables: &[(&str, &str)]) -> Host {
    Host::start_with("", &[&[("FAKE_AGENT_VERSION", "0.166.0")], variables].concat())
}

fn assert_begins_with_init_then_warning(events: &[Value]) {
    let subtypes: Vec<&Value> = events.iter().take(2).map(|event| &event["subtype"]).collect();
    assert_eq!(subtypes, ["init", "warning"], "{events:#?}");
    assert!(message(&events[1]).starts_with("Codex could not find bubblewrap on PATH."), "{events:#?}");
}

#[test]
fn a_warning_before_the_thread_follows_init_as_text() {
    let host = host(&[]);
    let id = host.create_with(json!({ "cli_type": "codex" }));
    let api = r#"{\"error\": {\"message\": \"scripted error 400\", \"type\": \"invalid_request_error\"}}"#;
    let failed = format!(r#"line {{"method":"error","params":{{"error":{{"message":"{api}"}}}}}}"#);
    let events = host.run(&id, &[&failed]).rest();
    assert_eq!(terminal_event(&events, 1)["type"], "result", "{events:#?}");
    assert_eq!(kinds(&events), ["system", "system", "system", "result"]);
    assert_begins_with_init_then_warning(&events);
    assert_eq!(message(&events[2]), "scripted error 400");
}

#[test]
fn nemesis_a_warning_held_back_for_init_survives_the_worker() {
    let go = tempfile::tempdir().unwrap();
    let go = go.path().join("go");
    let host = host(&[("FAKE_AGENT_THREAD_WAITS_FOR", go.to_str().unwrap())]);
    let id = host.create_with(json!({ "cli_type": "codex" }));
    drop(host.run(&id, &[""]));
    let mark = host.path("state/sessions").join(&id).join("1.mark");
    host.wait("the warning is on disk", || {
        let text = std::fs::read(&mark).ok()?;
        text.windows(10).any(|word| word == b"bubblewrap").then_some(())
    });
    host.daemon().kill(outpost_testkit::Half::Worker);
    std::fs::write(&go, "").unwrap();
    let events = host.client().attach(&id, 0).rest();
    assert_eq!(terminal_event(&events, 1)["type"], "result", "{events:#?}");
    assert_eq!(events.len(), 3, "{events:#?}");
    assert_begins_with_init_then_warning(&events);
}

#[test]
fn a_warning_is_emitted_if_codex_ends_before_its_thread() {
    let host = host(&[("FAKE_AGENT_THREAD_WAITS_FOR", "/nowhere/to/be/found")]);
    let id = host.create_with(json!({ "cli_type": "codex" }));
    let mut running = host.run(&id, &[""]);
    let mark = host.path("state/sessions").join(&id).join("1.mark");
    host.wait("the warning is on disk", || {
        let text = std::fs::read(&mark).ok()?;
        text.windows(10).any(|word| word == b"bubblewrap").then_some(())
    });
    host.client().result("session.interrupt", json!({ "sessionId": id }));
    let events = running.rest();
    assert_eq!(kinds(&events), ["system", "interrupted"], "{events:#?}");
}
