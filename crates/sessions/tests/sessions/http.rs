//! The HTTP endpoint: methods, paths, content types, sizes, request forms, and access.

use crate::kit::Host;
use serde_json::json;

const JSON: (&str, &str) = ("content-type", "application/json");
const HEALTH: &str = r#"{"method":"health.check"}"#;

#[test]
fn only_post_to_rpc_is_an_rpc() {
    let host = Host::start();
    let client = host.client();
    for method in ["GET", "PUT", "DELETE", "OPTIONS"] {
        let answer = client.http(method, "/rpc", &[JSON], "");
        assert_eq!((answer.status, answer.headers.get("allow").map(String::as_str)), (405, Some("POST")));
    }
    for path in ["/", "/rpc/", "/health", "/RPC"] {
        assert_eq!(client.http("POST", path, &[JSON], HEALTH).status, 404, "{path}");
    }
    let answer = client.http("POST", "/rpc?x=1", &[JSON], HEALTH);
    assert_eq!((answer.status, answer.headers["content-type"].as_str()), (200, "application/json"));
    assert!(!answer.headers.contains_key("access-control-allow-origin"));
}

#[test]
fn an_invalid_body_is_refused_like_in_codecast_daemon() {
    let host = Host::start();
    let client = host.client();
    let cases = [
        (400, "not json"),
        (400, ""),
        (400, r#"{"method":"health.check""#),
        (422, "[]"),
        (422, r#"[{"method":"health.check"}]"#),
        (422, r#"{"method":7}"#),
        (422, "\"text\""),
    ];
    for (status, body) in cases {
        let answer = client.post(body);
        assert_eq!(answer.status, status, "{body}: {answer:?}");
        assert!(answer.headers["content-type"].starts_with("text/plain"), "{answer:?}");
        assert!(!answer.body.is_empty());
    }
}

#[test]
fn a_content_type_other_than_json_is_415() {
    let host = Host::start();
    let client = host.client();
    let with = |kind: &str| client.http("POST", "/rpc", &[("content-type", kind)], HEALTH).status;
    assert_eq!(client.http("POST", "/rpc", &[], HEALTH).status, 415);
    assert_eq!(with("text/plain"), 415);
    assert_eq!(with("application/x-www-form-urlencoded"), 415);
    assert_eq!(with("application/jsonx"), 415);
    assert_eq!(with("application/json; charset=utf-8"), 200);
    assert_eq!(with("Application/JSON"), 200);
    assert_eq!(with("application/vnd.x+json"), 200);
}

#[test]
fn a_body_over_2_mib_is_413() {
    let host = Host::start();
    let client = host.client();
    let body = |size: usize| {
        let frame = json!({ "method": "health.check", "params": { "x": "" } }).to_string();
        frame.replace("\"\"", &format!("\"{}\"", "x".repeat(size - frame.len())))
    };
    assert_eq!(client.post(&body(2 * 1024 * 1024)).status, 200);
    assert_eq!(client.post(&body(2 * 1024 * 1024 + 1)).status, 413);
}

#[test]
fn requests_of_web_pages_are_refused() {
    let host = Host::start();
    let client = host.client();
    let with = |name: &str, value: &str| client.http("POST", "/rpc", &[JSON, (name, value)], HEALTH).status;
    for origin in ["http://evil.example", "null", "http://127.0.0.1:9100", "http://localhost"] {
        assert_eq!(with("origin", origin), 403, "{origin}");
    }
    for name in ["evil.example", "evil.example:9100", "127.0.0.1.evil.example", "localhost.evil.example", ""]
    {
        assert_eq!(with("host", name), 403, "{name}");
    }
    for name in ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:80", "[::1]:9100", "127.8.9.1"] {
        assert_eq!(with("host", name), 200, "{name}");
    }
    // Access is checked first, also for unknown paths.
    let answer = client.http("GET", "/nothing", &[("host", "evil.example")], "");
    assert_eq!(answer.status, 403);
}

#[test]
fn ids_of_any_type_are_echoed_verbatim() {
    let host = Host::start();
    let client = host.client();
    let answer = |id: &str| client.post(&format!("{{\"method\":\"session.list\",\"id\":{id}}}"));
    for id in ["\"a\"", "\"\"", "1", "0", "-7", "1.50", "1e3", "12345678901234567890123", "\"\\u00e9\""] {
        let answer = answer(id);
        assert_eq!(answer.status, 200);
        assert!(answer.body.ends_with(&format!(",\"id\":{id}}}")), "{id}: {}", answer.body);
    }
    for body in [r#"{"method":"session.list"}"#, r#"{"method":"session.list","id":null}"#] {
        assert_eq!(client.post(body).json(), json!({ "result": { "sessions": [] } }));
    }
    for id in ["{}", "[]", "true"] {
        assert_eq!(answer(id).json()["error"]["code"], -32600, "{id}");
    }
    // In errors, and in responses that are built on a blocking thread.
    let unknown = client.post(r#"{"jsonrpc":"2.0","method":"nope","id":7}"#).json();
    assert_eq!(unknown, json!({ "error": { "code": -32601, "message": "Method not found: nope" }, "id": 7 }));
    for method in ["monitor.sessions", "health.check"] {
        assert_eq!(client.post(&json!({ "method": method, "id": 8 }).to_string()).json()["id"], 8);
    }
    let body =
        json!({ "method": "session.reconnect", "params": { "sessionId": "x" }, "id": "r" }).to_string();
    assert_eq!(client.post(&body).json(), json!({ "result": { "bufferedEvents": [] }, "id": "r" }));
}

#[test]
fn a_request_without_method_is_32600() {
    let host = Host::start();
    for body in ["{}", r#"{"method":null}"#, r#"{"params":{}}"#] {
        let error = json!({ "code": -32600, "message": "Invalid request: missing method" });
        assert_eq!(host.client().post(body).json(), json!({ "error": error }), "{body}");
    }
}

#[test]
fn the_interface_documents_are_served() {
    let host = Host::start();
    let client = host.client();
    let openapi = client.http("GET", "/openapi.json", &[], "").json();
    assert!(openapi["openapi"].as_str().unwrap().starts_with("3."), "{openapi}");
    assert!(openapi["paths"]["/rpc"]["post"].is_object());
    let schema = client.http("GET", "/events.schema.json", &[], "").json();
    assert!(schema["$schema"].is_string(), "{schema}");
}
