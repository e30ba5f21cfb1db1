//! Terminal events: whatever the CLI does, each turn has exactly one, as its last event. It has the reason of a failure.

use crate::kit::{CLIS, Host, check_turns, delta_numbers, is_running, kinds, message, terminal_event};
use serde_json::{Value, json};

/// Runs a script in a new claude session and returns its events.
fn run_script(host: &Host, steps: &[&str]) -> Vec<Value> {
    let id = host.create();
    let events = host.run(&id, steps).rest();
    terminal_event(&events, 1);
    // The session is idle again, and another turn has its own terminal event.
    let next = host.run(&id, &["init", "result"]).rest();
    assert_eq!(terminal_event(&next, events.len() as u64 + 1)["type"], "result");
    events
}

fn error(host: &Host, steps: &[&str]) -> Value {
    let error = run_script(host, steps).pop().unwrap();
    assert_eq!(error["type"], "error", "{error}");
    error
}

#[test]
fn a_plain_turn_has_its_events_in_order_and_the_result_last() {
    let host = Host::start();
    let events = run_script(&host, &["init", "partial a", "partial b", "text ab", "result"]);
    assert_eq!(kinds(&events), ["system", "partial", "partial", "text", "result"]);
    assert_eq!((&events[0]["subtype"], &events[0]["model"]), (&json!("init"), &json!("fake-model")));
    assert_eq!((&events[0]["session_id"], &events[3]["content"]), (&json!("fake-session"), &json!("ab")));
    assert_eq!(events[4]["session_id"], "fake-session");
    assert_eq!(events[4]["raw"]["subtype"], "success");
}

#[test]
fn silence_and_exit_0_is_an_error() {
    let host = Host::start();
    let silent = error(&host, &["exit 0"]);
    assert_eq!(message(&silent), "Claude process ended without a result (code=0, signal=null)");
    assert_eq!((&silent["cli"], &silent["exitCode"]), (&json!("claude"), &json!(0)));
    let without = run_script(&host, &["init", "text half", "exit 0"]);
    assert_eq!(kinds(&without), ["system", "text", "error"]);
}

#[test]
fn a_failed_exit_reports_its_code_and_the_stderr_tail() {
    let host = Host::start();
    let failed = error(&host, &["init", "stderr first", "stderr \u{1b}[31mboom\u{1b}[0m", "exit 3"]);
    assert_eq!(message(&failed), "Claude process exited abnormally (code=3, signal=null): first\nboom");
    assert_eq!((&failed["exitCode"], &failed["stderr"]), (&json!(3), &json!("first\nboom\n")));
    let lines: Vec<String> = (0..2000).map(|n| format!("stderr line {n}")).collect();
    let mut steps: Vec<&str> = lines.iter().map(String::as_str).collect();
    steps.push("exit 1");
    let long = error(&host, &steps);
    let tail = long["stderr"].as_str().unwrap();
    assert!(tail.ends_with("line 1998\nline 1999\n") && tail.len() <= 4096, "{}", tail.len());
    assert!(message(&long).len() < 1000 && message(&long).ends_with("line 1999"), "{}", message(&long));
}

#[test]
fn a_signal_is_named() {
    let host = Host::start();
    for signal in ["SIGKILL", "SIGSEGV", "SIGTERM", "SIGABRT"] {
        let error = error(&host, &["init", "partial x", &format!("signal {signal}")]);
        let text = format!("Claude process exited abnormally (code=null, signal={signal})");
        assert_eq!((message(&error), error["signal"].as_str()), (text.as_str(), Some(signal)));
        assert_eq!(error.get("exitCode"), None);
    }
}

#[test]
fn a_result_is_final_whatever_follows_it() {
    let host = Host::start();
    for after in [
        &["exit 1"][..],
        &["signal SIGSEGV"],
        &["result", "partial more", "text more"],
        &["fail no", "exit 1"],
    ] {
        let events = run_script(&host, &[&["init", "result"], after].concat());
        assert_eq!(kinds(&events), ["system", "result"], "{after:?}");
    }
}

