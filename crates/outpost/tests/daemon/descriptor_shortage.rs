//! A worker that runs out of descriptors for a moment.

use crate::support::{daemon, exit_code, read};
use outpost_control::client::{CallError, Client};
use outpost_control::wire::{Failure, Sandbox, SandboxPolicy, Spawn, Spawned};
use std::collections::BTreeSet;
use std::process::Command;

fn spawn_sandboxed(client: &mut Client) -> Result<Spawned, Failure> {
    let sandbox =
        Some(Sandbox { policy: SandboxPolicy::WorkspaceWrite, network: false, writable: Vec::new() });
    let spawn = Spawn { command: vec!["/bin/true".into()], sandbox, ..Spawn::default() };
    client.call("spawn", &spawn).map_err(|error| match error {
        CallError::Refused(failure) => failure,
        CallError::Lost(error) => panic!("{error}"),
    })
}

/// Sets the soft limit on descriptors of a process.
fn limit_descriptors(pid: u32, soft: &str) {
    let limit = format!("--nofile={soft}:");
    let set = Command::new("prlimit").args([format!("--pid={pid}"), limit]).status().unwrap();
    assert!(set.success());
}

fn soft_limit(pid: u32) -> String {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    line.split_whitespace().nth(3).unwrap().to_owned()
}

/// A descriptor limit that leaves the process room for one more file.
fn room_for_one(pid: u32) -> usize {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let open: BTreeSet<usize> =
        open.map(|entry| entry.file_name().to_str().unwrap().parse().unwrap()).collect();
    (0..).filter(|number| !open.contains(number)).nth(1).unwrap()
}

#[test]
fn a_transient_lack_of_descriptors_does_not_disable_sandboxes() {
    let daemon = daemon();
    let mut client = daemon.connect();
    let worker = daemon.status().worker_pid;
    let before = soft_limit(worker);
    limit_descriptors(worker, &room_for_one(worker).to_string());
    let refused = spawn_sandboxed(&mut client);
    limit_descriptors(worker, &before);
    let refused = refused.expect_err("a sandbox needs descriptors");
    let spawned = spawn_sandboxed(&mut client).unwrap();
    assert_eq!(exit_code(read(&daemon, &spawned.process, usize::MAX).1), Some(0));
    assert!(refused.message.contains("cannot probe the host's sandbox features"), "{refused:?}");
}
