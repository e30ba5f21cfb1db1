//! "server.*": "take no params, so a mistyped params on them is ignored and the call succeeds".

use crate::contract::table::{Row, answer, check};
use outpost_testkit::{Relay, TOKEN};

/// The daemon's version from the output of `-version`: `claustrum <id> (built <time>)`.
fn version(relay: &Relay) -> String {
    let line = String::from_utf8(relay.run(&["-version"]).stdout).unwrap();
    line.split(' ').nth(1).unwrap().to_owned()
}

fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

#[test]
fn server_methods_ignore_params() {
    let relay = Relay::start();
    let version = version(&relay);
    assert!(!version.is_empty());
    let methods = [
        "server.ping",
        "server.version",
        "server.capabilities",
        "server.shutdown",
        "files.list",
        "files.validate",
        "files.stat",
        "files.read",
        "files.extract_tar",
        "git.info",
        "git.status",
        "git.list_branches",
        "git.worktree_create",
        "git.worktree_remove",
        "process.spawn",
        "process.stdin",
        "process.kill",
        "process.killAndWait",
        "process.reattach",
    ];
    let methods = methods.map(|name| format!("\"{name}\"")).join(",");
    let expected = format!(r#"{{"version":"{version}","platform":"linux","arch":"{}"}}"#, architecture());
    let capabilities =
        format!(r#"{{"version":"{version}","methods":[{methods}],"features":["process.stdin.offset"]}}"#);
    let params = ["", "{}", "null", "[]", "5", "\"x\"", "true", r#"{"path":1,"id":[]}"#, r#"[{"x":1}]"#];
    let rows: Vec<Row<'_>> = params
        .iter()
        .flat_map(|params| {
            [
                ("server.ping", *params, r#"{"pong":true}"#),
                ("server.version", *params, expected.as_str()),
                ("server.capabilities", *params, capabilities.as_str()),
            ]
        })
        .collect();
    check(&mut relay.connect(), relay.dir(), &rows);
}

/// "no response — the daemon stops and the connection closes".
#[test]
fn shutdown_has_no_reply_and_closes_every_connection() {
    for params in ["", "[]"] {
        let relay = Relay::start();
        let mut idle = relay.connect();
        assert_eq!(idle.call("server.ping", ""), answer(r#"{"pong":true}"#));
        let mut client = relay.connect();
        client.request("server.shutdown", params);
        assert_eq!(client.try_line(), None);
        assert_eq!(idle.try_line(), None);
        assert!(!relay.socket().exists(), "the socket is still there");
    }
}

/// "an unauthenticated or wrong-token server.shutdown is rejected … and the daemon stays up".
#[test]
fn an_unauthorized_client_cannot_shut_it_down() {
    let relay = Relay::start();
    let mut client = relay.connect();
    for auth in ["\"\"", "\"wrong\"", "null"] {
        client.send(format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"server.shutdown\",\"auth\":{auth}}}\n"
        ));
        let refusal = answer("-32001 Unauthorized: invalid or missing auth token");
        assert_eq!(client.line(), format!("{{\"jsonrpc\":\"2.0\",\"id\":1,{refusal}}}"));
    }
    assert_eq!(client.call("server.ping", ""), answer(r#"{"pong":true}"#));
    assert_ne!(TOKEN, "wrong");
}
