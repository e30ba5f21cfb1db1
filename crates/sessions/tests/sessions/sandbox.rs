//! A session in a sandbox: the kernel holds the agent, whatever mode it runs in.

use crate::kit::Host;
use outpost_testkit::Which;
use serde_json::json;
use std::process::Command;

#[test]
fn an_agent_in_a_sandbox_writes_only_where_it_may() {
    let host = Host::start();
    let write = ["init", "touch @project/made", "result"];
    let held = host.create_with(json!({ "sandbox": { "type": "readOnly" } }));
    let events = host.run(&held, &write).rest();
    assert_eq!(events.last().unwrap()["type"], "error", "{events:?}");
    assert!(!host.path("project/made").exists());
    let open = host.create_with(json!({ "sandbox": { "type": "workspaceWrite", "networkAccess": false } }));
    let events = host.run(&open, &write).rest();
    assert_eq!(events.last().unwrap()["type"], "result", "{events:?}");
    assert!(host.path("project/made").exists());
    // What is refused to it stays so when the daemon is another.
    std::fs::remove_file(host.path("project/made")).unwrap();
    let mut host = host;
    host.restart();
    let events = host.run(&held, &write).rest();
    assert_eq!(events.last().unwrap()["type"], "error", "{events:?}");
    assert!(!host.path("project/made").exists());
}

#[test]
fn a_sandbox_that_is_not_understood_is_refused() {
    let host = Host::start();
    let project = host.path("project");
    for sandbox in [
        json!("readOnly"),
        json!({ "type": "open" }),
        json!({ "type": "readOnly", "writableRoots": [] }),
        json!({ "type": "workspaceWrite", "writableRoots": ["relative"] }),
    ] {
        let params = json!({ "path": project, "sandbox": sandbox });
        let (code, message) = host.client().error("session.create", params);
        assert_eq!(code, -32602, "{message}");
        assert!(message.starts_with("Invalid param: sandbox: "), "{message}");
    }
}

const SET_SANDBOX: &str = "import sqlite3, sys
books = sqlite3.connect(sys.argv[1], timeout=30)
books.execute('update sessions set sandbox = ? where id = ?', sys.argv[2:])
books.commit()";

/// A newer version, or a hand, wrote what this one cannot read. Without its sandbox the agent must not run.
#[test]
fn a_stored_sandbox_that_cannot_be_read_refuses_the_turn() {
    let host = Host::start();
    let stored = ["{", r#"{"type":"vault"}"#, r#"{"type":"readOnly","more":1}"#, "null", ""];
    let relative = r#"{"type":"workspaceWrite","writableRoots":["x"]}"#;
    for (number, stored) in stored.into_iter().chain([relative]).enumerate() {
        let session = host.create_with(json!({ "sandbox": { "type": "readOnly" } }));
        let books = host.path("state/approvals/approvals.db");
        let mut change = Command::new("python3");
        change.args(["-c", SET_SANDBOX]).arg(books).args([stored, &session]);
        let changed = change.output().unwrap();
        assert!(changed.status.success(), "{changed:?}");
        host.daemon().kill(Which::Worker);
        let made = format!("made-{number}");
        let events = host.run(&session, &["init", &format!("touch @{made}"), "result"]).rest();
        let last = events.last().unwrap();
        let message = last["message"].as_str().unwrap_or_default();
        assert!(last["type"] == "error" && message.contains("stored sandbox cannot be read"), "{last}");
        assert!(message.contains("create it again"), "{last}");
        assert!(!host.path(&made).exists());
    }
}
