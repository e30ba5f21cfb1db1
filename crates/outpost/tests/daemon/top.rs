//! `outpost top` on a terminal, with a real daemon.

use crate::approval_fixture::ApprovalFixture;
use crate::support::{cli, daemon, on_terminal, sh};
use outpost_sys::pidfd::ExitCause;
use outpost_testkit::{Half, Terminal};

/// The line of a process, if it is listed.
fn line<'a>(seen: &'a str, id: &str) -> Option<&'a str> {
    seen.lines().find(|line| line.get(2..).is_some_and(|line| line.starts_with(id)))
}

/// Enters a filter.
fn filter(terminal: &mut Terminal, text: &str) {
    terminal.key(b"/");
    terminal.wait_seen("Filter: _");
    terminal.key(text.as_bytes());
    terminal.wait_seen(&format!("Filter: {text}_"));
    terminal.key(b"\r");
    let kept = format!("1 with \"{text}\"");
    terminal.wait_picture("filter", |seen| seen.contains(&kept) && !seen.contains("Filter"));
}

#[test]
fn processes_stay_listed_after_a_killed_worker_and_can_be_killed() {
    let daemon = daemon();
    sh(&daemon, "steady", ": '\u{1b}[31m'; while :; do echo tick; sleep 0.05; done");
    sh(&daemon, "other", "exec sleep 1000");
    let mut terminal = on_terminal(&daemon, &["top"], 24, 150);
    let has_rate =
        |seen: &str| line(seen, "steady").is_some_and(|line| line.contains("B/s") && !line.contains(" 0B/s"));
    let seen = terminal.wait_picture("output in the last second", has_rate);
    assert!(seen.starts_with("outpost ") && seen.contains("2 running, 0 ended"), "{seen}");
    assert!(seen.contains("\\u{1b}[31m") && seen.contains("Sessions   none"), "{seen}");
    let before = daemon.status().worker_pid;
    daemon.kill(Half::Worker);
    let seen = terminal.wait_seen(&format!("worker {before} was replaced by "));
    assert!(line(&seen, "other").is_some(), "{seen}");
    terminal.wait_picture("output of after", has_rate);
    filter(&mut terminal, "other");
    terminal.key(b"k");
    terminal.wait_seen("y kills other (pid ");
    terminal.key(b"n");
    terminal.wait_picture("list again", |seen| !seen.contains("y kills other"));
    assert!(daemon.list().iter().all(|process| process.exit.is_none()));
    terminal.key(b"k");
    terminal.wait_seen("y kills other (pid ");
    terminal.key(b"y");
    terminal.wait_seen("other: terminated");
    terminal.wait_seen("1 running, 1 ended");
    terminal.resize(3, 20);
    terminal.key(b"q");
    assert_eq!(terminal.wait().cause, ExitCause::Code(0));
    terminal.wait_picture("screen as it was", |seen| seen.trim().is_empty());
    assert!(!terminal.reads_keys(), "the terminal is as it was, too");
}

#[test]
fn pending_questions_are_counted_and_a_stopped_daemon_is_shown() {
    let fixture = ApprovalFixture::enrolled();
    let mut terminal = on_terminal(&fixture.daemon, &["top"], 24, 110);
    terminal.wait_seen("none pending");
    let _client = fixture.ask("one", &["echo", "unseen"]);
    let seen = terminal.wait_seen("1 pending for ");
    assert!(!seen.contains("unseen"), "only approvers see the command: {seen}");
    assert!(cli(&fixture.daemon, &["stop"]).status().unwrap().success());
    terminal.wait_seen("DAEMON UNREACHABLE for ");
    terminal.key(b"q");
    assert_eq!(terminal.wait().cause, ExitCause::Code(0));
}

#[test]
fn a_process_can_be_attached_to_from_the_list() {
    let daemon = daemon();
    sh(&daemon, "talks", "echo some output; exec sleep 1000");
    let mut terminal = on_terminal(&daemon, &["top"], 24, 80);
    terminal.wait_picture("process", |seen| line(seen, "talks").is_some());
    terminal.key(b"\r");
    terminal.wait_seen("Process    control/talks, number ");
    terminal.key(b"a");
    let seen = terminal.wait_picture("output", |seen| seen.starts_with("some output"));
    assert!(!seen.contains("Process    "), "{seen}");
}
