//! A restart of the whole daemon: sessions, settings, queued messages and unread events survive.

use crate::kit::{Host, check_turns, kinds, terminal_event};
use serde_json::{Value, json};

#[test]
fn nemesis_sessions_and_their_settings_survive_a_restart() {
    let mut host = Host::start();
    let id = host.create_with(json!({ "mode": "code", "model": "m-1", "cli_type": "claude" }));
    let other = host.create_with(json!({ "cli_type": "codex" }));
    host.run(&id, &["init", "session mine", "result"]).rest();
    host.client().result("session.set_mode", json!({ "sessionId": id, "mode": "plan" }));
    let before = [host.listed(&id), host.listed(&other)];
    host.restart();
    let after = [host.listed(&id), host.listed(&other)];
    assert_eq!(before[1], after[1], "word for word");
    let strip = |mut session: Value| {
        // The end of the turn updates it, possibly after the first listing.
        let text = session["lastActivityAt"].as_str().unwrap().chars().take(19).collect::<String>();
        session["lastActivityAt"] = text.into();
        session
    };
    assert_eq!(before.map(strip), after.map(strip));
    host.run(&id, &["record @argv", "result"]).rest();
    let argv = host.wait_record("argv")["argv"].to_string();
    assert!(
        argv.contains("\"--resume\",\"mine\"") && argv.contains("\"plan\"") && argv.contains("m-1"),
        "{argv}"
    );
    host.client().result("session.destroy", json!({ "sessionId": id }));
    host.restart();
    assert!(host.listed(&id).is_null() && !host.listed(&other).is_null());
}

#[test]
fn nemesis_unread_events_survive_a_restart_and_are_delivered_once() {
    let mut host = Host::start();
    let id = host.create();
    let mut stream = host.run(&id, &["init", "wait @go", "count 1 100", "result"]);
    let first = stream.event();
    drop(stream);
    host.wait("the hang-up is seen", || (host.stats(&id)["clientConnected"] == false).then_some(()));
    host.touch("go");
    host.wait_status(&id, "idle");
    host.restart();
    assert_eq!(host.stats(&id)["responsePending"], 101);
    let mut all = vec![first];
    all.extend(host.client().buffered(&id));
    terminal_event(&all, 1);
    host.restart();
    assert_eq!(host.client().buffered(&id), Vec::<Value>::new());
    assert_eq!(host.client().attach(&id, 0).rest(), all);
    let next = host.run(&id, &["result"]).rest();
    assert_eq!(
        (terminal_event(&next, 103)["type"].as_str(), next[0]["turn"].as_u64()),
        (Some("result"), Some(2))
    );
}

#[test]
fn nemesis_running_and_queued_turns_end_after_a_restart() {
    let mut host = Host::start();
    let id = host.create();
    let mut stream = host.run(&id, &["init", "touch @pid", "hang"]);
    let first = stream.event();
    host.run(&id, &["init", "text after", "result"]).rest();
    host.wait_file("pid");
    host.restart();
    let mut all = vec![first];
    all.extend(host.client().attach(&id, 1).rest());
    // The old daemon ended the CLI; the next daemon runs the queued message.
    assert_eq!(check_turns(&all, 1), [1, 2]);
    assert_eq!(kinds(&all), ["system", "error", "system", "text", "result"], "{all:?}");
    assert!(!crate::kit::is_running(&host.wait_file("pid")));
}

/// Many sessions per millisecond, the precision of their timestamps.
#[test]
fn nemesis_sessions_are_listed_in_the_order_they_were_created() {
    let mut host = Host::start();
    let listed = |host: &Host| -> Vec<String> {
        let listed = host.client().result("session.list", json!({}));
        let ids = listed["sessions"].as_array().unwrap().iter().map(|session| &session["sessionId"]);
        ids.map(|id| id.as_str().unwrap().to_owned()).collect()
    };
    let mut created: Vec<String> = (0..200).map(|_| host.create()).collect();
    assert_eq!(listed(&host), created);
    host.daemon().kill(outpost_testkit::Half::Worker);
    assert_eq!(listed(&host), created, "after the worker");
    // The order numbers of destroyed sessions are not reused.
    host.client().result("session.destroy", json!({ "sessionId": created.pop().unwrap() }));
    host.client().result("session.destroy", json!({ "sessionId": created.remove(100) }));
    host.restart();
    assert_eq!(listed(&host), created, "after the daemon");
    created.extend((0..50).map(|_| host.create()));
    assert_eq!(listed(&host), created);
}
