//! The Python package `mcp` as the client, in both MCP lifecycles. `scripts/setup-tests` installs it.

use crate::kit::{TIMEOUT, broker, outpost};
use outpost_testkit::Broker;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

/// The interpreter of the virtual environment that `scripts/setup-tests` creates in the target directory.
fn python() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let python = target.join("python-tests/bin/python");
    assert!(python.exists(), "{} is missing: run scripts/setup-tests, which installs it", python.display());
    python
}

struct Script {
    child: Child,
    steps: mpsc::Receiver<Value>,
}

impl Script {
    fn start(mode: &str, socket: &Path) -> Script {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp/client.py");
        let mut command = Command::new(python());
        command.arg(script).arg(mode).arg(outpost()).arg(socket).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, steps) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _closed = sender.send(serde_json::from_str(&line).unwrap());
            }
        });
        Script { child, steps }
    }

    /// The output of the next step, which must have this name.
    fn step(&mut self, name: &str) -> Value {
        let step = self.steps.recv_timeout(TIMEOUT).unwrap_or_else(|error| panic!("no {name}: {error}"));
        assert_eq!(step["step"], name, "{step}");
        step
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _exited = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn check_serves(mode: &str, version: &str) {
    let mut broker = broker();
    let mut script = Script::start(mode, &broker.socket());
    let tools = script.step("tools");
    assert_eq!(tools["names"], serde_json::json!(["execute", "status"]));
    assert_eq!(tools["version"], version);
    assert_eq!(script.step("status")["fields"]["running"], true);
    let progress = script.step("progress");
    assert!(progress["message"].as_str().unwrap().starts_with("waiting for a human"), "{progress}");
    broker.approve();
    let approved = script.step("approved");
    assert_eq!(
        (&approved["error"], &approved["fields"]["stdout"]),
        (&false.into(), &"out\n".into()),
        "{approved}"
    );
    broker.deny();
    let denied = script.step("denied");
    assert_eq!((&denied["error"], &denied["fields"]["status"]), (&true.into(), &"denied".into()), "{denied}");
    let unknown = script.step("unknown");
    assert!(unknown["text"].as_str().unwrap().contains("unknown field `shell`"), "{unknown}");
    script.step("abandoned");
    if !Broker::is_original() {
        broker.wait_screen("Withdrawn");
    }
    assert_eq!(script.step("after")["fields"]["running"], true);
    assert!(script.child.wait().unwrap().success());
}

#[test]
fn the_python_client_is_served_with_a_handshake() {
    check_serves("legacy", "2025-11-25");
}

#[test]
fn the_python_client_is_served_without_a_handshake() {
    check_serves("2026-07-28", "2026-07-28");
}

#[test]
fn the_python_client_in_auto_mode_uses_the_newer_version() {
    check_serves("auto", "2026-07-28");
}