#[test]
fn an_error_with_subtype_success_is_an_error() {
    let host = Host::start();
    for exit in ["exit 0", "exit 1"] {
        let failed = error(&host, &["init", "fail Credit balance is too low", exit]);
        assert_eq!(message(&failed), "Credit balance is too low");
        assert_eq!(failed["cli"], "claude");
    }
    let line = r#"line {"type":"result","subtype":"error_max_turns","session_id":"s"}"#;
    assert!(message(&error(&host, &["init", line])).contains("error_max_turns"));
}

#[test]
fn a_cli_that_does_not_exit_after_its_result_is_terminated() {
    let host = Host::start();
    let id = host.create();
    let chatter = format!("count 1 {} 20000", u32::MAX);
    for last in ["hang", chatter.as_str()] {
        let events = host.run(&id, &["ignore-term", "touch @pid", "result", last]).rest();
        assert_eq!(kinds(&events), ["result"]);
        let pid = host.wait_file("pid");
        host.wait("it was ended", || (!is_running(&pid)).then_some(()));
        std::fs::remove_file(host.path("pid")).unwrap();
    }
}

#[test]
fn a_failed_cli_that_does_not_exit_ends_its_turn() {
    let host = Host::start();
    let failed = error(&host, &["init", "fail it broke", "hang"]);
    assert_eq!(message(&failed), "it broke");
}

#[test]
fn a_closed_output_ends_the_turn_of_a_running_cli() {
    let host = Host::start();
    assert_eq!(kinds(&run_script(&host, &["touch @a", "result", "close-stdout", "hang"])), ["result"]);
    let failed = error(&host, &["touch @b", "init", "partial x", "stderr why", "close-stdout", "hang"]);
    assert!(message(&failed).contains("closed its output") && message(&failed).contains("why"), "{failed}");
    for file in ["a", "b"] {
        host.wait("it was ended", || (!is_running(&host.wait_file(file))).then_some(()));
    }
}

#[test]
fn invalid_utf_8_is_not_fatal() {
    let host = Host::start();
    let events = run_script(&host, &["init", "bytes ff00fe0a", "bytes 22c3280a", "partial after", "result"]);
    assert_eq!(kinds(&events), ["system", "raw", "raw", "partial", "result"]);
    assert_eq!(events[4]["unknownLines"], 2);
    // Invalid bytes inside a line of valid JSON.
    let line = r#"{"type":"assistant","message":{"content":[{"type":"text","text":"a@b"}]}}"#;
    let hex: String =
        line.bytes().map(|byte| if byte == b'@' { "ff".into() } else { format!("{byte:02x}") }).collect();
    let events = run_script(&host, &[&format!("bytes {hex}0a"), "result"]);
    assert_eq!(events[0]["content"], "a\u{fffd}b");
}

