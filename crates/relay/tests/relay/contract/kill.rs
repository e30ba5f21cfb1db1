//! "process.kill" and "process.killAndWait".

use crate::contract::table::{
    Frame, answer, assert_exits, check, frames_to_exit, next_frame, pidfd_of, read_bytes, spawn_sh,
    spawn_sh_with_pid, written,
};
use outpost_testkit::{Relay, RelayClient};
use std::time::{Duration, Instant};

const SUCCESS: &str = r#"{"success":true}"#;

/// Prints the received signal and exits. The shell runs traps between commands, so the commands are short.
const PRINT_SIGNAL: &str = "for s in INT HUP QUIT TERM USR1; do trap \"echo $s; exit 0\" $s; done; \
                        echo up; while :; do sleep 0.02; done";
/// Ignores all signals that can be ignored.
const IGNORE_SIGNALS: &str = "trap '' TERM INT HUP QUIT; echo up; while :; do sleep 1000; done";

fn start(client: &mut RelayClient, id: &str, script: &str) -> i32 {
    let pid = spawn_sh_with_pid(client, id, script);
    read_bytes(client, id, b"up\n");
    pid
}

/// "optional SIG prefix then upper-cased: KILL INT HUP QUIT TERM; empty and anything else = TERM".
#[test]
fn five_signal_names_are_known_and_others_mean_term() {
    let relay = Relay::start();
    let mut client = relay.connect();
    let cases = [
        ("", "TERM"),
        (r#","signal":"""#, "TERM"),
        (r#","signal":null"#, "TERM"),
        (r#","signal":"TERM""#, "TERM"),
        (r#","signal":"SIGTERM""#, "TERM"),
        (r#","signal":"INT""#, "INT"),
        (r#","signal":"SIGINT""#, "INT"),
        (r#","signal":"int""#, "INT"),
        (r#","signal":"Int""#, "INT"),
        (r#","signal":"SIGint""#, "INT"),
        (r#","SIGNAL":"HUP""#, "HUP"),
        (r#","signal":"SIGHUP""#, "HUP"),
        (r#","signal":"QUIT""#, "QUIT"),
        (r#","signal":"sigint""#, "TERM"),
        (r#","signal":"SIGSIGINT""#, "TERM"),
        (r#","signal":"USR1""#, "TERM"),
        (r#","signal":"SIGUSR1""#, "TERM"),
        (r#","signal":"2""#, "TERM"),
        (r#","signal":"9""#, "TERM"),
        (r#","signal":"STOP""#, "TERM"),
        (r#","signal":" INT""#, "TERM"),
        (r#","signal":"nonsense""#, "TERM"),
        (r#","signal":"KILL""#, ""),
        (r#","signal":"SIGKILL""#, ""),
        (r#","signal":"kill""#, ""),
    ];
    for (index, (signal, expected)) in cases.iter().enumerate() {
        let id = format!("p{index}");
        start(&mut client, &id, PRINT_SIGNAL);
        client.request("process.kill", &format!(r#"{{"id":"{id}"{signal}}}"#));
        let frames = frames_to_exit(&mut client, &id);
        let printed = String::from_utf8(written(&frames, "stdout")).unwrap();
        assert_eq!(printed.trim_end(), *expected, "{signal}");
        let code = if expected.is_empty() { -1 } else { 0 };
        assert_eq!(frames.last().unwrap().exit_code, Some(code), "{signal}");
    }
}

/// "Best-effort, fire-and-forget": the reply is always the same and immediate.
#[test]
fn kill_always_succeeds_and_does_not_wait() {
    let relay = Relay::start();
    let mut client = relay.connect();
    spawn_sh(&mut client, "ended", "exit 0");
    frames_to_exit(&mut client, "ended");
    start(&mut client, "deaf", IGNORE_SIGNALS);
    check(
        &mut client,
        relay.dir(),
        &[
            ("process.kill", "{}", SUCCESS),
            ("process.kill", r#"{"id":""}"#, SUCCESS),
            ("process.kill", r#"{"id":"nope"}"#, SUCCESS),
            ("process.kill", r#"{"id":"nope","signal":"KILL"}"#, SUCCESS),
            ("process.kill", r#"{"id":"ended"}"#, SUCCESS),
            ("process.kill", r#"{"id":"ended","signal":"KILL"}"#, SUCCESS),
            ("process.kill", r#"{"id":"deaf"}"#, SUCCESS),
            ("process.kill", r#"{"id":"deaf","signal":"INT"}"#, SUCCESS),
            (
                "process.reattach",
                r#"{"id":"deaf","fromSeq":1}"#,
                r#"{"found":true,"running":true,"firstSeq":1,"lastSeq":1,"stdinApplied":0}"#,
            ),
        ],
    );
    client.request("process.kill", r#"{"id":"deaf","signal":"KILL"}"#);
    assert_eq!(frames_to_exit(&mut client, "deaf").last().unwrap().exit_code, Some(-1));
}

/// "tears down the whole child tree — signals the process group".
#[test]
fn a_signal_reaches_the_descendants() {
    let relay = Relay::start();
    let mut client = relay.connect();
    for signal in ["TERM", "INT", "KILL"] {
        // `sh` ignores SIGINT in background jobs, so a separate child prints it.
        let script =
            "sh -c 'trap \"exit 0\" INT TERM; echo up; while :; do sleep 0.02; done' & echo $!; wait";
        let pid = spawn_sh_with_pid(&mut client, signal, script);
        let mut text = String::new();
        while text.lines().count() < 2 || !text.ends_with('\n') {
            text += &String::from_utf8(next_frame(&mut client).bytes).unwrap();
        }
        let background: i32 = text.lines().find_map(|line| line.parse().ok()).unwrap();
        let (process, background) = (pidfd_of(pid), pidfd_of(background));
        assert!(process.is_some() && background.is_some());
        let signal_sent = if signal == "INT" { "TERM" } else { signal };
        client.request("process.kill", &format!(r#"{{"id":"{signal}","signal":"{signal_sent}"}}"#));
        assert_exits(process, "the process");
        assert_exits(background, "what it had started");
        frames_to_exit(&mut client, signal);
    }
}

/// "{found, died [,alreadyExited] [,escalated]}".
#[test]
fn kill_and_wait_reports_the_outcome() {
    let relay = Relay::start();
    let mut client = relay.connect();
    spawn_sh(&mut client, "ended", "exit 3");
    frames_to_exit(&mut client, "ended");
    let gone = r#"{"found":true,"died":true}"#;
    let already = r#"{"found":true,"died":true,"alreadyExited":true}"#;
    check(
        &mut client,
        relay.dir(),
        &[
            ("process.killAndWait", "", "-32602 Invalid params"),
            ("process.killAndWait", "{}", "-32602 Process ID is required"),
            ("process.killAndWait", r#"{"id":""}"#, "-32602 Process ID is required"),
            (
                "process.killAndWait",
                r#"{"id":"","signal":"KILL","timeoutMs":5,"escalate":false}"#,
                "-32602 Process ID is required",
            ),
            ("process.killAndWait", r#"{"id":"nope"}"#, r#"{"found":false,"died":false}"#),
            (
                "process.killAndWait",
                r#"{"id":"nope","signal":"KILL","timeoutMs":1,"escalate":true}"#,
                r#"{"found":false,"died":false}"#,
            ),
            ("process.killAndWait", r#"{"id":"ended"}"#, already),
            (
                "process.killAndWait",
                r#"{"id":"ended","signal":"KILL","escalate":false,"timeoutMs":1}"#,
                already,
            ),
        ],
    );
    // Each reply comes after the exit frame.
    let cases = [
        (PRINT_SIGNAL, "", gone, 0),
        (PRINT_SIGNAL, r#","signal":"INT","timeoutMs":60000"#, gone, 0),
        (PRINT_SIGNAL, r#","signal":"USR1","escalate":false,"timeoutMs":60000"#, gone, 0),
        (PRINT_SIGNAL, r#","signal":"KILL""#, gone, -1),
        (IGNORE_SIGNALS, r#","signal":"KILL","escalate":false"#, gone, -1),
        (IGNORE_SIGNALS, r#","timeoutMs":50"#, r#"{"found":true,"died":true,"escalated":true}"#, -1),
        (
            IGNORE_SIGNALS,
            r#","timeoutMs":50,"escalate":true"#,
            r#"{"found":true,"died":true,"escalated":true}"#,
            -1,
        ),
        (
            IGNORE_SIGNALS,
            r#","timeoutMs":50,"escalate":null"#,
            r#"{"found":true,"died":true,"escalated":true}"#,
            -1,
        ),
        (
            IGNORE_SIGNALS,
            r#","timeoutMs":1,"signal":"HUP""#,
            r#"{"found":true,"died":true,"escalated":true}"#,
            -1,
        ),
    ];
    for (index, (script, more, expected, code)) in cases.iter().enumerate() {
        let id = format!("p{index}");
        start(&mut client, &id, script);
        let (reply, frames) =
            client.call_with_frames("process.killAndWait", &format!(r#"{{"id":"{id}"{more}}}"#));
        assert_eq!(reply, answer(expected), "{more}");
        let last =
            Frame::parse(frames.last().unwrap_or_else(|| panic!("{more}: no frame before the answer")));
        assert_eq!(last.unwrap().exit_code, Some(*code), "{more}");
        check(&mut client, relay.dir(), &[("process.killAndWait", &format!(r#"{{"id":"{id}"}}"#), already)]);
    }
}

/// "false → leave the process running and report {found:true,died:false} (no escalated, no SIGKILL)".
#[test]
fn without_escalation_a_process_that_ignores_the_signal_survives() {
    let relay = Relay::start();
    let mut client = relay.connect();
    start(&mut client, "p", IGNORE_SIGNALS);
    let begun = Instant::now();
    check(
        &mut client,
        relay.dir(),
        &[
            (
                "process.killAndWait",
                r#"{"id":"p","timeoutMs":100,"escalate":false}"#,
                r#"{"found":true,"died":false}"#,
            ),
            (
                "process.reattach",
                r#"{"id":"p","fromSeq":1}"#,
                r#"{"found":true,"running":true,"firstSeq":1,"lastSeq":1,"stdinApplied":0}"#,
            ),
        ],
    );
    assert!(begun.elapsed() >= Duration::from_millis(100));
    // Two concurrent requests for one process both report its exit.
    let mut other = relay.connect();
    other.request("process.killAndWait", r#"{"id":"p","timeoutMs":60000,"escalate":false}"#);
    check(
        &mut client,
        relay.dir(),
        &[(
            "process.killAndWait",
            r#"{"id":"p","timeoutMs":200}"#,
            r#"{"found":true,"died":true,"escalated":true}"#,
        )],
    );
    assert_eq!(other.line(), r#"{"jsonrpc":"2.0","id":1,"result":{"found":true,"died":true}}"#);
}

/// "Non-positive or absent → the 3000 ms default (probe-verified: 0 and -100 both wait 3000 ms)".
#[test]
fn the_default_grace_is_three_seconds() {
    let relay = Relay::start();
    let mut client = relay.connect();
    let cases =
        [("a", ""), ("b", r#","timeoutMs":0"#), ("c", r#","timeoutMs":-100"#), ("d", r#","timeoutMs":null"#)];
    for (id, _) in cases {
        start(&mut client, id, IGNORE_SIGNALS);
    }
    let begun = Instant::now();
    for (id, more) in cases {
        client.request("process.killAndWait", &format!(r#"{{"id":"{id}","escalate":false{more}}}"#));
    }
    for _ in cases {
        let line = client.line();
        assert!(line.ends_with(r#""result":{"found":true,"died":false}}"#), "{line}");
        let waited = begun.elapsed();
        assert!(waited >= Duration::from_millis(2900) && waited < Duration::from_secs(8), "{waited:?}");
    }
}
