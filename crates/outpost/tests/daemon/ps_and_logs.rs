//! `outpost ps`, `logs` and `kill` across faces: the table, ambiguous ids, and output from a given point.

use crate::support::{cli, daemon, on_terminal, read, sh, stdout_and_code};
use outpost_sys::pidfd::ExitCause;
use outpost_testkit::{Daemon, Half};
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Starts a command of the exec face and waits for its first output.
fn exec_face(daemon: &Daemon, id: &str, script: &str) -> BufReader<UnixStream> {
    let mut socket = outpost_testkit::connect(daemon.dir().join("run/exec.sock")).unwrap();
    let command =
        json!({"command": ["sh", "-c", script], "processId": id, "tty": true, "timeoutMs": 600_000});
    let requests = [
        json!({"id": 1, "method": "initialize", "params": {"clientInfo": {"name": "t", "version": "1"}}}),
        json!({"id": 2, "method": "command/exec", "params": command}),
    ];
    for request in requests {
        socket.write_all(format!("{request}\n").as_bytes()).unwrap();
    }
    let mut lines = BufReader::new(socket);
    let mut line = String::new();
    while !line.contains("outputDelta") {
        line.clear();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "no output");
    }
    lines
}

#[test]
fn one_id_in_two_faces_is_ambiguous_and_each_process_can_be_addressed() {
    let daemon = daemon();
    let mine = sh(&daemon, "same", "echo mine; read line");
    read(&daemon, &mine.process, 1);
    let _connection = exec_face(&daemon, "same", "echo theirs; sleep 1000");
    let (table, _) = stdout_and_code(&daemon, &["ps"]);
    assert!(table.contains("control/same  ") && table.contains("exec/0/same  "), "{table}");
    let output = cli(&daemon, &["logs", "same"]).output().unwrap();
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        why.contains("2 processes") && why.contains(&format!("\n    {}  control/same", mine.process)),
        "{why}"
    );
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stdout_and_code(&daemon, &["logs", "control/same"]).0, "mine\n");
    assert_eq!(stdout_and_code(&daemon, &["logs", "exec/same"]).0, "theirs\r\n");
    assert_eq!(stdout_and_code(&daemon, &["logs", &mine.process]).0, "mine\n");
    // A client of another face owns the input of this process.
    let attach = on_terminal(&daemon, &["attach", "--steal", "exec/0/same"], 24, 100);
    attach.wait_seen("read-only: its input belongs to a client of the exec face");
    assert_eq!(
        stdout_and_code(&daemon, &["kill", "exec/0/same"]),
        ("exec/0/same: terminated (SIGTERM)\n".into(), Some(0))
    );
    assert_eq!(stdout_and_code(&daemon, &["logs", "same"]).0, "mine\n", "now there is one of them");
}

#[test]
fn the_table_is_watched_on_a_terminal_and_fits_it() {
    let daemon = daemon();
    sh(&daemon, "first", "echo a-command-that-is-much-longer-than-the-terminal-is-wide; read line");
    let mut watch = on_terminal(&daemon, &["ps", "--watch"], 10, 72);
    let seen = watch.wait_seen("first");
    assert!(seen.lines().all(|line| line.chars().count() <= 72) && seen.contains('…'), "{seen}");
    daemon.kill(Half::Worker);
    sh(&daemon, "second", "read line");
    watch.wait_seen("second");
    watch.key(b"\x03");
    assert_eq!(watch.wait().cause, ExitCause::Signal(2));
    let (table, _) = stdout_and_code(&daemon, &["ps"]);
    assert!(table.contains("sh -c echo a-command-that-is-much-longer-than-the-terminal-is-wide; read line"));
    let list: serde_json::Value =
        serde_json::from_str(&stdout_and_code(&daemon, &["ps", "--json"]).0).unwrap();
    let first = &list.as_array().unwrap()[0];
    for member in ["cpuMs", "rssBytes", "readers", "outputBytes", "startedMs", "pid"] {
        assert!(first[member].is_u64(), "{member} of {first}");
    }
}

#[test]
fn logs_start_at_the_given_point_and_continue_after_a_killed_worker() {
    let daemon = daemon();
    let process = sh(&daemon, "p", "seq 1 5000; printf end; read line; echo; echo after; exit 3").process;
    let written: String = (1..=5000).map(|number| format!("{number}\n")).collect();
    assert_eq!(read(&daemon, &process, written.len() + 3).0, (written + "end").into_bytes());
    assert_eq!(stdout_and_code(&daemon, &["logs", "--tail", "3", "p"]).0, "4999\n5000\nend");
    assert_eq!(stdout_and_code(&daemon, &["logs", "--tail", "0", "p"]).0, "");
    let all = stdout_and_code(&daemon, &["logs", "p"]).0;
    assert_eq!(stdout_and_code(&daemon, &["logs", "--tail", "100000", "p"]).0, all);
    let last = daemon.list()[0].last_seq;
    assert_eq!(stdout_and_code(&daemon, &["logs", "--since", &last.to_string(), "p"]).0, "");
    let mut follow = on_terminal(&daemon, &["logs", "-f", "--tail", "1", "p"], 24, 80);
    follow.wait_seen("end");
    daemon.kill(Half::Worker);
    let stdin = json!({"process": process, "data": "Z28K"});
    let _applied: outpost_control::wire::StdinApplied = daemon.ask("stdin", &stdin);
    assert_eq!(follow.wait().cause, ExitCause::Code(0));
    follow.find("after\r\n", 0, TIMEOUT).unwrap();
    assert_eq!(follow.screen(), "end\r\nafter\r\n");
    // The process has exited, and the reader closes its pipe early.
    assert!(stdout_and_code(&daemon, &["logs", "p"]).0.ends_with("end\nafter\n"));
    let pipe = format!(
        "{} --state-dir state --runtime-dir run logs p | head -1",
        crate::support::outpost().display()
    );
    let head =
        std::process::Command::new("sh").args(["-c", &pipe]).current_dir(daemon.dir()).output().unwrap();
    assert_eq!(head.stdout, b"1\n");
}
