//! `outpost approve` on a terminal, with a real daemon.

use crate::approval_fixture::{ApprovalFixture, UNPRIVILEGED_UID, answer};
use outpost_sys::pidfd::ExitCause;
use outpost_sys::signal::Signal;
use outpost_testkit::{BrokerClient, Half, Terminal, require, root};
use serde_json::json;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(60);

/// How long keys are ignored after a question appears.
const KEYS_IGNORED: Duration = Duration::from_millis(700);

/// Interval between key presses in [`press_until`].
const AGAIN: Duration = Duration::from_millis(100);

const DOWN: &[u8] = b"\x1b[B";
const END: &[u8] = b"\x1b[F";

/// Presses a key until the screen shows its effect, since the client ignores keys that come too early.
fn press_until(terminal: &mut Terminal, key: &[u8], wanted: &str) -> String {
    let started = Instant::now();
    loop {
        terminal.key(key);
        let waited = Instant::now();
        while waited.elapsed() < AGAIN {
            let seen = terminal.picture();
            if seen.contains(wanted) {
                return seen;
            }
            terminal.wait_drawn(AGAIN);
        }
        assert!(started.elapsed() < TIMEOUT, "no {wanted:?} of {key:?}:\n{}", terminal.picture());
    }
}

/// Opens the selected question, scrolls to its end, and waits until keys are accepted: two updates of the remaining time.
fn read(terminal: &mut Terminal) {
    press_until(terminal, b"\r", "left  lines 1-");
    press_until(terminal, END, "End of the question");
    wait_seconds(terminal, 2);
}

/// Makes a request and reads its question on a screen to the end.
fn read_first(fixture: &ApprovalFixture) -> (Terminal, BrokerClient) {
    let mut terminal = fixture.approve(50, 100);
    let client = fixture.ask("one", &["true"]);
    terminal.wait_seen("1 pending question");
    read(&mut terminal);
    (terminal, client)
}

/// Waits until the displayed remaining time has changed this many times.
fn wait_seconds(terminal: &Terminal, times: usize) {
    for _ in 0..times {
        let before = head(&terminal.picture());
        terminal.wait_picture("other time left", |seen| head(seen) != before);
    }
}