#[test]
fn unknown_lines_are_kept_and_counted() {
    let host = Host::start();
    let events = run_script(
        &host,
        &["line hello", r#"line {"type":"new","x":1}"#, "line [1]", "line {\"type\":", "result"],
    );
    assert_eq!(kinds(&events), ["raw", "raw", "raw", "raw", "result"]);
    assert_eq!((&events[0]["raw"], &events[1]["raw"]), (&json!("hello"), &json!({ "type": "new", "x": 1 })));
    assert_eq!(events[4]["unknownLines"], 4);
}

#[test]
fn the_last_line_needs_no_line_feed() {
    let host = Host::start();
    let line = r#"{"type":"result","subtype":"success","session_id":"s"}"#;
    let hex: String = line.bytes().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(kinds(&run_script(&host, &["init", &format!("bytes {hex}"), "exit 0"])), ["system", "result"]);
}

#[test]
fn a_line_of_50_mb_arrives_whole() {
    let host = Host::start();
    let events = run_script(&host, &["init", "long 50000000", "partial 1", "result"]);
    assert_eq!(kinds(&events), ["system", "text", "partial", "result"]);
    assert_eq!(events[1]["content"].as_str().unwrap().len(), 50_000_000);
}

#[test]
fn a_hundred_thousand_events_arrive_complete_and_in_order() {
    let host = Host::start();
    let events = run_script(&host, &["init", "count 1 100000", "result"]);
    assert_eq!(delta_numbers(&events), (1..=100_000).collect::<Vec<u64>>());
}

#[test]
fn a_grandchild_that_holds_the_output_does_not_keep_the_turn_open() {
    let host = Host::start();
    for how in ["stays", "leaves"] {
        let child = format!("child {how} @{how}");
        let events = run_script(&host, &["init", &child, "result", "exit 0"]);
        assert_eq!(kinds(&events), ["system", "result"]);
        let failed = run_script(&host, &["init", &format!("child {how} @{how}-2"), "exit 4"]);
        assert_eq!((kinds(&failed), &failed[1]["exitCode"]), (vec!["system", "error"], &json!(4)));
        for file in [how.to_owned(), format!("{how}-2")] {
            let pid = host.wait_file(&file);
            host.wait("what it left behind is ended", || (!is_running(&pid)).then_some(()));
        }
    }
}

#[test]
fn known_failures_have_a_hint() {
    let host = Host::start();
    let cases = [
        ("stderr Error: Invalid API key · Please run /login", "log in"),
        (
            "stderr --dangerously-skip-permissions cannot be used with root/sudo privileges for security reasons",
            "root",
        ),
    ];
    for (step, hint) in cases {
        let error = error(&host, &[step, "exit 1"]);
        assert!(error["hint"].as_str().unwrap().contains(hint), "{error}");
        assert!(message(&error).contains("Hint: "), "{error}");
    }
}

#[test]
fn a_missing_conversation_is_replaced_by_a_new_one() {
    let host = Host::start();
    let id = host.create();
    host.client().result("session.resume", json!({ "sessionId": id, "sdkSessionId": "gone" }));
    let events = host.run(&id, &["stderr No conversation found with session ID: gone", "exit 1"]).rest();
    assert!(terminal_event(&events, 1)["hint"].as_str().unwrap().contains("begins a new one"));
    assert_eq!(host.listed(&id)["sdkSessionId"], Value::Null);
    host.run(&id, &["record @argv", "init", "result"]).rest();
    assert!(!host.wait_record("argv")["argv"].to_string().contains("--resume"));
}

#[test]
fn each_cli_is_named_in_its_errors() {
    let host = Host::start();
    for (cli, title) in CLIS.into_iter().zip(["Claude", "Codex", "Gemini", "OpenCode"]) {
        let id = host.create_with(json!({ "cli_type": cli }));
        let mut first = 1;
        for (steps, text) in [
            (["stderr oh", "exit 7"], format!("{title} process exited abnormally (code=7, signal=null): oh")),
            (
                ["stderr oh", "signal SIGKILL"],
                format!("{title} process exited abnormally (code=null, signal=SIGKILL): oh"),
            ),
            (
                ["stderr oh", "exit 0"],
                format!("{title} process ended without a result (code=0, signal=null): oh"),
            ),
        ] {
            let events = host.run(&id, &steps).rest();
            let error = terminal_event(&events, first);
            first += events.len() as u64;
            assert_eq!((message(error), error["cli"].as_str()), (text.as_str(), Some(cli)));
        }
    }
}

#[test]
fn a_turn_is_stopped_at_the_operators_time_limits() {
    let host = Host::start_with("[sessions]\nturn_timeout_s = 2\n", &[]);
    let id = host.create();
    let events = host.run(&id, &["touch @pid", &format!("count 1 {} 50000", u32::MAX)]).rest();
    check_turns(&events, 1);
    assert!(message(events.last().unwrap()).contains("exceeded the time limit"), "{:?}", events.last());
    host.wait("it was ended", || (!is_running(&host.wait_file("pid"))).then_some(()));
    let host = Host::start_with("[sessions]\nsilence_timeout_s = 1\n", &[]);
    let id = host.create();
    let events = host.run(&id, &["init", "touch @pid", "hang"]).rest();
    assert!(message(terminal_event(&events, 1)).contains("wrote no output"), "{events:?}");
    host.wait("it was ended", || (!is_running(&host.wait_file("pid"))).then_some(()));
}

#[test]
fn a_missing_project_is_reported() {
    let host = Host::start();
    let id = host.create();
    std::fs::remove_dir(host.path("project")).unwrap();
    let events = host.run(&id, &["result"]).rest();
    assert!(message(terminal_event(&events, 1)).contains("not there any more"), "{events:?}");
}
