//! "process.spawn": what a child is given, and what is told of it.

use crate::contract::table::{answer, check, frames_to_exit, pid_in, unprivileged, written};
use outpost_testkit::{Relay, TOKEN};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;

const SUCCESS: &str = r#"{"success":true}"#;
const UNKNOWN: &str = r#"{"found":false,"running":false,"firstSeq":0,"lastSeq":0,"stdinApplied":0}"#;

#[test]
fn arguments_and_directory_arrive_as_they_were_sent() {
    let relay = Relay::start();
    fs::create_dir(relay.path("work dir")).unwrap();
    fs::write(relay.path("work dir/tool"), "#!/bin/sh\necho tool\n").unwrap();
    fs::set_permissions(relay.path("work dir/tool"), fs::Permissions::from_mode(0o755)).unwrap();
    let dir = relay.dir().display().to_string();
    let mut client = relay.connect();
    let mut output = |params: &str, id: &str| {
        assert_eq!(client.call("process.spawn", &params.replace("$D", &dir)), answer(SUCCESS), "{params}");
        String::from_utf8(written(&frames_to_exit(&mut client, id), "stdout")).unwrap()
    };
    let script = r#""for a in \"$0\" \"$@\"; do printf '[%s]' \"$a\"; done""#;
    let params = format!(
        r#"{{"id":"1","command":"/bin/sh","args":["-c",{script},"","a b","$x","é\n<&>","*","--",null]}}"#
    );
    assert_eq!(output(&params, "1"), "[][a b][$x][é\n<&>][*][--][]");
    let args = r#"["-c","printf %s $#","sh"]"#;
    assert_eq!(output(&format!(r#"{{"id":"2","command":"sh","args":{args}}}"#), "2"), "0");
    assert_eq!(output(r#"{"id":"3","command":"pwd","args":null}"#, "3"), format!("{dir}\n"));
    assert_eq!(
        output(r#"{"id":"4","command":"pwd","args":[],"cwd":"","env":null}"#, "4"),
        format!("{dir}\n")
    );
    assert_eq!(output(r#"{"id":"5","command":"pwd","cwd":"$D/work dir"}"#, "5"), format!("{dir}/work dir\n"));
    // Relative ones: to the daemon's directory, and a program to that in which it works.
    assert_eq!(output(r#"{"id":"6","command":"pwd","cwd":"work dir/."}"#, "6"), format!("{dir}/work dir\n"));
    assert_eq!(output(r#"{"id":"7","command":"./tool","cwd":"$D/work dir"}"#, "7"), "tool\n");
    assert_eq!(output(r#"{"id":"8","command":"work dir/tool"}"#, "8"), "tool\n");
    // The program is found by the daemon's PATH, and its name is the one that was sent.
    let args = r#"["-c","printf %s \"$PATH\""]"#;
    let params = format!(r#"{{"id":"9","command":"sh","args":{args},"env":{{"PATH":"/nowhere"}}}}"#);
    assert_eq!(output(&params, "9"), "/nowhere");
    let args = r#"["-c","tr '\\0' ' ' < /proc/$$/cmdline"]"#;
    assert!(output(&format!(r#"{{"id":"10","command":"sh","args":{args}}}"#), "10").starts_with("sh -c "));
}

/// Whether a variable is one that only we have a use for. The tests' own names for the daemon are not: it was given those.
fn is_internal(name: &str) -> bool {
    let given = ["OUTPOST_STATE_DIR", "OUTPOST_TEST_DAEMON", "OUTPOST_TEST_OWNER"].contains(&name)
        || std::env::var_os(name).is_some();
    name == "CLAUDE_RPC_TOKEN" || name.starts_with("CLAUSTRUM_") || (name.starts_with("OUTPOST_") && !given)
}

/// A user without rights has no cgroups, so what belongs to a process must be known by something else; not by this.
#[test]
fn nothing_of_ours_is_in_the_environment_of_a_child_of_another_user() {
    let relay = unprivileged();
    let mut client = relay.connect();
    client.call("process.spawn", r#"{"id":"p","command":"env"}"#);
    let told = String::from_utf8(written(&frames_to_exit(&mut client, "p"), "stdout")).unwrap();
    assert!(told.lines().any(|line| line == "CLAUDE_SSH_DAEMON_CHILD=1"), "{told}");
    let leaks: Vec<&str> = told.lines().filter(|line| is_internal(line.split('=').next().unwrap())).collect();
    assert!(leaks.is_empty(), "{leaks:?}");
}

/// "env: {KEY:VAL} merged over the daemon environment"; never the token, never what is ours alone.
#[test]
fn the_environment_is_the_daemons_with_the_requests_over_it() {
    let relay = Relay::prepare();
    let mut serve = relay.serve_command(TOKEN, &[]);
    serve
        .env("CLAUDE_RPC_TOKEN", "secret")
        .env("KEPT", "kept <&>")
        .env("CHANGED", "before")
        .env("EMPTIED", "full");
    assert!(serve.output().unwrap().status.success());
    let mut client = relay.connect();
    let env = r#"{"CHANGED":"after","EMPTIED":"","NEW":"new = \u00e9","NULL":null}"#;
    client.call("process.spawn", &format!(r#"{{"id":"p","command":"env","args":["-0"],"env":{env}}}"#));
    let told = written(&frames_to_exit(&mut client, "p"), "stdout");
    let told = String::from_utf8(told).unwrap();
    let mut seen = BTreeMap::new();
    for (name, value) in told.split_terminator('\0').map(|line| line.split_once('=').unwrap()) {
        assert!(seen.insert(name, value).is_none(), "{name} twice");
    }
    for (name, value) in [
        ("KEPT", "kept <&>"),
        ("CHANGED", "after"),
        ("EMPTIED", ""),
        ("NEW", "new = é"),
        ("NULL", ""),
        ("CLAUDE_SSH_DAEMON_CHILD", "1"),
        ("HOME", relay.dir().to_str().unwrap()),
        ("SHELL", "/bin/sh"),
    ] {
        assert_eq!(seen.get(name), Some(&value), "{name}");
    }
    for name in seen.keys() {
        assert!(!is_internal(name), "{name} leaks");
    }
    assert!(!told.contains(TOKEN) && !told.contains("secret"));
    // Two objects of one name are one map; names match whatever their case, those of variables do not.
    let script = r#"["-c","printf %s-%s-%s \"$A\" \"$B\" \"$a\""]"#;
    let params = format!(
        r#"{{"id":"q","command":"/bin/sh","args":{script},"env":{{"A":"1","B":"2"}},"ENV":{{"A":"3","a":"4"}}}}"#
    );
    client.call("process.spawn", &params);
    assert_eq!(written(&frames_to_exit(&mut client, "q"), "stdout"), b"3-2-4");
}

/// Before anything is started, in the words of the original's library; a program that is not found comes before it.
#[test]
fn a_variable_with_a_zero_byte_is_refused() {
    let relay = Relay::start();
    let refused = "-32603 exec: environment variable contains NUL";
    check(
        &mut relay.connect(),
        relay.dir(),
        &[
            ("process.spawn", r#"{"id":"p","command":"/bin/true","env":{"A":"x\u0000y"}}"#, refused),
            ("process.spawn", r#"{"id":"p","command":"/bin/true","env":{"\u0000":""}}"#, refused),
            ("process.spawn", r#"{"id":"p","command":"/no/such","env":{"A":"\u0000"}}"#, refused),
            (
                "process.spawn",
                r#"{"id":"p","command":"no-such-program-anywhere","env":{"A":"\u0000"}}"#,
                r#"-32603 exec: \"no-such-program-anywhere\": executable file not found in $PATH"#,
            ),
            ("process.reattach", r#"{"id":"p"}"#, UNKNOWN),
        ],
    );
}

/// "{success:true, pid:<int>, startTime:<number>}", "returned identically on spawn and reattach".
#[test]
fn a_pid_is_told_to_who_wants_it() {
    let relay = Relay::start();
    let mut client = relay.connect();
    let before = now();
    let spawned = client.call("process.spawn", r#"{"id":"p","command":"/bin/cat","wantPid":true}"#);
    let tail = spawned.strip_prefix(r#""result":{"success":true,"#).unwrap().strip_suffix('}').unwrap();
    let (pid, start) = tail.split_once(',').unwrap();
    let pid: i32 = pid.strip_prefix(r#""pid":"#).unwrap().parse().unwrap();
    let start: f64 = start.strip_prefix(r#""startTime":"#).unwrap().parse().unwrap();
    assert!(start >= before - 0.01 && start <= now() + 0.01, "{before} {start}");
    assert_eq!(fs::read_to_string(format!("/proc/{pid}/comm")).unwrap(), "cat\n");
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let group = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(2).unwrap();
    assert_eq!(group, pid.to_string(), "a process group of its own");
    let found = r#"{"found":true,"running":true,"firstSeq":0,"lastSeq":0,"stdinApplied":0}"#;
    let with_pid = format!("{},{tail}}}", found.trim_end_matches('}'));
    for client in [&mut client, &mut relay.connect()] {
        check(
            client,
            relay.dir(),
            &[
                ("process.reattach", r#"{"id":"p","wantPid":true}"#, &with_pid),
                ("process.reattach", r#"{"id":"p","wantPid":false}"#, found),
                ("process.reattach", r#"{"id":"p"}"#, found),
                ("process.reattach", r#"{"id":"nope","wantPid":true}"#, UNKNOWN),
                (
                    "process.stdin",
                    r#"{"id":"p","data":"","wantPid":true}"#,
                    r#"{"success":true,"applied":0}"#,
                ),
            ],
        );
    }
    check(
        &mut client,
        relay.dir(),
        &[
            ("process.spawn", r#"{"id":"q","command":"/bin/true","wantPid":false}"#, SUCCESS),
            ("process.spawn", r#"{"id":"r","command":"/bin/true","wantPid":null}"#, SUCCESS),
            ("process.killAndWait", r#"{"id":"p","wantPid":true}"#, r#"{"found":true,"died":true}"#),
        ],
    );
    // Also of one that has ended, and another that takes its id has another.
    let told = client.call("process.reattach", r#"{"id":"p","wantPid":true}"#);
    assert!(told.ends_with(&format!("{tail}}}")), "{told}");
    let again = client.call("process.spawn", r#"{"id":"p","command":"/bin/cat","wantPid":true}"#);
    assert_ne!(pid_in(&again), pid);
}

fn now() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64()
}