fn head(picture: &str) -> String {
    picture.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn a_command_runs_only_after_its_question_was_read_and_approved() {
    let fixture = ApprovalFixture::enrolled();
    let mut terminal = fixture.approve(50, 100);
    terminal.wait_seen("outpost approve: no pending questions");
    let file = fixture.path("made");
    let mut client = fixture.ask_with("one", &["touch", file.to_str().unwrap()], json!({"reason": "tests"}));
    let seen = terminal.wait_seen("1 pending question");
    assert!(seen.contains("you ") && seen.contains("touch /"), "{seen}");
    // Keys in the list decide nothing, and Enter only opens a question.
    for key in [b"y", b"n", b"r", b"d"] {
        terminal.key(key);
        terminal.wait_drawn(AGAIN);
    }
    read(&mut terminal);
    let seen = terminal.picture();
    assert!(seen.contains("reason: tests") && seen.contains("not verified"), "{seen}");
    assert!(seen.contains("y approve  n deny"), "{seen}");
    terminal.key(b"\r");
    wait_seconds(&terminal, 1);
    assert!(!file.exists() && !client.has_answer(Duration::ZERO), "{}", terminal.picture());
    terminal.key(b"y");
    terminal.wait_seen("approved by you");
    let done = answer(&mut client);
    assert_eq!((&done["status"], &done["decision"]), (&json!("ok"), &json!("human")));
    assert!(done["approved_by"].as_str().unwrap().ends_with("with outpost approve"), "{done}");
    assert!(file.exists());
    terminal.wait_seen("no pending questions");
    terminal.key(b"\x03");
    assert_eq!(terminal.wait().cause, ExitCause::Code(0));
    terminal.wait_picture("screen as it was", |seen| seen.trim().is_empty());
    assert!(!terminal.reads_keys(), "the terminal is as it was, too");
}

#[test]
fn keys_pressed_before_the_question_was_readable_are_ignored() {
    let fixture = ApprovalFixture::enrolled();
    let mut terminal = fixture.approve(50, 100);
    for attempt in 0..20 {
        let client = fixture.ask(&format!("attempt {attempt}"), &["true"]);
        terminal.wait_seen("1 pending question");
        let started = Instant::now();
        press_until(&mut terminal, b"\r", "End of the question");
        terminal.key(b"y");
        let seen = press_until(&mut terminal, b"\x1b", "Enter details");
        // On a slow host the key may have come too late for this test.
        if started.elapsed() < KEYS_IGNORED {
            assert!(seen.contains("1 pending question") && !client.has_answer(Duration::ZERO), "{seen}");
            return;
        }
        drop(client);
        terminal.wait_seen("no pending questions");
    }
    panic!("this host is too slow for this test");
}

#[test]
fn the_screen_layout_is_exact() {
    let fixture = ApprovalFixture::enrolled();
    let mut terminal = fixture.approve(10, 40);
    let first = terminal.wait_seen("connected as");
    let lines: Vec<&str> = first.lines().collect();
    assert_eq!(lines[..2], ["outpost approve: no pending questions", "   AGE LEFT AS   DIGEST   COMMAND"]);
    assert_eq!(lines[9], "Enter details  g grants  q quit");
    let _client = fixture.ask("one", &["echo", "\u{44f}"]);
    terminal.wait_seen("echo");
    terminal.key(b"\r");
    let seen = terminal.wait_seen("y approve n deny");
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!(lines[1..4], ["Command", "  echo '\\u{44f}'", "What it is"], "{seen}");
    assert_eq!(lines[9], "y approve n deny d note r rem. Esc q");
    assert!(seen.is_ascii(), "{seen}");
}

#[test]
fn a_typed_note_reaches_the_client() {
    let fixture = ApprovalFixture::enrolled();
    let (mut terminal, mut client) = read_first(&fixture);
    terminal.key(b"d");
    terminal.wait_seen("Reason of the denial");
    terminal.key(b"use the other host");
    terminal.wait_seen("use the other host_");
    terminal.key(b"\r");
    let denied = answer(&mut client);
    assert_eq!((&denied["status"], &denied["message"]), (&json!("denied"), &json!("use the other host")));
    terminal.wait_seen("denied by you: use the other host");
}

#[test]
fn a_grant_allows_runs_until_it_is_revoked() {
    let fixture = ApprovalFixture::enrolled();
    let (mut terminal, mut client) = read_first(&fixture);
    terminal.key(b"r");
    terminal.wait_seen("Approve this, also for _ more times");
    terminal.key(b"m");
    terminal.wait_seen("for _ minutes");
    terminal.key(b"5");
    terminal.wait_seen("for 5_ minutes");
    wait_seconds(&terminal, 2);
    terminal.key(b"y");
    terminal.wait_seen("approved and remembered by you");
    assert_eq!(answer(&mut client)["decision"], "human");
    assert_eq!(answer(&mut fixture.ask("two", &["true"]))["decision"], "grant");
    press_until(&mut terminal, b"g", "1 grant");
    press_until(&mut terminal, b"x", "No grants");
    let _client = fixture.ask("three", &["true"]);
    terminal.key(b"\x1b");
    terminal.wait_seen("1 pending question");
    terminal.key(b"q");
    assert_eq!(terminal.wait().cause, ExitCause::Code(0));
}

#[test]
fn another_approver_sees_what_the_first_one_decided() {
    let fixture = ApprovalFixture::enrolled();
    let (mut first, mut second) = (fixture.approve(50, 130), fixture.approve(50, 130));
    let mut client = fixture.ask("one", &["true"]);
    for terminal in [&mut first, &mut second] {
        terminal.wait_seen("1 pending question");
        read(terminal);
    }
    first.key(b"n");
    first.wait_seen("denied by you");
    let seen = second.wait_seen("denied by desk (SHA256:");
    assert!(seen.contains("no pending questions") && seen.contains("with outpost approve"), "{seen}");
    assert_eq!(answer(&mut client)["status"], "denied");
    let client = fixture.ask("two", &["echo"]);
    second.wait_seen("1 pending question");
    read(&mut second);
    drop(client);
    second.wait_seen("withdrawn: the requester disconnected");
}

#[test]
fn a_command_that_does_not_fit_is_scrolled_before_it_is_approved() {
    let fixture = ApprovalFixture::enrolled();
    let mut terminal = fixture.approve(12, 80);
    let long = "x".repeat(2000);
    let mut client = fixture.ask("one", &["echo", &long]);
    terminal.wait_seen("1 pending question");
    press_until(&mut terminal, b"\r", "lines 1-8");
    wait_seconds(&terminal, 2);
    terminal.key(b"y");
    terminal.wait_seen("more below: press End");
    terminal.key(DOWN);
    terminal.wait_seen("lines 2-9");
    terminal.key(END);
    terminal.wait_seen("End of the question");
    terminal.key(b"y");
    terminal.wait_seen("approved by you");
    assert_eq!(answer(&mut client)["status"], "ok");
}

#[test]
fn a_privileged_command_needs_two_key_presses() {
    // For a user other than root, sudo would prompt for a password.
    require!(root());
    let fixture = ApprovalFixture::enrolled();
    let mut terminal = fixture.approve(50, 100);
    let mut client = fixture.ask_with("one", &["id", "-u"], json!({"privileged": true}));
    terminal.wait_seen("s root ");
    read(&mut terminal);
    terminal.key(b"y");
    let seen = terminal.wait_seen("press y again within 3 s");
    assert!(seen.contains("PRIVILEGED: this runs as root"), "{seen}");
    assert!(!client.has_answer(Duration::ZERO));
    terminal.key(b"y");
    terminal.wait_seen("approved by you");
    assert_eq!(answer(&mut client)["stdout"], "MAo=");
}

#[test]
fn questions_outlive_the_worker_and_the_connection_comes_back() {
    let fixture = ApprovalFixture::enrolled();
    let (mut terminal, mut client) = read_first(&fixture);
    fixture.daemon.kill(Half::Worker);
    terminal.wait_seen("reconnected as");
    terminal.key(b"y");
    terminal.wait_seen("approved by you");
    assert_eq!(answer(&mut client)["status"], "ok");
}

#[test]
fn the_terminal_is_restored_after_each_signal() {
    let fixture = ApprovalFixture::enrolled();
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130)] {
        let mut terminal = fixture.approve(24, 80);
        terminal.wait_seen("no pending questions");
        assert!(terminal.reads_keys());
        terminal.signal(signal);
        assert_eq!(terminal.wait().cause, ExitCause::Code(code));
        assert!(!terminal.reads_keys());
        terminal.wait_picture("empty screen", |seen| seen.trim().is_empty());
    }
}

