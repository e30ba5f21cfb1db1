//! Whatever a CLI does: exactly one terminal event per turn, nothing after it, and errors that say why.

use crate::kit::{CLIS, Host, check, end, kinds, message, numbers, runs};
use serde_json::{Value, json};

/// Runs a script in a new session of claude and returns its events, which are whole.
fn events(host: &Host, steps: &[&str]) -> Vec<Value> {
    let id = host.create();
    let events = host.run(&id, steps).rest();
    end(&events, 1);
    // The session is free again, and another turn has its own end.
    let next = host.run(&id, &["init", "result"]).rest();
    assert_eq!(end(&next, events.len() as u64 + 1)["type"], "result");
    events
}

fn error(host: &Host, steps: &[&str]) -> Value {
    let error = events(host, steps).pop().unwrap();
    assert_eq!(error["type"], "error", "{error}");
    error
}

#[test]
fn a_plain_turn_has_its_events_in_order_and_the_result_last() {
    let host = Host::start();
    let told = events(&host, &["init", "partial a", "partial b", "text ab", "result"]);
    assert_eq!(kinds(&told), ["system", "partial", "partial", "text", "result"]);
    assert_eq!((&told[0]["subtype"], &told[0]["model"]), (&json!("init"), &json!("fake-model")));
    assert_eq!((&told[0]["session_id"], &told[3]["content"]), (&json!("fake-session"), &json!("ab")));
    assert_eq!(told[4]["session_id"], "fake-session");
    assert_eq!(told[4]["raw"]["subtype"], "success");
}

#[test]
fn silence_and_exit_0_is_an_error() {
    let host = Host::start();
    let silent = error(&host, &["exit 0"]);
    assert_eq!(message(&silent), "Claude process ended without a result (code=0, signal=null)");
    assert_eq!((&silent["cli"], &silent["exitCode"]), (&json!("claude"), &json!(0)));
    let without = events(&host, &["init", "text half", "exit 0"]);
    assert_eq!(kinds(&without), ["system", "text", "error"]);
}

