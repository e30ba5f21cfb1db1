//! How a command ends: codes, signals, time limits, and what it leaves behind.

use crate::process::{TIMEOUT, Watched};
use crate::table::{check_exec, danger, fits, is_result, result, server, sh, with};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// "killed by signal / terminate, pipe: -1".
#[test]
fn the_exit_code_is_reported_and_a_signal_is_minus_one() {
    check_exec(
        &mut server(),
        vec![
            (danger(&["/bin/true"]), "exit 0"),
            (danger(&["/bin/false"]), "exit 1"),
            (sh("printf out; printf err >&2; exit 3"), "exit 3 out|err"),
            (sh("exit 255"), "exit 255"),
            (sh("exit 124"), "exit 124"),
            (sh("exit 137"), "exit 137"),
            (sh("printf out; kill -9 $$"), "exit -1 out|"),
            (sh("kill -TERM $$"), "exit -1"),
            (sh("kill -SEGV $$"), "exit -1"),
            // A shell reports the signal of its child as a code.
            (sh("sh -c 'kill -9 $$' 2>/dev/null; exit $?"), "exit 137"),
        ],
    );
}

/// Behind the three that every client knows.
#[test]
fn the_reply_has_members_for_what_the_exit_code_cannot_express() {
    outpost_testkit::require!(crate::table::skip_on_original());
    let mut server = server();
    let mut run = |params: &Value| server.exec(params);
    let plain = run(&sh("printf abc; printf de >&2"));
    let members: Vec<&String> = plain.as_object().unwrap().keys().collect();
    for absent in ["signal", "timedOut", "stdoutTruncated", "stderrTruncated"] {
        assert!(!members.iter().any(|name| *name == absent), "{plain}");
    }
    assert_eq!((&plain["stdoutBytes"], &plain["stderrBytes"]), (&json!(3), &json!(2)), "{plain}");
    assert!(plain["durationMs"].as_u64().is_some(), "{plain}");
    assert!(plain["sandbox"].is_object(), "{plain}");
    for (name, outcome) in
        [("KILL", "SIGKILL"), ("TERM", "SIGTERM"), ("SEGV", "SIGSEGV"), ("USR1", "SIGUSR1")]
    {
        let result = run(&sh(&format!("kill -{name} $$")));
        assert_eq!((&result["exitCode"], &result["signal"]), (&json!(-1), &json!(outcome)), "{result}");
    }
    let late = run(&with(sh("exec sleep 1000"), json!({"timeoutMs": 50})));
    assert_eq!((&late["exitCode"], &late["timedOut"]), (&json!(124), &json!(true)), "{late}");
    assert!(late["durationMs"].as_u64().is_some_and(|ms| (50..30_000).contains(&ms)), "{late}");
    let not_late = run(&sh("exit 124"));
    assert!(not_late.get("timedOut").is_none(), "{not_late}");
    let cut = run(&with(sh("printf abcdef; printf abc >&2"), json!({"outputBytesCap": 3})));
    assert_eq!(
        (&cut["stdout"], &cut["stdoutTruncated"], &cut["stdoutBytes"]),
        (&json!("abc"), &json!(true), &json!(6))
    );
    assert!(cut.get("stderrTruncated").is_none() && cut["stderrBytes"] == 3, "{cut}");
}

/// "timeout: 124 …; output so far is kept".
#[test]
fn a_command_ends_with_its_time() {
    let mut server = server();
    check_exec(
        &mut server,
        vec![
            (
                with(sh("printf out; printf err >&2; exec sleep 1000"), json!({"timeoutMs": 1000})),
                "exit 124 out|err",
            ),
            (with(sh("exec sleep 1000"), json!({"timeoutMs": 0})), "exit 124"),
            // It is not asked, it is killed.
            (
                with(sh("trap '' TERM INT HUP; while :; do sleep 1000; done"), json!({"timeoutMs": 100})),
                "exit 124",
            ),
            (with(danger(&["/bin/true"]), json!({"timeoutMs": i64::MAX})), "exit 0"),
            (with(danger(&["/bin/true"]), json!({"timeoutMs": 60_000})), "exit 0"),
            (with(danger(&["/bin/true"]), json!({"disableTimeout": true})), "exit 0"),
        ],
    );
}

