//! The shutdown: SIGTERM, a grace time, SIGKILL, and a report of each exit.

use crate::support::{cli, daemon, outpost, read, sh};
use outpost_control::client::CallError;
use outpost_control::wire::WakeRelay;
use outpost_sys::epoll::wait_readable;
use outpost_sys::pidfd;
use outpost_sys::signal::Signal;
use outpost_testkit::Daemon;
use serde_json::json;
use std::process::Stdio;
use std::time::Duration;

/// Longer than any test runs: a stop that waits for it has failed.
const LONG_GRACE: &str = "[processes]\nstop_grace_s = 600\n";

#[test]
fn a_process_can_end_by_itself_when_the_daemon_stops() {
    let daemon = daemon();
    let process =
        sh(&daemon, "p", "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done").process;
    assert_eq!(read(&daemon, &process, 6).0, b"ready\n");
    let stopped = cli(&daemon, &["stop"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&stopped.stdout), "p: exited 3\n", "{stopped:?}");
    let again = Daemon::start_in(outpost(), daemon.dir());
    let (output, exit) = read(&again, &process, usize::MAX);
    // The shell also reports that its `sleep` was terminated, before the trap or after it.
    let written = String::from_utf8(output).unwrap();
    assert_eq!(written.replace("Terminated\n", ""), "ready\nbye\n", "{written:?}");
    assert_eq!(exit.unwrap().code, Some(3));
}

#[test]
fn a_process_that_ignores_sigterm_is_killed_after_the_grace_time() {
    let daemon = daemon();
    let process = sh(&daemon, "p", "trap '' TERM; echo ready; while :; do sleep 0.05; done").process;
    assert_eq!(read(&daemon, &process, 6).0, b"ready\n");
    let stopped = cli(&daemon, &["stop", "--grace", "1"]).output().unwrap();
    let expected = "p: terminated by SIGKILL: it or a descendant did not exit within 1 s\n";
    assert_eq!(String::from_utf8_lossy(&stopped.stdout), expected, "{stopped:?}");
    let explained = String::from_utf8_lossy(&stopped.stderr).into_owned();
    assert!(explained.contains("stopping: 1 processes have"), "{explained}");
}

#[test]
fn a_second_signal_cuts_the_grace_time_short() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("outpost.toml");
    std::fs::write(&file, LONG_GRACE).unwrap();
    let daemon = Daemon::start_with(outpost(), &["--config", file.to_str().unwrap()]);
    let process = sh(&daemon, "p", "trap '' TERM; echo ready; while :; do sleep 0.05; done");
    assert_eq!(read(&daemon, &process.process, 6).0, b"ready\n");
    let (keeper, child) = (daemon.keeper(), outpost_testkit::process(process.pid).unwrap());
    begin_stop(&daemon);
    assert!(!wait_readable(&child, Duration::from_millis(200)).unwrap(), "the grace time is not over");
    pidfd::signal(&keeper, Signal::TERM).unwrap();
    for end in [&child, &keeper] {
        assert!(wait_readable(end, Duration::from_secs(20)).unwrap(), "log: {}", daemon.log());
    }
}

/// Sends SIGTERM to the keeper and waits until the daemon has sent SIGTERM to its processes.
fn begin_stop(daemon: &Daemon) {
    pidfd::signal(daemon.keeper(), Signal::TERM).unwrap();
    let is_stopping = || daemon.log().contains("stopping: processes get SIGTERM");
    crate::support::until("the daemon stops its processes", is_stopping);
}

/// Clients distinguish an ending daemon from a refusal by the kind of the failure, since only the former can be retried.
#[test]
fn a_command_to_an_ending_daemon_is_refused_with_its_own_kind() {
    let daemon = daemon();
    let process = sh(&daemon, "p", "trap '' TERM; echo ready; while :; do sleep 0.05; done").process;
    assert_eq!(read(&daemon, &process, 6).0, b"ready\n");
    let mut client = daemon.connect();
    let refused = client.call::<()>("serveAgain", &()).unwrap_err();
    assert!(!refused.is_gone(), "{refused:?}");
    begin_stop(&daemon);
    let wake = WakeRelay { token: "t".into(), metrics_addr: String::new(), keep_children: true };
    let wake = serde_json::to_value(wake).unwrap();
    for (method, params) in [("wakeRelay", wake), ("keepChildren", json!({})), ("reload", json!({}))] {
        match client.call::<()>(method, &params) {
            Err(CallError::Refused(failure)) => assert!(failure.is_stopping(), "{method}: {failure:?}"),
            other => panic!("{method}: {other:?}"),
        }
    }
}

#[test]
fn a_start_waits_for_a_daemon_that_is_ending() {
    let daemon = daemon();
    let process = sh(&daemon, "p", "trap '' TERM; echo ready; while :; do sleep 0.05; done").process;
    assert_eq!(read(&daemon, &process, 6).0, b"ready\n");
    let before = daemon.status().keeper_pid;
    let mut stop = cli(&daemon, &["stop", "--grace", "1"]).stdout(Stdio::null()).spawn().unwrap();
    crate::support::until("the daemon does not listen", || !daemon.socket().exists());
    let again = Daemon::start_in(outpost(), daemon.dir());
    assert_ne!(again.status().keeper_pid, before);
    assert_eq!(read(&again, &process, usize::MAX).0, b"ready\n");
    assert!(stop.wait().unwrap().success());
}

#[test]
fn an_interactive_shell_on_a_terminal_does_not_use_up_the_grace_time() {
    let daemon = daemon();
    let command = ["/bin/bash", "--norc", "-i"].map(Into::into).to_vec();
    let terminal = Some(outpost_control::wire::TerminalSize { rows: 24, cols: 80 });
    let spawn = outpost_control::wire::Spawn { id: "sh".into(), command, terminal, ..Default::default() };
    let spawned: outpost_control::wire::Spawned = daemon.connect().call("spawn", &spawn).unwrap();
    read(&daemon, &spawned.process, 1);
    let stopped = cli(&daemon, &["stop", "--grace", "600"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&stopped.stdout), "sh: terminated by SIGHUP\n", "{stopped:?}");
}
