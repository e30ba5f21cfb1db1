//! Killed workers and keepers, and a replaced binary: clients that reconnect lose no data.

use super::{Follower, Gate, base64, is_alive, result, spawn_sh, text};
use outpost_testkit::{Half, Noise, Relay, RelayClient};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// Upgrades the daemon to a copy of its binary.
pub(super) fn upgrade(relay: &Relay) {
    let before = relay.status().unwrap().worker_pid;
    let copy = relay.path(&format!("outpost-{before}"));
    std::fs::copy(relay.binary(), &copy).unwrap();
    let mut sockets = std::fs::read_dir(relay.path("state/relay")).unwrap();
    let state = sockets.next().unwrap().unwrap().path();
    assert!(sockets.next().is_none());
    let mut upgrade = Command::new(relay.binary());
    upgrade.arg("--state-dir").arg(&state).arg("--runtime-dir").arg(&state);
    let output = upgrade.args(["upgrade", "--binary"]).arg(&copy).output().unwrap();
    assert!(output.status.success(), "{output:?}; log: {}", relay.log());
    assert!(text(&output.stdout).starts_with("upgraded: "), "{output:?}");
    let status = relay.status().unwrap();
    assert_ne!(status.worker_pid, before);
    for pid in [status.worker_pid, status.keeper_pid] {
        assert_eq!(std::fs::read_link(format!("/proc/{pid}/exe")).unwrap(), copy);
    }
}

/// Runs `disrupt` while a process writes lines as fast as it can and three clients follow it.
fn assert_streams_survive(disrupt: impl Fn(&Relay)) {
    let relay = Relay::start();
    let mut gate = Gate::new(&relay.path("gate"));
    let script =
        "i=0; while [ $i -lt 30000 ]; do echo line $i; i=$((i+1)); done; read x < gate; echo last; exit 6";
    let pid = spawn_sh(&mut relay.connect(), "p", script);
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let mut follower = Follower::new(&relay.socket(), "p");
            follower.read_until("\n");
            std::thread::spawn(move || {
                let exit = follower.read_to_exit();
                (exit, follower)
            })
        })
        .collect();
    disrupt(&relay);
    gate.open();
    let expected: String = (0..30000).map(|i| format!("line {i}\n")).chain(["last\n".into()]).collect();
    for reader in readers {
        let (exit, follower) = reader.join().unwrap();
        assert_eq!(exit, 6);
        assert!(follower.text() == expected, "{} bytes of {}", follower.bytes.len(), expected.len());
        assert!(follower.connections > 1, "no connection was lost");
    }
    assert!(!is_alive(pid));
}

#[test]
fn streams_survive_killed_workers_nemesis() {
    assert_streams_survive(|relay| (0..5).for_each(|_| relay.kill(Half::Worker)));
}

#[test]
fn streams_survive_killed_keepers_nemesis() {
    // A killed keeper closes no connection, so a worker is killed too.
    assert_streams_survive(|relay| {
        (0..3).for_each(|_| relay.kill(Half::Keeper));
        relay.kill(Half::Worker);
        relay.kill(Half::Keeper);
    });
}

#[test]
fn streams_survive_an_upgrade() {
    assert_streams_survive(|relay| (0..2).for_each(|_| upgrade(relay)));
}

/// The next line that is not a frame; `None` if the connection is lost.
fn next_reply(client: &mut RelayClient) -> Option<Value> {
    loop {
        let line: Value = serde_json::from_str(&client.try_line()?).unwrap();
        if line.get("type").is_none() {
            return Some(line);
        }
    }
}

/// Writes all input with offsets. After a reconnect, resumes at `stdinApplied`. Returns the number of connections.
fn write_all_stdin(socket: &Path, input: &[u8]) -> usize {
    let mut connections = 0;
    let mut applied = 0;
    while applied < input.len() {
        let mut client = RelayClient::connect(socket);
        connections += 1;
        if client.try_request("process.reattach", r#"{"id":"p","fromSeq":1000000000}"#).is_err() {
            continue;
        }
        let Some(reply) = next_reply(&mut client) else { continue };
        applied = usize::try_from(reply["result"]["stdinApplied"].as_u64().unwrap()).unwrap();
        while applied < input.len() {
            // Half of each chunk is sent twice, as after a lost reply.
            let begin = applied.saturating_sub(2500);
            let piece = &input[begin..input.len().min(applied + 5000)];
            let params = json!({"id": "p", "data": base64(piece), "offset": begin}).to_string();
            if client.try_request("process.stdin", &params).is_err() {
                break;
            }
            let Some(reply) = next_reply(&mut client) else { break };
            assert!(reply["result"]["applied"].is_u64(), "{reply}");
            applied = usize::try_from(reply["result"]["applied"].as_u64().unwrap()).unwrap();
        }
    }
    connections
}

#[test]
fn stdin_with_offsets_arrives_exactly_once_over_killed_workers_nemesis() {
    const BYTES: usize = 4_000_000;
    let relay = Relay::start();
    let input = Noise::new(11).letters(BYTES);
    let params =
        json!({"id": "p", "command": "/usr/bin/head", "args": ["-c", BYTES.to_string()], "wantPid": true});
    result(&relay.connect().call("process.spawn", &params.to_string()));
    let feeding = std::thread::spawn({
        let (socket, input) = (relay.socket(), input.clone());
        move || write_all_stdin(&socket, &input)
    });
    let mut kills = 0;
    while !feeding.is_finished() {
        relay.kill(if kills % 4 == 3 { Half::Keeper } else { Half::Worker });
        kills += 1;
    }
    let connections = feeding.join().unwrap();
    assert!(connections > 1 && kills > 1, "{connections} connections, {kills} kills");
    let mut follower = Follower::new(&relay.socket(), "p");
    assert_eq!(follower.read_to_exit(), 0);
    assert!(follower.bytes == input, "{} bytes of {BYTES}", follower.bytes.len());
}
