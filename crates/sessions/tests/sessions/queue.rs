//! The message queue, and which stream gets the events of queued messages.

use crate::kit::{Host, check_turns, kinds, terminal_event};
use serde_json::{Value, json};

fn contents(events: &[Value]) -> Vec<&str> {
    events
        .iter()
        .filter(|event| event["type"] == "text")
        .map(|event| event["content"].as_str().unwrap())
        .collect()
}

#[test]
fn a_busy_session_queues_and_reports_the_position() {
    let host = Host::start();
    let id = host.create();
    let mut running = host.run(&id, &["init", "wait @go", "result"]);
    running.event();
    for position in 1..=5 {
        let events = host.run(&id, &["text x", "result"]).rest();
        assert_eq!(events, [json!({ "type": "queued", "position": position, "turn": position + 1 })]);
        assert_eq!(host.stats(&id)["userPending"], position);
    }
    host.touch("go");
    running.rest();
    assert_eq!(host.stats(&id)["userPending"], 0);
}

#[test]
fn events_of_queued_messages_reach_the_open_stream_in_order() {
    let host = Host::start();
    let id = host.create();
    let mut running = host.run(&id, &["init", "wait @go", "text 1", "result"]);
    let mut events = vec![running.event()];
    for number in 2..=6 {
        host.run(&id, &[&format!("text {number}"), "result"]).rest();
    }
    host.touch("go");
    events.extend(running.rest());
    assert_eq!(check_turns(&events, 1), [1, 2, 3, 4, 5, 6]);
    assert_eq!(contents(&events), ["1", "2", "3", "4", "5", "6"]);
    // No event is delivered twice.
    assert_eq!(host.client().buffered(&id), Vec::<Value>::new());
}

#[test]
fn a_failed_turn_does_not_block_the_queue() {
    let host = Host::start();
    for last in ["exit 1", "signal SIGKILL", "exit 0"] {
        let id = host.create();
        let go = format!("wait @go-{}", last.replace(' ', "-"));
        let mut running = host.run(&id, &["init", &go, last]);
        running.event();
        host.run(&id, &["text next", "result"]).rest();
        host.touch(&go["wait @".len()..]);
        let events = running.rest();
        assert_eq!(kinds(&events), ["error", "text", "result"], "{last}");
    }
}

#[test]
fn events_are_buffered_for_a_disconnected_client() {
    let host = Host::start();
    let id = host.create();
    let mut running = host.run(&id, &["init", "wait @go", "text 1", "result"]);
    running.event();
    host.run(&id, &["text 2", "result"]).rest();
    drop(running);
    host.wait("the hang-up is seen", || (host.stats(&id)["clientConnected"] == false).then_some(()));
    host.touch("go");
    host.wait_status(&id, "idle");
    assert_eq!(host.stats(&id), json!({ "userPending": 0, "responsePending": 4, "clientConnected": false }));
    let events = host.client().buffered(&id);
    assert_eq!(contents(&events), ["1", "2"]);
    check_turns(&events, 2);
    assert_eq!(host.stats(&id), json!({ "userPending": 0, "responsePending": 0, "clientConnected": true }));
    assert_eq!(host.client().buffered(&id), Vec::<Value>::new(), "events are returned once");
    // A cursor still reads delivered events.
    assert_eq!(host.client().attach(&id, 1).rest(), events);
}

#[test]
fn a_message_that_was_not_queued_is_streamed_to_its_sender_only() {
    let host = Host::start();
    let id = host.create();
    // The first client does not read, so its stream is still open when the second one sends.
    let steps = ["init", "long 30000000", "result"];
    let first = host.run(&id, &steps);
    host.wait_status(&id, "idle");
    let second = host.run(&id, &["text mine", "result"]).rest();
    assert_eq!(contents(&second), ["mine"]);
    let mut first = first;
    let events = first.rest();
    assert_eq!(check_turns(&events, 1), [1], "the first stream ends with its own turn");
    terminal_event(&second, events.len() as u64 + 1);
}

#[test]
fn the_queue_is_bounded() {
    let host = Host::start();
    let id = host.create();
    let mut running = host.run(&id, &["init", "hang"]);
    running.event();
    let large = "x".repeat(2_000_000);
    let full =
        (1..=40).map(|_| host.client().send(&id, &large).rest()).find(|events| events[0]["type"] == "error");
    assert!(full.expect("an end")[0]["message"].as_str().unwrap().contains("full"));
    host.client().result("session.interrupt", json!({ "sessionId": id }));
    running.rest();
    assert_eq!(kinds(&host.run(&id, &["result"]).rest()), ["result"]);
}
