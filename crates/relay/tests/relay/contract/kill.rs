//! "process.kill" and "process.killAndWait".

use crate::contract::table::{
    Frame, answer, check, ends, frames_to_exit, handle, next_frame, read_bytes, spawn_sh, spawn_sh_with_pid,
    written,
};
use outpost_testkit::{Relay, RelayClient};
use std::time::{Duration, Instant};

const SUCCESS: &str = r#"{"success":true}"#;

/// Tells which signal it got, and ends. A shell looks for signals between its commands, so those are short.
const LISTENER: &str = "for s in INT HUP QUIT TERM USR1; do trap \"echo $s; exit 0\" $s; done; \
                        echo up; while :; do sleep 0.02; done";
/// Takes no notice of what can be ignored.
const DEAF: &str = "trap '' TERM INT HUP QUIT; echo up; while :; do sleep 1000; done";

fn start(client: &mut RelayClient, id: &str, script: &str) -> i32 {
    let pid = spawn_sh_with_pid(client, id, script);
    read_bytes(client, id, b"up\n");
    pid
}

/// "optional SIG prefix then upper-cased: KILL INT HUP QUIT TERM; empty and anything else = TERM".
#[test]
fn a_signal_is_known_by_five_names_and_everything_else_is_term() {
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
        start(&mut client, &id, LISTENER);
        client.request("process.kill", &format!(r#"{{"id":"{id}"{signal}}}"#));
        let frames = frames_to_exit(&mut client, &id);
        let told = String::from_utf8(written(&frames, "stdout")).unwrap();
        assert_eq!(told.trim_end(), *expected, "{signal}");
        let code = if expected.is_empty() { -1 } else { 0 };
        assert_eq!(frames.last().unwrap().exit_code, Some(code), "{signal}");
    }
}

/// "Best-effort, fire-and-forget": the answer is always the same, and nobody is waited for.
#[test]
fn kill_always_succeeds_and_does_not_wait() {
    let relay = Relay::start();
    let mut client = relay.connect();
    spawn_sh(&mut client, "ended", "exit 0");
    frames_to_exit(&mut client, "ended");
    start(&mut client, "deaf", DEAF);
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
fn a_signal_reaches_what_the_process_has_started() {
    let relay = Relay::start();
    let mut client = relay.connect();
    for signal in ["TERM", "INT", "KILL"] {
        // In the background `sh` has interrupts ignored, so a child of its own says that it got one.
        let script =
            "sh -c 'trap \"exit 0\" INT TERM; echo up; while :; do sleep 0.02; done' & echo $!; wait";
        let pid = spawn_sh_with_pid(&mut client, signal, script);
        let mut text = String::new();
        while text.lines().count() < 2 || !text.ends_with('\n') {
            text += &String::from_utf8(next_frame(&mut client).bytes).unwrap();
        }
        let background: i32 = text.lines().find_map(|line| line.parse().ok()).unwrap();
        let (process, background) = (handle(pid), handle(background));
        assert!(process.is_some() && background.is_some());
        let signal_sent = if signal == "INT" { "TERM" } else { signal };
        client.request("process.kill", &format!(r#"{{"id":"{signal}","signal":"{signal_sent}"}}"#));
        ends(process, "the process");
        ends(background, "what it had started");
        frames_to_exit(&mut client, signal);
    }
}

/// "{found, died [,alreadyExited] [,escalated]}".
#[test]
fn kill_and_wait_tells_what_became_of_it() {
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
    // Each answer comes behind the frame that says the same: who waits for the end has seen it.
    let cases = [
        (LISTENER, "", gone, 0),
        (LISTENER, r#","signal":"INT","timeoutMs":60000"#, gone, 0),
        (LISTENER, r#","signal":"USR1","escalate":false,"timeoutMs":60000"#, gone, 0),
        (LISTENER, r#","signal":"KILL""#, gone, -1),
        (DEAF, r#","signal":"KILL","escalate":false"#, gone, -1),
        (DEAF, r#","timeoutMs":50"#, r#"{"found":true,"died":true,"escalated":true}"#, -1),
        (DEAF, r#","timeoutMs":50,"escalate":true"#, r#"{"found":true,"died":true,"escalated":true}"#, -1),
        (DEAF, r#","timeoutMs":50,"escalate":null"#, r#"{"found":true,"died":true,"escalated":true}"#, -1),
        (DEAF, r#","timeoutMs":1,"signal":"HUP""#, r#"{"found":true,"died":true,"escalated":true}"#, -1),
    ];
    for (index, (script, more, told, code)) in cases.iter().enumerate() {
        let id = format!("p{index}");
        start(&mut client, &id, script);
        let (reply, frames) =
            client.call_with_frames("process.killAndWait", &format!(r#"{{"id":"{id}"{more}}}"#));
        assert_eq!(reply, answer(told), "{more}");
        let last =
            Frame::parse(frames.last().unwrap_or_else(|| panic!("{more}: no frame before the answer")));
        assert_eq!(last.unwrap().exit_code, Some(*code), "{more}");
        check(&mut client, relay.dir(), &[("process.killAndWait", &format!(r#"{{"id":"{id}"}}"#), already)]);
    }
}

/// "false → leave the process running and report {found:true,died:false} (no escalated, no SIGKILL)".
#[test]
fn without_escalation_a_process_that_takes_no_notice_lives_on() {
    let relay = Relay::start();
    let mut client = relay.connect();
    start(&mut client, "p", DEAF);
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
    // Two that wait for the same end both see it.
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
fn without_a_time_of_its_own_it_waits_three_seconds() {
    let relay = Relay::start();
    let mut client = relay.connect();
    let cases =
        [("a", ""), ("b", r#","timeoutMs":0"#), ("c", r#","timeoutMs":-100"#), ("d", r#","timeoutMs":null"#)];
    for (id, _) in cases {
        start(&mut client, id, DEAF);
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
