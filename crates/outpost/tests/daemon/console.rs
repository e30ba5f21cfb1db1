//! Output of the command line: escape sequences from a hostile daemon, and closed standard output.

use crate::support::{cli, daemon, outpost};
use serde_json::{Value, json};
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Sets the clipboard (OSC 52), clears the screen in 7 and 8 bits, reverses the text direction, and forges a line.
const HOSTILE: &str = "x\u{1b}]52;c;aGk=\u{7}\u{1b}[2J\u{9b}2J\u{202e}\r\noutpost: approved";
const SIGPIPE: i32 = 13;

/// A fake daemon that replies with these results, or with an error if there is none.
fn hostile(dir: &Path, results: fn(&str) -> Option<Value>) {
    std::fs::create_dir(dir.join("run")).unwrap();
    std::fs::set_permissions(dir.join("run"), Permissions::from_mode(0o700)).unwrap();
    let listener = UnixListener::bind(dir.join("run/control.sock")).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut out = stream.try_clone().unwrap();
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                let request: Value = serde_json::from_str(&line).unwrap();
                let answer = match results(request["method"].as_str().unwrap()) {
                    Some(result) => json!({"id": request["id"], "result": result}),
                    None => json!({"id": request["id"], "error": {"kind": "x", "message": HOSTILE}}),
                };
                let _gone = writeln!(out, "{answer}");
            }
        }
    });
}

fn run(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(outpost());
    command.args(["--state-dir", "state", "--runtime-dir", "run"]).args(arguments).current_dir(dir);
    command.stdin(Stdio::null()).output().unwrap()
}

#[track_caller]
fn assert_harmless(arguments: &[&str], bytes: &[u8]) {
    let text = std::str::from_utf8(bytes).unwrap();
    let acts = |character: char| (character.is_control() && character != '\n') || character == '\u{202e}';
    assert!(!text.contains(acts), "{arguments:?}: {text:?}");
    assert!(!text.lines().any(|line| line.starts_with("outpost: approved")), "{arguments:?}: {text}");
}

#[test]
fn an_error_of_a_hostile_daemon_cannot_drive_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    hostile(dir.path(), |_| None);
    for arguments in [
        &["ps"][..],
        &["status"],
        &["run", "--", "true"],
        &["kill", "1"],
        &["logs", "1"],
        &["attach", "--read-only", "1"],
        &["stop"],
        &["reload"],
        &["config", "show"],
    ] {
        let output = run(dir.path(), arguments);
        assert!(!output.status.success(), "{arguments:?}: {output:?}");
        assert_harmless(arguments, &output.stdout);
        assert_harmless(arguments, &output.stderr);
    }
}

#[test]
fn what_a_hostile_daemon_reports_cannot_drive_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    hostile(dir.path(), |method| match method {
        "status" => Some(json!({
            "version": HOSTILE, "workerPid": 1, "keeperPid": 1, "processes": 1, "sessions": 0, "busySessions": 0,
            "running": 1, "configFile": HOSTILE,
            "listening": [{"face": HOSTILE, "address": HOSTILE, "hint": HOSTILE}],
            "problems": [{"component": HOSTILE, "message": HOSTILE, "sinceMs": 0}],
        })),
        _ => None,
    });
    for arguments in [&["status"][..], &["status", "--json"]] {
        let output = run(dir.path(), arguments);
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("]52;c;aGk="), "{output:?}");
        assert_harmless(arguments, &output.stdout);
        assert_harmless(arguments, &output.stderr);
    }
    let json: Value = serde_json::from_slice(&run(dir.path(), &["status", "--json"]).stdout).unwrap();
    assert_eq!(json["version"], HOSTILE);
}

/// Runs the command with a closed standard output.
fn unread(mut command: Command) -> Output {
    let (reads, writes) = std::io::pipe().unwrap();
    drop(reads);
    command.stdout(writes).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap()
}

#[track_caller]
fn assert_quiet(arguments: &[&str], output: &Output) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!errors.contains("panicked"), "{arguments:?}: {errors}");
    let is_quiet = output.status.success() || output.status.signal() == Some(SIGPIPE);
    assert!(is_quiet, "{arguments:?}: {:?} {errors}", output.status);
}

#[test]
fn a_command_with_closed_output_ends_silently() {
    let daemon = daemon();
    for arguments in [
        &["ps"][..],
        &["ps", "--json"],
        &["status"],
        &["audit", "show"],
        &["audit", "export"],
        &["audit", "verify"],
        &["config", "show"],
        &["token", "list"],
        &["sessions", "list"],
        &["completions", "bash"],
        &["run", "--", "echo", "x"],
        &["--help"],
        &["--version"],
    ] {
        assert_quiet(arguments, &unread(cli(&daemon, arguments)));
    }
}

/// A broker that reports one byte of output for every request.
fn answering_broker(dir: &Path) {
    std::fs::create_dir(dir.join("run")).unwrap();
    std::fs::set_permissions(dir.join("run"), Permissions::from_mode(0o700)).unwrap();
    let listener = UnixListener::bind(dir.join("run/broker.sock")).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            let request: Value = serde_json::from_str(&line).unwrap();
            let stages = json!([{ "exit_code": 0, "stderr": "" }]);
            let answer = json!({ "id": request["id"], "status": "ok", "stdout": "eA==", "stages": stages });
            let _gone = writeln!(stream, "{answer}");
        }
    });
}

#[test]
fn output_that_cannot_be_written_fails_ask_and_audit() {
    let daemon = daemon();
    let dir = tempfile::tempdir().unwrap();
    answering_broker(dir.path());
    let ask = || {
        let mut ask = Command::new(outpost());
        ask.args(["--state-dir", "state", "ask", "--socket", "run/broker.sock", "--", "true"]);
        ask.current_dir(dir.path()).stdin(Stdio::null());
        ask
    };
    assert_eq!(ask().output().unwrap().stdout, b"x");
    let audit = || cli(&daemon, &["audit", "export"]);
    for command in [&ask as &dyn Fn() -> Command, &audit] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output =
            command().stdout(full).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains("error: cannot write to standard output: No space left"), "{errors}");
        assert_eq!(unread(command()).status.signal(), Some(SIGPIPE));
    }
}

/// `outpost serve --detach | true`.
#[test]
fn serve_detach_succeeds_with_closed_output() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(outpost());
    command.args([
        "--state-dir",
        "state",
        "--runtime-dir",
        "run",
        "serve",
        "--detach",
        "--sessions-listen",
        "127.0.0.1:0",
    ]);
    command.current_dir(dir.path()).env("HOME", dir.path()).stdin(Stdio::null());
    let output = unread(command);
    let stopped = run(dir.path(), &["stop"]);
    assert_quiet(&["serve", "--detach"], &output);
    assert!(stopped.status.success(), "the daemon did not run: {stopped:?}");
}