#[test]
fn a_failed_exit_says_code_and_the_end_of_standard_error() {
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
fn a_result_stands_whatever_comes_after_it() {
    let host = Host::start();
    for after in [
        &["exit 1"][..],
        &["signal SIGSEGV"],
        &["result", "partial more", "text more"],
        &["fail no", "exit 1"],
    ] {
        let told = events(&host, &[&["init", "result"], after].concat());
        assert_eq!(kinds(&told), ["system", "result"], "{after:?}");
    }
}

#[test]
fn an_error_that_hides_in_a_success_is_an_error() {
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
fn a_cli_that_lives_on_after_its_result_ends_its_turn_and_is_ended() {
    let host = Host::start();
    let id = host.create();
    let chatter = format!("count 1 {} 20000", u32::MAX);
    for last in ["hang", chatter.as_str()] {
        let told = host.run(&id, &["ignore-term", "touch @pid", "result", last]).rest();
        assert_eq!(kinds(&told), ["result"]);
        let pid = host.wait_file("pid");
        host.wait("it was ended", || (!runs(&pid)).then_some(()));
        std::fs::remove_file(host.path("pid")).unwrap();
    }
}

#[test]
fn a_cli_that_failed_and_lives_on_ends_its_turn() {
    let host = Host::start();
    let failed = error(&host, &["init", "fail it broke", "hang"]);
    assert_eq!(message(&failed), "it broke");
}

#[test]
fn a_closed_output_ends_the_turn_though_the_cli_lives_on() {
    let host = Host::start();
    assert_eq!(kinds(&events(&host, &["touch @a", "result", "close-stdout", "hang"])), ["result"]);
    let failed = error(&host, &["touch @b", "init", "partial x", "stderr why", "close-stdout", "hang"]);
    assert!(message(&failed).contains("closed its output") && message(&failed).contains("why"), "{failed}");
    for file in ["a", "b"] {
        host.wait("it was ended", || (!runs(&host.wait_file(file))).then_some(()));
    }
}

#[test]
fn invalid_utf_8_ends_nothing() {
    let host = Host::start();
    let told = events(&host, &["init", "bytes ff00fe0a", "bytes 22c3280a", "partial after", "result"]);
    assert_eq!(kinds(&told), ["system", "raw", "raw", "partial", "result"]);
    assert_eq!(told[4]["unknownLines"], 2);
    // Inside a line that is understood.
    let line = r#"{"type":"assistant","message":{"content":[{"type":"text","text":"a@b"}]}}"#;
    let hex: String =
        line.bytes().map(|byte| if byte == b'@' { "ff".into() } else { format!("{byte:02x}") }).collect();
    let told = events(&host, &[&format!("bytes {hex}0a"), "result"]);
    assert_eq!(told[0]["content"], "a\u{fffd}b");
}

#[test]
fn lines_that_nobody_understands_are_kept_and_counted() {
    let host = Host::start();
    let told = events(
        &host,
        &["line hello", r#"line {"type":"new","x":1}"#, "line [1]", "line {\"type\":", "result"],
    );
    assert_eq!(kinds(&told), ["raw", "raw", "raw", "raw", "result"]);
    assert_eq!((&told[0]["raw"], &told[1]["raw"]), (&json!("hello"), &json!({ "type": "new", "x": 1 })));
    assert_eq!(told[4]["unknownLines"], 4);
}

#[test]
fn the_last_line_needs_no_end() {
    let host = Host::start();
    let line = r#"{"type":"result","subtype":"success","session_id":"s"}"#;
    let hex: String = line.bytes().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(kinds(&events(&host, &["init", &format!("bytes {hex}"), "exit 0"])), ["system", "result"]);
}

#[test]
fn a_line_of_50_mb_arrives_whole() {
    let host = Host::start();
    let told = events(&host, &["init", "long 50000000", "partial 1", "result"]);
    assert_eq!(kinds(&told), ["system", "text", "partial", "result"]);
    assert_eq!(told[1]["content"].as_str().unwrap().len(), 50_000_000);
}

#[test]
fn a_hundred_thousand_events_arrive_complete_and_in_order() {
    let host = Host::start();
    let told = events(&host, &["init", "count 1 100000", "result"]);
    assert_eq!(numbers(&told), (1..=100_000).collect::<Vec<u64>>());
}

#[test]
fn a_grandchild_that_holds_the_output_keeps_no_turn_open() {
    let host = Host::start();
    for how in ["stays", "leaves"] {
        let child = format!("child {how} @{how}");
        let told = events(&host, &["init", &child, "result", "exit 0"]);
        assert_eq!(kinds(&told), ["system", "result"]);
        let failed = events(&host, &["init", &format!("child {how} @{how}-2"), "exit 4"]);
        assert_eq!((kinds(&failed), &failed[1]["exitCode"]), (vec!["system", "error"], &json!(4)));
        for file in [how.to_owned(), format!("{how}-2")] {
            let pid = host.wait_file(&file);
            host.wait("what it left behind is ended", || (!runs(&pid)).then_some(()));
        }
    }
}

#[test]
fn what_a_human_can_do_about_it_is_hinted() {
    let host = Host::start();
    let cases = [
        ("stderr Error: Invalid API key · Please run /login", "log in"),
        (
            "stderr --dangerously-skip-permissions cannot be used with root/sudo privileges for security reasons",
            "root",
        ),
    ];
    for (says, hint) in cases {
        let error = error(&host, &[says, "exit 1"]);
        assert!(error["hint"].as_str().unwrap().contains(hint), "{error}");
        assert!(message(&error).contains("Hint: "), "{error}");
    }
}

#[test]
fn a_conversation_that_is_lost_is_begun_anew() {
    let host = Host::start();
    let id = host.create();
    host.client().result("session.resume", json!({ "sessionId": id, "sdkSessionId": "gone" }));
    let told = host.run(&id, &["stderr No conversation found with session ID: gone", "exit 1"]).rest();
    assert!(end(&told, 1)["hint"].as_str().unwrap().contains("begins a new one"));
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
            let told = host.run(&id, &steps).rest();
            let error = end(&told, first);
            first += told.len() as u64;
            assert_eq!((message(error), error["cli"].as_str()), (text.as_str(), Some(cli)));
        }
    }
}

#[test]
fn a_turn_that_takes_too_long_or_is_silent_too_long_is_stopped_where_the_operator_says_so() {
    let host = Host::start_with("[sessions]\nturn_timeout_s = 2\n", &[]);
    let id = host.create();
    let told = host.run(&id, &["touch @pid", &format!("count 1 {} 50000", u32::MAX)]).rest();
    check(&told, 1);
    assert!(message(told.last().unwrap()).contains("took longer"), "{:?}", told.last());
    host.wait("it was ended", || (!runs(&host.wait_file("pid"))).then_some(()));
    let host = Host::start_with("[sessions]\nsilence_timeout_s = 1\n", &[]);
    let id = host.create();
    let told = host.run(&id, &["init", "touch @pid", "hang"]).rest();
    assert!(message(end(&told, 1)).contains("said nothing"), "{told:?}");
    host.wait("it was ended", || (!runs(&host.wait_file("pid"))).then_some(()));
}

#[test]
fn a_project_that_is_gone_is_told() {
    let host = Host::start();
    let id = host.create();
    std::fs::remove_dir(host.path("project")).unwrap();
    let told = host.run(&id, &["result"]).rest();
    assert!(message(end(&told, 1)).contains("not there any more"), "{told:?}");
}
