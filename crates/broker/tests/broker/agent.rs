//! `forward_agent`: unprivileged commands that request it get the daemon's agent socket. No other command does.

use crate::kit::{broker, error, ok, plain, privilege, same, sh, with};
use outpost_testkit::{Broker, BrokerOptions, available, stamp};
use serde_json::json;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use tempfile::TempDir;

const PRINT: &str = "printf %s \"${SSH_AUTH_SOCK-none}\"";

/// A daemon with an SSH agent whose socket exists.
fn with_agent() -> (Broker, PathBuf, (UnixListener, TempDir)) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("agent.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let broker = Broker::start(&BrokerOptions::default().env("SSH_AUTH_SOCK", socket.to_str().unwrap()));
    (broker, socket, (listener, dir))
}

#[test]
fn a_command_that_requests_the_agent_gets_the_daemons_socket() {
    let (mut broker, socket, _agent) = with_agent();
    let request = with(sh("a", PRINT), json!({"forward_agent": true}));
    let mut client = broker.send(&request);
    broker.wait_prompt();
    assert!(broker.unread().to_lowercase().contains("agent"), "{}", broker.unread());
    broker.approve();
    same(&client.answer(), &ok("a", &[(0, "")], socket.to_str().unwrap()));
}

#[test]
fn every_stage_gets_the_agent() {
    let (mut broker, socket, _agent) = with_agent();
    let stage = json!(["sh", "-c", format!("cat; {PRINT}")]);
    let request = with(plain("a", json!([stage, stage])), json!({"forward_agent": true}));
    let twice = socket.to_str().unwrap().repeat(2);
    same(&broker.run(&request), &ok("a", &[(0, ""), (0, "")], &twice));
}

#[test]
fn a_command_without_the_request_gets_no_agent() {
    let (mut broker, _, _agent) = with_agent();
    same(&broker.run(&sh("a", PRINT)), &ok("a", &[(0, "")], "none"));
    let request = with(sh("b", PRINT), json!({"forward_agent": false}));
    same(&broker.run(&request), &ok("b", &[(0, "")], "none"));
    if available!(privilege()).is_some() {
        let privileged = json!({"id": "c", "time": stamp(0), "pipeline": [["sh", "-c", PRINT]]});
        same(&broker.run(&privileged), &ok("c", &[(0, "")], "none"));
    }
}

#[test]
fn without_an_agent_the_request_has_no_effect() {
    let mut broker = broker();
    let request = with(sh("a", PRINT), json!({"forward_agent": true}));
    same(&broker.run(&request), &ok("a", &[(0, "")], "none"));
}

#[test]
fn a_privileged_command_never_gets_the_agent() {
    let (broker, _, _agent) = with_agent();
    let request = json!({"id": "a", "time": stamp(0), "pipeline": [["true"]], "privileged": true, "forward_agent": true});
    same(&broker.request(&request), &error("a", "forward_agent is only allowed for unprivileged commands"));
}

#[test]
fn a_request_cannot_set_the_agent_socket() {
    let (broker, _, _agent) = with_agent();
    let more = json!({"forward_agent": true, "env": {"SSH_AUTH_SOCK": "/tmp/other.sock"}});
    let message = "SSH_AUTH_SOCK cannot be set in request env; use forward_agent instead";
    same(&broker.request(&with(sh("a", PRINT), more)), &error("a", message));
}
