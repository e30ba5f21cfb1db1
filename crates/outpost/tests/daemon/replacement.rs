//! New binaries in place of old ones, good and bad, while processes run.

use crate::support::{daemon, exit_code, outpost, read, sh};
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
    for contents in ["no program at all", "#!/bin/sh\nexit 1\n"] {
        std::fs::write(&fake, contents).unwrap();
        std::fs::set_permissions(&fake, std::fs::Permissions::from_mode(0o755)).unwrap();
        match upgrade(&daemon, &fake) {
            Err(CallError::Refused(failure)) => assert!(failure.message.contains("Keeper"), "{failure:?}"),
            other => panic!("{contents:?}: {other:?}"),
        }
    }
    let after = daemon.status();
    assert_eq!((after.worker_pid, after.keeper_pid), (before.worker_pid, before.keeper_pid));
    assert_eq!(read(&daemon, &process.process, 7).0, b"before\n");
}
