//! New binaries in place of old ones, good and bad, while processes run.

use crate::support::{cli, daemon, exit_code, outpost, read, said, sh};
use outpost_control::client::CallError;
use outpost_control::wire::UpgradeBinary;
use outpost_testkit::Daemon;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn upgrade(daemon: &Daemon, binary: &Path) -> Result<(), CallError> {
    daemon.connect().call("upgrade", &UpgradeBinary { path: binary.display().to_string() })
}

#[test]
fn an_upgrade_replaces_both_halves_and_no_child_notices() {
    let daemon = daemon();
    let process = sh(&daemon, "p", "echo before; read line; echo \"got $line\"; exit 4");
    assert_eq!(read(&daemon, &process.process, 7).0, b"before\n");
    let before = daemon.status();
    // Under another name, and gone from the disk afterwards: the daemon holds the file, not the path.
    let copy = daemon.dir().join("new-outpost");
    std::fs::copy(outpost(), &copy).unwrap();
    daemon.upgrade(&copy);
    let after = daemon.status();
    assert_eq!(after.keeper_pid, before.keeper_pid, "the keeper is replaced in place");
    let keeper = std::fs::read_link(format!("/proc/{}/exe", after.keeper_pid)).unwrap();
    assert_eq!(keeper, copy.canonicalize().unwrap());
    std::fs::remove_file(&copy).unwrap();
    daemon.kill(outpost_testkit::Which::Worker);
    let stdin =
        outpost_control::wire::Stdin { process: process.process.clone(), offset: None, data: "aGkK".into() };
    let _applied: outpost_control::wire::StdinApplied = daemon.ask("stdin", &stdin);
    let (output, exit) = read(&daemon, &process.process, usize::MAX);
    assert_eq!(String::from_utf8_lossy(&output), "before\ngot hi\n");
    assert_eq!(exit_code(exit), Some(4), "still its own child");
}

#[test]
fn a_binary_that_is_none_or_cannot_take_over_is_refused_and_nothing_changes() {
    let daemon = daemon();
    let process = sh(&daemon, "p", "echo before; read line; exit 4");
    let before = daemon.status();
    let fake = daemon.dir().join("fake");
    // The last one says yes to everything.
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
    let (told, code) = said(&daemon, &["stop", "--keep-children"]);
    assert_eq!((told.contains("still running: 1;"), code), (true, Some(0)), "{told}");
    for socket in ["exec.sock", "broker.sock", "approvals.sock", "sessions.port", "sessions.url"] {
        assert!(!daemon.dir().join("run").join(socket).exists(), "{socket}");
    }
    // It is there for its processes, and for nobody else.
    let input = serde_json::json!({"process": process.process, "offset": 0, "data": "b25lCg=="});
    let _applied: outpost_control::wire::StdinApplied = daemon.ask("stdin", &input);
    assert_eq!(read(&daemon, &process.process, 15).0, b"before\ngot one\n");
    let refused = cli(&daemon, &["run", "--", "true"]).output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("only keeps its processes"));
    assert!(said(&daemon, &["status"]).0.contains("was stopped and keeps its processes"));
    let other = cli(&daemon, &["serve", "--exec-websocket", "127.0.0.1:0"]).output().unwrap();
    let why = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(why.contains("other flags (--sessions-listen=127.0.0.1:0"), "{why}");
    let again = Daemon::start_in(outpost(), daemon.dir());
    assert_eq!(again.status().keeper_pid, keeper);
    assert!(daemon.dir().join("run/exec.sock").exists() && !again.status().keeping);
    assert_eq!(said(&again, &["run", "--", "echo", "serves"]).0, "serves\n");
    let input = serde_json::json!({"process": process.process, "offset": 4, "data": "dHdvCg=="});
    let _applied: outpost_control::wire::StdinApplied = again.ask("stdin", &input);
    let (): () = again.ask("closeStdin", &serde_json::json!({"process": process.process}));
    let (output, exit) = read(&again, &process.process, usize::MAX);
    assert_eq!(String::from_utf8_lossy(&output), "before\ngot one\ngot two\n");
    assert_eq!(exit.unwrap().code, Some(9));
    // With nothing to stay for it is a plain stop.
    let (told, _) = said(&again, &["stop", "--keep-children"]);
    assert!(told.contains("no process was running"), "{told}");
    assert!(!daemon.socket().exists());
}

/// "`kill` still reaches them": also the last one, with which the daemon ends.
#[test]
fn who_ends_the_last_process_that_is_kept_is_told() {
    for _ in 0..5 {
        let daemon = daemon();
        let (_, code) = said(&daemon, &["run", "--detach", "--name", "last", "--", "sleep", "1000"]);
        assert_eq!(code, Some(0));
        let (told, code) = said(&daemon, &["stop", "--keep-children"]);
        assert_eq!(code, Some(0), "{told}");
        assert_eq!(said(&daemon, &["kill", "last"]), ("ended\n".to_owned(), Some(0)));
    }
}

#[test]
fn a_start_while_the_last_kept_process_ends_succeeds_again_and_again() {
    let mut daemons = vec![daemon()];
    for round in 0..12 {
        let before = daemons.last().unwrap();
        let process = sh(before, "p", "echo here; exec sleep 1000");
        assert_eq!(read(before, &process.process, 5).0, b"here\n");
        let (told, code) = said(before, &["stop", "--keep-children"]);
        assert_eq!(code, Some(0), "{told}");
        let child = outpost_testkit::process(process.pid).unwrap();
        outpost_sys::pidfd::signal(&child, outpost_sys::signal::Signal::KILL).unwrap();
        // Not always at the same moment of the end: each round asks for the status once more before it starts.
        (0..round).for_each(|_| drop(said(before, &["status"])));
        let again = Daemon::start_in(outpost(), before.dir());
        assert!(!again.status().keeping, "round {round}");
        let (output, exit) = read(&again, &process.process, usize::MAX);
        assert_eq!(output, b"here\n", "round {round}");
        assert_eq!(exit.unwrap().signal, Some(9), "round {round}");
        daemons.push(again);
    }
}