/// "Timeout and terminate = SIGKILL to the process group": a descendant that holds the output open is killed, too.
#[test]
fn a_child_of_a_command_ends_with_its_time() {
    let mut server = server();
    let file = server.dir().join("pid");
    let script = format!("sleep 1000 & echo $! > {}; wait", file.display());
    let id = server.request("command/exec", &with(sh(&script), json!({"timeoutMs": 1000})));
    let child = Watched::pid_in(&file);
    let line = server.reply(id);
    assert!(fits(&line, &id.to_string(), "exit 124"), "{line}");
    child.ends("the child");
}

/// Without a limit of its own a command has ten seconds. Nothing shorter would show that it is not less.
#[test]
fn a_command_without_a_limit_has_ten_seconds() {
    let mut server = server();
    let begun = Instant::now();
    let id = server.request("command/exec", &sh("exec sleep 1000"));
    let line = server.reply(id);
    assert!(fits(&line, &id.to_string(), "exit 124"), "{line}");
    assert!(begun.elapsed() >= Duration::from_secs(10) && begun.elapsed() < TIMEOUT, "{:?}", begun.elapsed());
}

/// "waits for EOF on both streams at most **2 s** …, then answers, then SIGKILLs the remaining process group".
#[test]
fn a_background_child_that_holds_the_output_costs_two_seconds_and_ends() {
    let mut server = server();
    let file = server.dir().join("pid");
    let begun = Instant::now();
    let script = format!("sleep 1000 & echo $! > {}; echo done", file.display());
    let id = server.request("command/exec", &sh(&script));
    let child = Watched::pid_in(&file);
    let line = server.reply(id);
    let waited = begun.elapsed();
    assert!(is_result(&line, &result(&id.to_string(), 0, "done\n", "")), "{line}");
    assert!(waited >= Duration::from_millis(1900) && waited < Duration::from_secs(8), "{waited:?}");
    child.ends("the child");
}

/// What it still writes in that time counts.
#[test]
fn output_of_a_background_child_within_the_two_seconds_is_kept() {
    let mut server = server();
    check_exec(&mut server, vec![(sh("(sleep 0.3; echo late) & echo first"), "exit 0 first\nlate\n|")]);
}

#[test]
fn a_background_child_with_files_of_its_own_ends_right_after_the_reply() {
    let mut server = server();
    let file = server.dir().join("pid");
    let script = format!("sleep 1000 >/dev/null 2>&1 </dev/null & echo $! > {}", file.display());
    let begun = Instant::now();
    let id = server.request("command/exec", &sh(&script));
    let child = Watched::pid_in(&file);
    let line = server.reply(id);
    assert!(is_result(&line, &result(&id.to_string(), 0, "", "")), "{line}");
    assert!(begun.elapsed() < Duration::from_secs(2), "nothing was held open");
    child.ends("the child");
}

/// The original's reach is the group. A descendant that has left it outlives every command.
#[test]
fn a_descendant_in_a_session_of_its_own_ends_too() {
    outpost_testkit::require!(crate::table::skip_on_original());
    let mut server = server();
    for (more, code) in [(json!({}), 0), (json!({"timeoutMs": 1500}), 124)] {
        let file = server.dir().join(format!("pid-{code}"));
        let hold = if code == 0 { "" } else { "; sleep 1000" };
        let script = format!(
            "setsid sh -c 'echo $$ > {0}; exec sleep 1000' >/dev/null 2>&1 </dev/null & until [ -s {0} ]; do :; done{hold}",
            file.display()
        );
        let id = server.request("command/exec", &with(sh(&script), more));
        let descendant = Watched::pid_in(&file);
        let line = server.reply(id);
        assert!(fits(&line, &id.to_string(), &format!("exit {code}")), "{line}");
        descendant.ends("the descendant");
    }
}

/// Of a command that only buffers, too.
#[test]
fn a_buffering_command_can_be_terminated() {
    let mut server = server();
    let file = server.dir().join("pid");
    let script = format!("printf before; echo $$ > {}; exec sleep 1000", file.display());
    let params = with(sh(&script), json!({"processId": "p", "disableTimeout": true}));
    let id = server.request("command/exec", &params);
    let command = Watched::pid_in(&file);
    assert!(server.call("command/exec/terminate", &json!({"processId": "p"})).ends_with(r#""result":{}}"#));
    let line = server.reply(id);
    assert!(is_result(&line, &result(&id.to_string(), -1, "before", "")), "{line}");
    command.ends("the command");
}
