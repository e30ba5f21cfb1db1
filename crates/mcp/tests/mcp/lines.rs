//! Robustness: malformed lines and unexpected messages do not stop the server.

use crate::kit::{Lines, broker, sh};
use serde_json::json;
use std::path::Path;

const GARBAGE: &str = "\n\r\nhello\n{\"jsonrpc\":\n\u{0}\u{1}\n\"text\"\n";

#[test]
fn malformed_lines_do_not_stop_the_server() {
    let mut client = Lines::start(Path::new("/nowhere"));
    client.send_raw(GARBAGE);
    // Messages that need no answer and must not stop the server.
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

/// The response to this request. Errors without an id, for JSON that is not a message, may precede it.
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
fn cancelling_an_unknown_request_has_no_effect() {
    let mut broker = broker();
    let mut client = Lines::initialized(&broker.socket());
    client.call(1, "execute", &sh("echo out"));
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}));
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {}}));
    broker.approve();
    let answer = until_id(&mut client, 1);
    assert_eq!(answer["result"]["structuredContent"]["stdout"], "out\n");
}
