//! "process.spawn": the child's arguments, directory and environment, and `wantPid`.

use crate::contract::table::{answer, check, frames_to_exit, pid_in, unprivileged, written};
use outpost_testkit::{Relay, TOKEN};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;

const SUCCESS: &str = r#"{"success":true}"#;
const UNKNOWN: &str = r#"{"found":false,"running":false,"firstSeq":0,"lastSeq":0,"stdinApplied":0}"#;

#[test]
fn arguments_and_directory_are_passed_unchanged() {
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
    // A relative cwd is relative to the daemon's directory, a relative program to the child's.
    assert_eq!(output(r#"{"id":"6","command":"pwd","cwd":"work dir/."}"#, "6"), format!("{dir}/work dir\n"));
    assert_eq!(output(r#"{"id":"7","command":"./tool","cwd":"$D/work dir"}"#, "7"), "tool\n");
    assert_eq!(output(r#"{"id":"8","command":"work dir/tool"}"#, "8"), "tool\n");
    // The program is looked up in the daemon's PATH. argv[0] is the name of the request.
    let args = r#"["-c","printf %s \"$PATH\""]"#;
    let params = format!(r#"{{"id":"9","command":"sh","args":{args},"env":{{"PATH":"/nowhere"}}}}"#);
    assert_eq!(output(&params, "9"), "/nowhere");
    let args = r#"["-c","tr '\\0' ' ' < /proc/$$/cmdline"]"#;
    assert!(output(&format!(r#"{{"id":"10","command":"sh","args":{args}}}"#), "10").starts_with("sh -c "));
}

/// Whether a variable is internal to Outpost. Variables that the tests set for the daemon do not count.
fn is_internal(name: &str) -> bool {
    let given = ["OUTPOST_STATE_DIR", "OUTPOST_TEST_DAEMON", "OUTPOST_TEST_OWNER"].contains(&name)
        || std::env::var_os(name).is_some();
    name == "CLAUDE_RPC_TOKEN" || name.starts_with("CLAUSTRUM_") || (name.starts_with("OUTPOST_") && !given)
}

/// Without cgroups other faces mark their children by a variable. The relay must not.
#[test]
fn no_internal_variable_is_in_the_environment_without_cgroups() {
    let relay = unprivileged();
    let mut client = relay.connect();
    client.call("process.spawn", r#"{"id":"p","command":"env"}"#);
    let output = String::from_utf8(written(&frames_to_exit(&mut client, "p"), "stdout")).unwrap();
    assert!(output.lines().any(|line| line == "CLAUDE_SSH_DAEMON_CHILD=1"), "{output}");
    let leaks: Vec<&str> =
        output.lines().filter(|line| is_internal(line.split('=').next().unwrap())).collect();
    assert!(leaks.is_empty(), "{leaks:?}");
}

/// "env: {KEY:VAL} merged over the daemon environment", without the token and internal variables.
#[test]
fn the_requests_env_overrides_the_daemons_environment() {
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
    let output = written(&frames_to_exit(&mut client, "p"), "stdout");
    let output = String::from_utf8(output).unwrap();
    let mut seen = BTreeMap::new();
    for (name, value) in output.split_terminator('\0').map(|line| line.split_once('=').unwrap()) {
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
    assert!(!output.contains(TOKEN) && !output.contains("secret"));
    // Duplicate members are merged into one map. Member names match case-insensitively, variable names do not.
    let script = r#"["-c","printf %s-%s-%s \"$A\" \"$B\" \"$a\""]"#;
    let params = format!(
        r#"{{"id":"q","command":"/bin/sh","args":{script},"env":{{"A":"1","B":"2"}},"ENV":{{"A":"3","a":"4"}}}}"#
    );
    client.call("process.spawn", &params);
    assert_eq!(written(&frames_to_exit(&mut client, "q"), "stdout"), b"3-2-4");
}

/// The original's text. The lookup of the program is checked first.
#[test]
fn a_variable_with_a_nul_byte_is_refused() {
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
fn want_pid_adds_pid_and_start_time() {
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
    // Also for an exited process. A new process under the same id has another pid.
    let reply = client.call("process.reattach", r#"{"id":"p","wantPid":true}"#);
    assert!(reply.ends_with(&format!("{tail}}}")), "{reply}");
    let again = client.call("process.spawn", r#"{"id":"p","command":"/bin/cat","wantPid":true}"#);
    assert_ne!(pid_in(&again), pid);
}

fn now() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64()
}