#[test]
fn root_decides_for_another_users_daemon_with_its_own_key_and_pastes_decide_nothing() {
    let fixture = require!(ApprovalFixture::for_other_user());
    let (mut terminal, mut client) = read_first(&fixture);
    let typed = [&b"\x1b[200~yyyy\ny\x1b[201~"[..], b"\x1by", b"yy", b"\x1b]0;y\x07", b"\x1bOy"];
    for keys in typed {
        terminal.key(keys);
        wait_seconds(&terminal, 1);
    }
    assert!(!client.has_answer(Duration::ZERO), "{}", terminal.picture());
    terminal.key(b"y");
    terminal.wait_seen("approved by you");
    assert_eq!(answer(&mut client)["status"], "ok");
}

#[test]
fn the_passphrase_is_asked_for_on_the_terminal_and_not_shown() {
    let fixture = ApprovalFixture::enrolled();
    fixture.ssh_key("locked", "correct horse", 0);
    let mut terminal = fixture.approve_with(&["--key", "locked"], 24, 80);
    terminal.wait_seen("Passphrase of the approver key:");
    terminal.key(b"correct horse\r");
    terminal.wait_seen("no pending questions");
    assert!(!terminal.screen().contains("correct horse"));
}

#[test]
fn text_that_would_move_the_cursor_never_reaches_the_screen() {
    let fixture = ApprovalFixture::enrolled();
    let mut terminal = fixture.approve(50, 100);
    let mut hostile = fixture.ask_with("one", &["true"], json!({"reason": "\u{1b}[2J\u{1b}[1;1Happroved"}));
    assert_eq!(answer(&mut hostile)["status"], "error");
    let _client = fixture.ask_with("two", &["echo", "\u{43e}k\n"], json!({"reason": "\u{43e}k"}));
    terminal.wait_seen("1 pending question");
    read(&mut terminal);
    let seen = terminal.picture();
    assert!(seen.contains("1: '\\u{43e}k\\n'") && seen.contains("reason: \\u{43e}k"), "{seen}");
    assert!(seen.contains("WARNING: ") && seen.is_ascii(), "{seen}");
}

/// The approver types the passphrase into this process, and it signs decisions.
#[test]
fn other_processes_of_the_approver_cannot_read_its_memory() {
    let fixture = require!(ApprovalFixture::for_other_user());
    fixture.ssh_key("state/approver.key", "correct horse", UNPRIVILEGED_UID);
    let terminal = fixture.approve_as_other_user();
    terminal.wait_seen("Passphrase of the approver key:");
    let owner = |name: &str| std::fs::metadata(format!("/proc/{}/{name}", terminal.pid())).unwrap().uid();
    assert_eq!(
        (owner("status"), owner("mem")),
        (0, 0),
        "its /proc files belong to root, so it is not dumpable"
    );
}
