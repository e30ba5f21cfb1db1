//! "process.spawn": errors, frames, and reuse of an id.

use crate::contract::table::{
    Frame, assert_exits, check, exchange, frames_to_exit, next_frame, pidfd_of, spawn_sh, spawn_sh_with_pid,
    unprivileged, write_stdin, written,
};
use outpost_testkit::Relay;
use std::fs;
use std::os::unix::fs::PermissionsExt;

const SUCCESS: &str = r#"{"success":true}"#;
const UNKNOWN: &str = r#"{"found":false,"running":false,"firstSeq":0,"lastSeq":0,"stdinApplied":0}"#;

/// The texts are those of Go's runtime.
#[test]
#[expect(clippy::too_many_lines, reason = "a table of requests and replies")]
fn a_failed_spawn_returns_the_reason_and_leaves_no_process() {
    let relay = Relay::start();
    let program = |name: &str, content: &str, mode: u32| {
        fs::write(relay.path(name), content).unwrap();
        fs::set_permissions(relay.path(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    program("plain", "#!/bin/sh\n", 0o644);
    program("no-interpreter", "#!/no/such/interpreter\n", 0o755);
    program("garbage", "\u{1}\u{2}\u{3}", 0o755);
    program("empty", "", 0o755);
    fs::create_dir(relay.path("dir")).unwrap();
    let mut client = relay.connect();
    check(
        &mut client,
        relay.dir(),
        &[
            ("process.spawn", r#"{}"#, "-32602 Process ID is required"),
            ("process.spawn", r#"{"id":""}"#, "-32602 Process ID is required"),
            ("process.spawn", r#"{"command":"/bin/true"}"#, "-32602 Process ID is required"),
            ("process.spawn", r#"{"id":"","command":""}"#, "-32602 Process ID is required"),
            ("process.spawn", r#"{"id":"p"}"#, "-32602 Command is required"),
            ("process.spawn", r#"{"id":"p","command":""}"#, "-32602 Command is required"),
            (
                "process.spawn",
                r#"{"id":"p","command":"no-such-program-anywhere"}"#,
                r#"-32603 exec: \"no-such-program-anywhere\": executable file not found in $PATH"#,
            ),
            (
                "process.spawn",
                r#"{"id":"p","command":"a \"b\\ <é>"}"#,
                r#"-32603 exec: \"a \\\"b\\\\ \u003cé\u003e\": executable file not found in $PATH"#,
            ),
            (
                "process.spawn",
                r#"{"id":"p","command":"."}"#,
                r#"-32603 exec: \".\": executable file not found in $PATH"#,
            ),
            // Only the daemon's PATH is searched.
            (
                "process.spawn",
                r#"{"id":"p","command":"plain","cwd":"$D"}"#,
                r#"-32603 exec: \"plain\": executable file not found in $PATH"#,
            ),
            (
                "process.spawn",
                r#"{"id":"p","command":"no-interpreter","env":{"PATH":"$D"}}"#,
                r#"-32603 exec: \"no-interpreter\": executable file not found in $PATH"#,
            ),
            (
                "process.spawn",
                r#"{"id":"p","command":"/no/such/program"}"#,
                "-32603 fork/exec /no/such/program: no such file or directory",
            ),
            (
                "process.spawn",
                r#"{"id":"p","command":"./no-such-program"}"#,
                "-32603 fork/exec ./no-such-program: no such file or directory",
            ),
            (
                "process.spawn",
                r#"{"id":"p","command":"$D/plain"}"#,
                "-32603 fork/exec $D/plain: permission denied",
            ),
            (
                "process.spawn",
                r#"{"id":"p","command":"$D/dir"}"#,
                "-32603 fork/exec $D/dir: permission denied",
            ),
            (
                "process.spawn",
                r#"{"id":"p","command":"$D/plain/x"}"#,
                "-32603 fork/exec $D/plain/x: not a directory",
            ),
            (
                "process.spawn",
                r#"{"id":"p","command":"$D/no-interpreter"}"#,
                "-32603 fork/exec $D/no-interpreter: no such file or directory",
            ),
            (
                "process.spawn",
                r#"{"id":"p","command":"$D/garbage"}"#,
                "-32603 fork/exec $D/garbage: exec format error",
            ),
            (
                "process.spawn",
                r#"{"id":"p","command":"$D/empty"}"#,
                "-32603 fork/exec $D/empty: exec format error",
            ),
            // An invalid cwd is reported with the name of the program.
            (
                "process.spawn",
                r#"{"id":"p","command":"/bin/sh","cwd":"/no/such/dir"}"#,
                "-32603 fork/exec /bin/sh: no such file or directory",
            ),
            (
                "process.spawn",
                r#"{"id":"p","command":"/bin/sh","cwd":"$D/plain"}"#,
                "-32603 fork/exec /bin/sh: not a directory",
            ),
            (
                "process.spawn",
                r#"{"id":"p","command":"/bin/sh","args":["a\u0000b"]}"#,
                "-32603 fork/exec /bin/sh: invalid argument",
            ),
            (
                "process.spawn",
                r#"{"id":"p","command":"/bin/sh\u0000"}"#,
                r"-32603 fork/exec /bin/sh\u0000: invalid argument",
            ),
            (
                "process.spawn",
                r#"{"id":"p","command":"/bin/sh","cwd":"/\u0000"}"#,
                "-32603 fork/exec /bin/sh: invalid argument",
            ),
            ("process.reattach", r#"{"id":"p"}"#, UNKNOWN),
            ("process.stdin", r#"{"id":"p","data":""}"#, "-32602 Process not found"),
            ("process.killAndWait", r#"{"id":"p"}"#, r#"{"found":false,"died":false}"#),
        ],
    );
}

/// The original starts the new process before it replaces the old one. A failed spawn leaves the old process alone.
#[test]
fn a_failed_spawn_does_not_replace_the_process_of_its_id() {
    let relay = Relay::start();
    let mut client = relay.connect();
    let mut wrong = String::new();
    for (id, params) in [
        ("exec", r#""command":"/no/such""#),
        ("path", r#""command":"no-such-program-anywhere""#),
        ("empty", r#""command":"""#),
        ("cwd", r#""command":"/bin/sh","cwd":"/no/such""#),
        ("zero", r#""command":"/bin/sh","args":["\u0000"]"#),
    ] {
        let pid = spawn_sh_with_pid(&mut client, id, "exec cat");
        let reply = client.call("process.spawn", &format!(r#"{{"id":"{id}",{params}}}"#));
        assert!(reply.starts_with(r#""error":"#), "{id}: {reply}");
        let reattached = client.call("process.reattach", &format!(r#"{{"id":"{id}","wantPid":true}}"#));
        let found = format!(r#""running":true,"firstSeq":0,"lastSeq":0,"stdinApplied":0,"pid":{pid},"#);
        if reattached.contains(&found) {
            exchange(&mut client, id, "hi", "hi");
        } else {
            wrong += &format!("\n{params}: {reattached}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn permission_errors_are_reported_to_an_unprivileged_user() {
    let relay = unprivileged();
    fs::create_dir(relay.path("closed")).unwrap();
    fs::write(relay.path("program"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(relay.path("program"), fs::Permissions::from_mode(0o000)).unwrap();
    fs::set_permissions(relay.path("closed"), fs::Permissions::from_mode(0o000)).unwrap();
    check(
        &mut relay.connect(),
        relay.dir(),
        &[
            (
                "process.spawn",
                r#"{"id":"p","command":"$D/program"}"#,
                "-32603 fork/exec $D/program: permission denied",
            ),
            (
                "process.spawn",
                r#"{"id":"p","command":"$D/closed/x"}"#,
                "-32603 fork/exec $D/closed/x: permission denied",
            ),
            (
                "process.spawn",
                r#"{"id":"p","command":"/bin/sh","cwd":"$D/closed"}"#,
                "-32603 fork/exec /bin/sh: permission denied",
            ),
            ("process.spawn", r#"{"id":"p","command":"/bin/true"}"#, SUCCESS),
        ],
    );
    fs::set_permissions(relay.path("closed"), fs::Permissions::from_mode(0o755)).unwrap();
}

/// "{id,command[,args][,cwd][,env][,wantPid]} → {success:true}, then stream frames".
#[test]
fn the_reply_comes_first_and_then_the_frames() {
    let relay = Relay::start();
    let mut client = relay.connect();
    client.request("process.spawn", r#"{"id":"p","command":"printf","args":["hello"]}"#);
    let expected = [
        r#"{"jsonrpc":"2.0","id":1,"result":{"success":true}}"#,
        r#"{"type":"stream","processId":"p","stream":"stdout","seq":1,"data":"aGVsbG8="}"#,
        r#"{"type":"stream","processId":"p","stream":"exit","seq":2,"exitCode":0}"#,
    ];
    assert_eq!(expected.map(|_| client.line()), expected);
    client.request("process.spawn", r#"{"id":"e","command":"sh","args":["-c","printf oops >&2; exit 7"]}"#);
    let expected = [
        r#"{"jsonrpc":"2.0","id":2,"result":{"success":true}}"#,
        r#"{"type":"stream","processId":"e","stream":"stderr","seq":1,"data":"b29wcw=="}"#,
        r#"{"type":"stream","processId":"e","stream":"exit","seq":2,"exitCode":7}"#,
    ];
    assert_eq!(expected.map(|_| client.line()), expected);
    // "The client supplies its own id (any string)": frames have it in Go's JSON encoding.
    let ids = [
        (r"<p>&\u2028 \u0022\\\u0001é\n", r#"\u003cp\u003e\u0026\u2028 \"\\\u0001é\n"#),
        ("a/../b", "a/../b"),
        (".", "."),
        ("\u{1f600}", "\u{1f600}"),
        (r"\ud800", "\u{fffd}"),
        (r"\u0000", r"\u0000"),
        (" ", " "),
    ];
    for (sent, encoded) in ids {
        client.request("process.spawn", &format!(r#"{{"id":"{sent}","command":"/bin/true"}}"#));
        assert!(client.line().ends_with(r#""result":{"success":true}}"#));
        let exit =
            format!(r#"{{"type":"stream","processId":"{encoded}","stream":"exit","seq":1,"exitCode":0}}"#);
        assert_eq!(client.line(), exit);
    }
    let long = "i".repeat(10_000);
    client.request("process.spawn", &format!(r#"{{"id":"{long}","command":"/bin/true"}}"#));
    assert!(client.line().ends_with(r#""result":{"success":true}}"#));
    assert!(client.line().contains(&long));
}

/// "A signal-terminated child reports exitCode: -1 (not 128+signo)."
#[test]
fn exit_codes_are_those_of_the_child_and_a_signal_is_minus_one() {
    let relay = Relay::start();
    let mut client = relay.connect();
    for (script, code) in [
        ("exit 0", 0),
        ("exit 1", 1),
        ("exit 127", 127),
        ("exit 143", 143),
        ("exit 255", 255),
        ("kill -TERM $$", -1),
        ("kill -KILL $$", -1),
        ("kill -SEGV $$", -1),
        ("kill -HUP $$", -1),
    ] {
        spawn_sh(&mut client, script, script);
        let frames = frames_to_exit(&mut client, script);
        assert_eq!(frames.last().unwrap().exit_code, Some(code), "{script}");
        assert_eq!(frames.len(), 1, "{script}");
    }
}

/// "Reusing a still-live id succeeds and replaces the registry entry … also tears down the now-orphaned previous process
/// tree …, with its subscribers dropped first so no stray frames arrive under the reused id".
#[test]
fn reusing_a_live_id_replaces_the_process() {
    let relay = Relay::start();
    let (mut client, mut other) = (relay.connect(), relay.connect());
    let script = "while :; do sleep 1000; done & echo $!; while :; do echo old; done";
    let old = spawn_sh_with_pid(&mut client, "p", script);
    let first = next_frame(&mut client);
    let text = String::from_utf8(first.bytes).unwrap();
    let background: i32 = text.lines().next().unwrap().parse().unwrap();
    let (old, background) = (pidfd_of(old), pidfd_of(background));
    other.call("process.reattach", r#"{"id":"p","fromSeq":9223372036854775807}"#);
    let reply = client
        .request("process.spawn", r#"{"id":"p","command":"/bin/sh","args":["-c","printf new; read x"]}"#);
    let reply = format!(r#"{{"jsonrpc":"2.0","id":{reply},"result":{{"success":true}}}}"#);
    // Frames of the old process can come before the reply, but neither its exit nor frames after the reply.
    loop {
        let line = client.line();
        match Frame::parse(&line) {
            Some(frame) => assert!(frame.stream == "stdout" && frame.seq > 1, "{line}"),
            None => break assert_eq!(line, reply),
        }
    }
    assert_eq!(client.line(), r#"{"type":"stream","processId":"p","stream":"stdout","seq":1,"data":"bmV3"}"#);
    assert_exits(old, "the old process");
    assert_exits(background, "what the old process had started");
    check(
        &mut client,
        relay.dir(),
        &[(
            "process.reattach",
            r#"{"id":"p","fromSeq":1}"#,
            r#"{"found":true,"running":true,"firstSeq":1,"lastSeq":1,"stdinApplied":0}"#,
        )],
    );
    write_stdin(&mut client, "p", "\n");
    let frames = frames_to_exit(&mut client, "p");
    assert_eq!(frames.iter().map(|frame| (frame.seq, frame.exit_code)).collect::<Vec<_>>(), [(2, Some(0))]);
    // A connection that only followed the old process gets neither its exit nor frames of the new one.
    let ping = other.request("server.ping", "");
    let pong = format!(r#"{{"jsonrpc":"2.0","id":{ping},"result":{{"pong":true}}}}"#);
    loop {
        let line = other.line();
        if line == pong {
            break;
        }
        let frame = Frame::parse(&line).unwrap();
        assert!(frame.stream == "stdout" && frame.bytes.iter().all(|byte| b"old\n".contains(byte)), "{line}");
    }
}

/// The id of an exited process can be reused. Its old output is dropped.
#[test]
fn reusing_the_id_of_an_exited_process_starts_at_seq_1() {
    let relay = Relay::start();
    let mut client = relay.connect();
    for round in 0..3 {
        spawn_sh(&mut client, "p", &format!("printf {round}"));
        let frames = frames_to_exit(&mut client, "p");
        assert_eq!(frames.iter().map(|frame| frame.seq).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(written(&frames, "stdout"), round.to_string().as_bytes());
        check(
            &mut client,
            relay.dir(),
            &[(
                "process.reattach",
                r#"{"id":"p","fromSeq":2}"#,
                r#"{"found":true,"running":false,"firstSeq":1,"lastSeq":2,"stdinApplied":0}"#,
            )],
        );
    }
}
