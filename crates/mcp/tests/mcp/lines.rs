//! Lines that are no messages, and messages that come when they should not: none of them ends the server.

use crate::kit::{Lines, broker, sh};
use serde_json::json;
use std::path::Path;

const GARBAGE: &str = "\n\r\nhello\n{\"jsonrpc\":\n\u{0}\u{1}\n\"text\"\n";

#[test]
fn garbage_ends_nothing_before_the_handshake_nor_after() {
    let mut client = Lines::start(Path::new("/nowhere"));
    client.send_raw(GARBAGE);
    // Not ours to answer, and not a reason to leave.
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}}));
    client.send(&json!({"jsonrpc": "2.0", "id": 9, "result": {}}));
    client.send(&json!({"jsonrpc": "2.0", "id": 0, "method": "ping"}));
    until_id(&mut client, 0);
    client.initialize("2025-06-18");
    client.send_raw(GARBAGE);
    client.send(&json!({"jsonrpc": "2.0", "id": 5, "method": "no/such/method"}));
    assert!(until_id(&mut client, 5)["error"]["code"].is_number());
    client.call(6, "no_such_tool", &json!({}));
    assert!(until_id(&mut client, 6)["error"]["code"].is_number());
    client.call(7, "status", &json!({"unknown": 1}));
    assert_eq!(until_id(&mut client, 7)["result"]["isError"], true);
    client.call(8, "status", &json!({}));
    assert_eq!(until_id(&mut client, 8)["result"]["structuredContent"]["running"], false);
}

/// The answer to this request; what is JSON but no message may be answered before it, without an id.
fn until_id(client: &mut Lines, id: u64) -> serde_json::Value {
    loop {
        let message = client.next();
        if message["id"] == id {
            return message;
        }
        assert_eq!(message["error"]["code"], -32600, "{message}");
    }
}

#[test]
fn cancelling_what_is_not_there_hurts_nobody() {
    let mut broker = broker();
    let mut client = Lines::initialized(&broker.socket());
    client.call(1, "execute", &sh("echo out"));
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}));
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {}}));
    broker.approve();
    let answer = until_id(&mut client, 1);
    assert_eq!(answer["result"]["structuredContent"]["stdout"], "out\n");
}
