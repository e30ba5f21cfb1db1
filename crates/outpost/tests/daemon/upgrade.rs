//! Upgrades to good and bad binaries, and stops that keep the processes for the next daemon.

use crate::support::{cli, daemon, exit_code, outpost, read, sh, stdout_and_code};
use outpost_control::client::CallError;
use outpost_control::wire::UpgradeBinary;
use outpost_testkit::Daemon;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn upgrade(daemon: &Daemon, binary: &Path) -> Result<(), CallError> {
    daemon.connect().call("upgrade", &UpgradeBinary { path: binary.display().to_string() })
}

#[test]
fn an_upgrade_replaces_keeper_and_worker_and_keeps_children() {
    let daemon = daemon();
    let process = sh(&daemon, "p", "echo before; read line; echo \"got $line\"; exit 4");
    assert_eq!(read(&daemon, &process.process, 7).0, b"before\n");
    let before = daemon.status();
    // The copy has another name and is unlinked afterwards: the daemon holds the file, not the path.
    let copy = daemon.dir().join("new-outpost");
    std::fs::copy(outpost(), &copy).unwrap();
    daemon.upgrade(&copy);
    let after = daemon.status();
    assert_eq!(after.keeper_pid, before.keeper_pid, "the keeper is replaced in place");
    let keeper = std::fs::read_link(format!("/proc/{}/exe", after.keeper_pid)).unwrap();
    assert_eq!(keeper, copy.canonicalize().unwrap());
    std::fs::remove_file(&copy).unwrap();
    daemon.kill(outpost_testkit::Half::Worker);
    let stdin =
        outpost_control::wire::Stdin { process: process.process.clone(), offset: None, data: "aGkK".into() };
    let _applied: outpost_control::wire::StdinApplied = daemon.ask("stdin", &stdin);
    let (output, exit) = read(&daemon, &process.process, usize::MAX);
    assert_eq!(String::from_utf8_lossy(&output), "before\ngot hi\n");
    assert_eq!(exit_code(exit), Some(4), "still its own child");
}

#[test]
fn an_unusable_binary_is_refused_and_nothing_changes() {
    let daemon = daemon();
    let process = sh(&daemon, "p", "echo before; read line; exit 4");
    let before = daemon.status();
    let fake = daemon.dir().join("fake");
    // The last one exits with success whatever its arguments are.
    for contents in ["no program at all", "#!/bin/sh\nexit 1\n", "#!/bin/sh\nexit 0\n"] {
        std::fs::write(&fake, contents).unwrap();
        std::fs::set_permissions(&fake, std::fs::Permissions::from_mode(0o755)).unwrap();
        match upgrade(&daemon, &fake) {
            Err(CallError::Refused(failure)) => assert!(failure.message.contains("keeper"), "{failure:?}"),
            other => panic!("{contents:?}: {other:?}"),
        }
    }
    let after = daemon.status();
    assert_eq!((after.worker_pid, after.keeper_pid), (before.worker_pid, before.keeper_pid));
    assert_eq!(read(&daemon, &process.process, 7).0, b"before\n");
}

#[test]
fn a_daemon_that_is_stopped_can_keep_its_processes_for_the_next() {
    let daemon = daemon();
    let script = "echo before; while read line; do echo \"got $line\"; done; exit 9";
    let process = sh(&daemon, "p", script);
    assert_eq!(read(&daemon, &process.process, 7).0, b"before\n");
    let keeper = daemon.status().keeper_pid;
    let (message, code) = stdout_and_code(&daemon, &["stop", "--keep-children"]);
    assert_eq!((message.contains("still running: 1;"), code), (true, Some(0)), "{message}");
    for socket in
        ["exec.sock", "broker.sock", "approvals.sock", "sessions.sock", "sessions.port", "sessions.url"]
    {
        assert!(!daemon.dir().join("run").join(socket).exists(), "{socket}");
    }
    // The stopped daemon serves its existing processes only.
    let input = serde_json::json!({"process": process.process, "offset": 0, "data": "b25lCg=="});
    let _applied: outpost_control::wire::StdinApplied = daemon.ask("stdin", &input);
    assert_eq!(read(&daemon, &process.process, 15).0, b"before\ngot one\n");
    let refused = cli(&daemon, &["run", "--", "true"]).output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("only keeps its processes"));
    assert!(stdout_and_code(&daemon, &["status"]).0.contains("is stopped and keeps its processes"));
    let other = cli(&daemon, &["serve", "--exec-websocket", "127.0.0.1:0"]).output().unwrap();
    let why = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(why.contains("other flags (--sessions-listen=127.0.0.1:0"), "{why}");
    let again = Daemon::start_in(outpost(), daemon.dir());
    assert_eq!(again.status().keeper_pid, keeper);
    assert!(daemon.dir().join("run/exec.sock").exists() && !again.status().keeping);
    assert_eq!(stdout_and_code(&again, &["run", "--", "echo", "serves"]).0, "serves\n");
    let input = serde_json::json!({"process": process.process, "offset": 4, "data": "dHdvCg=="});
    let _applied: outpost_control::wire::StdinApplied = again.ask("stdin", &input);
    let (): () = again.ask("closeStdin", &serde_json::json!({"process": process.process}));
    let (output, exit) = read(&again, &process.process, usize::MAX);
    assert_eq!(String::from_utf8_lossy(&output), "before\ngot one\ngot two\n");
    assert_eq!(exit.unwrap().code, Some(9));
    // Without running processes this is a plain stop.
    let (message, _) = stdout_and_code(&again, &["stop", "--keep-children"]);
    assert!(message.contains("no process was running"), "{message}");
    assert!(!daemon.socket().exists());
}

/// "`kill` still reaches them": this includes the last process, with which the daemon ends.
#[test]
fn a_kill_of_the_last_kept_process_gets_its_reply() {
    for _ in 0..5 {
        let daemon = daemon();
        let (_, code) =
            stdout_and_code(&daemon, &["run", "--detach", "--name", "last", "--", "sleep", "1000"]);
        assert_eq!(code, Some(0));
        let (message, code) = stdout_and_code(&daemon, &["stop", "--keep-children"]);
        assert_eq!(code, Some(0), "{message}");
        assert_eq!(
            stdout_and_code(&daemon, &["kill", "last"]),
            ("last: terminated (SIGTERM)\n".to_owned(), Some(0))
        );
    }
}

#[test]
fn a_start_that_races_with_the_exit_of_the_last_kept_process_succeeds() {
    let mut daemons = vec![daemon()];
    for round in 0..12 {
        let before = daemons.last().unwrap();
        let process = sh(before, "p", "echo here; exec sleep 1000");
        assert_eq!(read(before, &process.process, 5).0, b"here\n");
        let (message, code) = stdout_and_code(before, &["stop", "--keep-children"]);
        assert_eq!(code, Some(0), "{message}");
        let child = outpost_testkit::process(process.pid).unwrap();
        outpost_sys::pidfd::signal(&child, outpost_sys::signal::Signal::KILL).unwrap();
        // Vary the time of the start: each round makes one more status request first.
        (0..round).for_each(|_| drop(stdout_and_code(before, &["status"])));
        let again = Daemon::start_in(outpost(), before.dir());
        assert!(!again.status().keeping, "round {round}");
        let (output, exit) = read(&again, &process.process, usize::MAX);
        assert_eq!(output, b"here\n", "round {round}");
        assert_eq!(exit.unwrap().signal, Some(9), "round {round}");
        daemons.push(again);
    }
}
