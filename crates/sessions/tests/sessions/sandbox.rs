//! A session in a sandbox: the kernel holds the agent, whatever mode it runs in.

use crate::kit::Host;
use serde_json::json;

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
