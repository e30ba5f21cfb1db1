//! Every agent CLI with the fake model: a turn, a tool, and a session that continues. The sessions face relies on the
//! shapes of their lines.

use outpost_testkit::{AgentHome, Lack, Model, Ran, require};
use serde_json::{Value, json};

const MAKE: &str = "please [[sh: echo hi > made.txt]]";

/// The members that classify a line.
fn kinds(lines: &[Value], pointers: &[&str]) -> Vec<String> {
    let kind = |line: &Value| {
        let parts = pointers.iter().filter_map(|pointer| line.pointer(pointer)?.as_str());
        parts.collect::<Vec<_>>().join(" ")
    };
    lines.iter().map(kind).collect()
}

/// A turn that must succeed.
fn turn(home: &AgentHome, cli: &str, arguments: &[&str]) -> Result<Vec<Value>, Lack> {
    let ran = home.run(cli, arguments)?;
    let Ran { status, stderr, .. } = &ran;
    assert!(status.success(), "{cli} {arguments:?}: {status}\n{}\n{stderr}", ran.stdout);
    Ok(ran.lines())
}

fn was_made(home: &AgentHome) -> bool {
    std::fs::read_to_string(home.work().join("made.txt")).is_ok_and(|text| text == "hi\n")
}

/// The concatenated text at this pointer.
fn text_at(lines: &[Value], pointer: &str) -> String {
    lines.iter().filter_map(|line| line.pointer(pointer)?.as_str()).collect()
}

#[test]
fn claude_streams_calls_a_tool_and_resumes() {
    let model = Model::start();
    let home = AgentHome::new(&model);
    let flags = ["-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages"];
    let run = |more: &[&str]| turn(&home, "claude", &[&flags[..], more].concat());
    let lines = require!(run(&["hello there"]));
    let pointers = ["/type", "/subtype", "/event/type", "/message/content/0/type"];
    let delta = "stream_event content_block_delta";
    let expected = [
        "system init",
        "system status",
        "stream_event message_start",
        "stream_event content_block_start",
        delta,
        delta,
        delta,
        delta,
        "assistant text",
        "stream_event content_block_stop",
        "stream_event message_delta",
        "stream_event message_stop",
        "result success",
    ];
    assert_eq!(kinds(&lines, &pointers), expected);
    assert_eq!(text_at(&lines, "/event/delta/text"), "You wrote: hello there");
    assert_eq!(text_at(&lines, "/message/content/0/text"), "You wrote: hello there");
    assert_eq!(lines.last().unwrap()["is_error"], false);

    let lines = run(&["--permission-mode", "bypassPermissions", MAKE]).unwrap();
    let whole: Vec<String> =
        kinds(&lines, &pointers).into_iter().filter(|kind| !kind.starts_with("s")).collect();
    assert_eq!(
        whole,
        ["assistant text", "assistant tool_use", "user tool_result", "assistant text", "result success"]
    );
    assert!(was_made(&home));
    let session = lines.first().unwrap()["session_id"].as_str().unwrap();
    let lines = run(&["--resume", session, "[[history]]"]).unwrap();
    assert_eq!(lines.last().unwrap()["result"], format!("I saw 2 prompts; the first was: {MAKE}"));
    assert_eq!(lines.last().unwrap()["session_id"], session);
}

#[test]
fn codex_answers_calls_a_tool_and_resumes() {
    let model = Model::start();
    let home = AgentHome::new(&model);
    let flags = ["exec", "--json", "--skip-git-repo-check"];
    let run = |more: &[&str]| turn(&home, "codex", &[&flags[..], more].concat());
    let lines = require!(run(&["hello there"]));
    let pointers = ["/type", "/item/type"];
    let begun = ["thread.started", "item.completed error", "turn.started"];
    let (said, end) = ("item.completed agent_message", "turn.completed");
    assert_eq!(kinds(&lines, &pointers), [&begun[..], &[said, end]].concat());
    let answer = |lines: &[Value]| lines[lines.len() - 2].pointer("/item/text").cloned().unwrap_or_default();
    assert_eq!(answer(&lines), "You wrote: hello there");

    let lines = run(&["--dangerously-bypass-approvals-and-sandbox", MAKE]).unwrap();
    let tool = [said, "item.started command_execution", "item.completed command_execution"];
    assert_eq!(kinds(&lines, &pointers), [&begun[..], &tool, &[said, end]].concat());
    let ran = &lines[5]["item"];
    assert_eq!((&ran["status"], &ran["exit_code"]), (&json!("completed"), &json!(0)));
    assert!(was_made(&home));
    let thread = lines[0]["thread_id"].as_str().unwrap();
    let lines = run(&["resume", thread, "[[history]]"]).unwrap();
    assert_eq!(lines[0]["thread_id"], thread);
    assert_eq!(answer(&lines), format!("I saw 2 prompts; the first was: {MAKE}"));
}

#[test]
fn gemini_streams_calls_a_tool_and_resumes() {
    let model = Model::start();
    let home = AgentHome::new(&model);
    let run = |more: &[&str]| turn(&home, "gemini", &[&["-o", "stream-json"], more].concat());
    let lines = require!(run(&["-p", "hello there"]));
    let pointers = ["/type", "/role", "/status"];
    let (begun, word, end) = (["init", "message user"], "message assistant", "result success");
    assert_eq!(kinds(&lines, &pointers), [&begun[..], &[word; 4], &[end]].concat());
    let answer = |lines: &[Value]| text_at(lines.get(2..).unwrap_or_default(), "/content");
    assert_eq!(answer(&lines), "You wrote: hello there");

    let lines = run(&["--approval-mode", "yolo", "-p", MAKE]).unwrap();
    let tool = ["tool_use", "tool_result success"];
    assert_eq!(kinds(&lines, &pointers), [&begun[..], &[word; 2], &tool, &[word; 4], &[end]].concat());
    assert!(was_made(&home));
    let session = lines[0]["session_id"].as_str().unwrap();
    let lines = run(&["--resume", session, "-p", "[[history]]"]).unwrap();
    assert_eq!(lines[0]["session_id"], session);
    assert_eq!(answer(&lines), format!("I saw 2 prompts; the first was: {MAKE}"));
}

#[test]
fn opencode_answers_calls_a_tool_and_resumes() {
    let model = Model::start();
    let home = AgentHome::new(&model);
    let run = |more: &[&str]| turn(&home, "opencode", &[&["run", "--format", "json"], more].concat());
    let lines = require!(run(&["hello"]));
    let pointers = ["/type", "/part/reason"];
    let answered = ["step_start", "text", "step_finish stop"];
    assert_eq!(kinds(&lines, &pointers), answered);
    assert_eq!(text_at(&lines, "/part/text"), "You wrote: hello");

    let lines = run(&[MAKE]).unwrap();
    let called = ["step_start", "text", "tool_use", "step_finish tool-calls"];
    assert_eq!(kinds(&lines, &pointers), [&called[..], &answered].concat());
    assert_eq!(lines[2].pointer("/part/state/metadata/exit"), Some(&json!(0)));
    assert!(was_made(&home));
    let session = lines[0]["sessionID"].as_str().unwrap();
    let lines = run(&["--session", session, "[[history]]"]).unwrap();
    assert_eq!(lines[0]["sessionID"], session);
    // It puts a prompt with spaces in quotes.
    assert_eq!(text_at(&lines, "/part/text"), format!("I saw 2 prompts; the first was: \"{MAKE}\""));
}
