//! Both MCP lifecycles with raw lines: `initialize` up to 2025, and `server/discover` since 2026.

use crate::kit::{Client, Lines, broker, sh};
use serde_json::{Value, json};
use std::path::Path;

/// The metadata of each request since 2026-07-28.
fn meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "modern", "version": "3"},
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

#[test]
fn every_version_with_a_handshake_is_supported() {
    for (asked, answered) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
    ] {
        let mut client = Lines::start(Path::new("/nowhere"));
        let result = client.initialize(asked)["result"].clone();
        assert_eq!(result["protocolVersion"], answered, "{asked}");
        assert_eq!(result["serverInfo"]["name"], "outpost");
        assert_eq!(result["serverInfo"]["version"], env!("CARGO_PKG_VERSION"));
        assert!(result["capabilities"]["tools"].is_object(), "{result}");
        assert!(result["instructions"].as_str().unwrap().contains("A denial is an answer"));
        client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        client.call(1, "status", &json!({}));
        let result = client.next()["result"].clone();
        assert_eq!(result["isError"], false, "{asked}");
        assert!(result.get("resultType").is_none(), "{asked} does not define it");
    }
}

#[test]
fn without_a_handshake_each_request_is_independent() {
    let mut broker = broker();
    let mut client = Lines::start(&broker.socket());
    client
        .send(&json!({"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta()}}));
    let found = client.next()["result"].clone();
    assert!(found["supportedVersions"].as_array().unwrap().contains(&json!("2026-07-28")), "{found}");
    assert_eq!(found["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "outpost");
    client.send(&json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {"_meta": meta()}}));
    let listed = client.next()["result"].clone();
    assert_eq!((&listed["resultType"], listed["tools"].as_array().unwrap().len()), (&json!("complete"), 2));
    assert!(listed["ttlMs"].is_number() && listed["cacheScope"].is_string(), "{listed}");
    let params = json!({"_meta": meta(), "name": "execute", "arguments": sh("echo out")});
    client.send(&json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": params}));
    broker.wait_prompt();
    assert!(broker.unread().contains("modern 3, pid "), "{}", broker.unread());
    broker.approve();
    let ran = client.next()["result"].clone();
    assert_eq!(
        (&ran["resultType"], &ran["structuredContent"]["stdout"]),
        (&json!("complete"), &json!("out\n"))
    );
}

#[test]
fn an_unknown_version_is_refused() {
    let mut client = Lines::start(Path::new("/nowhere"));
    let mut meta = meta();
    meta["io.modelcontextprotocol/protocolVersion"] = json!("2099-01-01");
    client.send(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}));
    assert_eq!(client.next()["error"]["code"], -32022);
}

#[tokio::test(flavor = "multi_thread")]
async fn rmcps_client_is_served_without_a_handshake() {
    let mut broker = broker();
    let mut client = Client::start_modern(&broker.socket()).await;
    assert_eq!(client.service.list_all_tools().await.unwrap().len(), 2);
    let asked = client.execute(sh("echo out"));
    assert!(client.progress.recv().await.is_some());
    broker.approve();
    assert_eq!(asked.result().await.fields["stdout"], "out\n");
}
