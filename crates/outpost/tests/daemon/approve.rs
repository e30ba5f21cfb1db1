//! `outpost approve`, on a terminal and in front of a real daemon.

use crate::desk::{Desk, NOBODY, answer};
use outpost_sys::pidfd::How;
use outpost_sys::signal::Signal;
use outpost_testkit::{BrokerClient, Terminal, Which, require, root};
use serde_json::json;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// Longer than any test takes to see what it waits for.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is typed within this after a question has come into sight is ignored.
const KEYS_IGNORED: Duration = Duration::from_millis(700);

/// Between two presses of a key that may not count yet.
const AGAIN: Duration = Duration::from_millis(100);

const DOWN: &[u8] = b"\x1b[B";
const END: &[u8] = b"\x1b[F";

/// Presses a key until the screen shows what comes of it. Those that come too early are ignored: that is what is tested.
fn press_until(terminal: &mut Terminal, key: &[u8], wanted: &str) -> String {
    let begun = Instant::now();
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
        assert!(begun.elapsed() < PATIENCE, "no {wanted:?} of {key:?}:\n{}", terminal.picture());
    }
}

/// Opens the selected question, goes to its end, and waits until keys count: the time that is left was drawn anew twice.
fn read(terminal: &mut Terminal) {
    press_until(terminal, b"\r", "left  lines 1-");
    press_until(terminal, END, "End of the question");
    wait_seconds(terminal, 2);
}

/// Asks for something, and reads it on a screen to its end.
fn read_first(desk: &Desk) -> (Terminal, BrokerClient) {
    let mut terminal = desk.approve(50, 100);
    let client = desk.ask("one", &["true"]);
    terminal.wait_seen("1 question waits");
    read(&mut terminal);
    (terminal, client)
}

/// Waits until the time that is left has changed so often.
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
fn what_is_approved_on_the_screen_runs_and_not_before_it_was_read() {
    let desk = Desk::enrolled();
    let mut terminal = desk.approve(50, 100);
    terminal.wait_seen("outpost approve: nothing waits");
    let file = desk.path("made");
    let mut client = desk.ask_with("one", &["touch", file.to_str().unwrap()], json!({"reason": "tests"}));
    let seen = terminal.wait_seen("1 question waits");
    assert!(seen.contains("own ") && seen.contains("touch /"), "{seen}");
    // In the list nothing is decided, and Enter only opens.
    for key in [b"y", b"n", b"r", b"d"] {
        terminal.key(key);
        terminal.wait_drawn(AGAIN);
    }
    read(&mut terminal);
    let seen = terminal.picture();
    assert!(seen.contains("reason: tests") && seen.contains("not checked by anybody"), "{seen}");
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
    terminal.wait_seen("nothing waits");
    terminal.key(b"\x03");
    assert_eq!(terminal.wait().how, How::Code(0));
    terminal.wait_picture("screen as it was", |seen| seen.trim().is_empty());
    assert!(!terminal.reads_keys(), "the terminal is as it was, too");
}

#[test]
fn a_key_that_comes_before_the_question_can_have_been_read_is_no_answer() {
    let desk = Desk::enrolled();
    let mut terminal = desk.approve(50, 100);
    for attempt in 0..20 {
        let client = desk.ask(&format!("attempt {attempt}"), &["true"]);
        terminal.wait_seen("1 question waits");
        let begun = Instant::now();
        press_until(&mut terminal, b"\r", "End of the question");
        terminal.key(b"y");
        let seen = press_until(&mut terminal, b"\x1b", "Enter details");
        // Only then it was early for certain, however slow this machine is.
        if begun.elapsed() < KEYS_IGNORED {
            assert!(seen.contains("1 question waits") && !client.has_answer(Duration::ZERO), "{seen}");
            return;
        }
        drop(client);
        terminal.wait_seen("nothing waits");
    }
    panic!("this machine is too slow for what is to be tested");
}

#[test]
fn a_screen_is_what_it_should_be_to_the_last_row() {
    let desk = Desk::enrolled();
    let mut terminal = desk.approve(10, 40);
    let first = terminal.wait_seen("connected as");
    let lines: Vec<&str> = first.lines().collect();
    assert_eq!(lines[..2], ["outpost approve: nothing waits", "   AGE LEFT AS   DIGEST   COMMAND"]);
    assert_eq!(lines[9], "Enter details  g grants  q quit");
    let _client = desk.ask("one", &["echo", "\u{44f}"]);
    terminal.wait_seen("echo");
    terminal.key(b"\r");
    let seen = terminal.wait_seen("y yes n no");
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!(lines[1..4], ["In one line", "  echo '\\u{44f}'", "What it is"], "{seen}");
    assert_eq!(lines[9], "y yes n no d note r remember Esc q");
    assert!(seen.is_ascii(), "{seen}");
}

#[test]
fn a_note_that_is_typed_reaches_whoever_asked() {
    let desk = Desk::enrolled();
    let (mut terminal, mut client) = read_first(&desk);
    terminal.key(b"d");
    terminal.wait_seen("Why not?");
    terminal.key(b"use the other host");
    terminal.wait_seen("use the other host_");
    terminal.key(b"\r");
    let denied = answer(&mut client);
    assert_eq!((&denied["status"], &denied["message"]), (&json!("denied"), &json!("use the other host")));
    terminal.wait_seen("denied by you: use the other host");
}

#[test]
fn what_is_remembered_runs_unasked_until_the_grant_is_revoked() {
    let desk = Desk::enrolled();
    let (mut terminal, mut client) = read_first(&desk);
    terminal.key(b"r");
    terminal.wait_seen("Approve this, and the same for _ more times");
    terminal.key(b"m");
    terminal.wait_seen("for _ minutes");
    terminal.key(b"5");
    terminal.wait_seen("for 5_ minutes");
    wait_seconds(&terminal, 2);
    terminal.key(b"y");
    terminal.wait_seen("approved and remembered by you");
    assert_eq!(answer(&mut client)["decision"], "human");
    assert_eq!(answer(&mut desk.ask("two", &["true"]))["decision"], "grant");
    press_until(&mut terminal, b"g", "1 answer is remembered");
    press_until(&mut terminal, b"x", "Nothing is remembered");
    let _client = desk.ask("three", &["true"]);
    terminal.key(b"\x1b");
    terminal.wait_seen("1 question waits");
    terminal.key(b"q");
    assert_eq!(terminal.wait().how, How::Code(0));
}

#[test]
fn another_approver_sees_what_the_first_one_decided() {
    let desk = Desk::enrolled();
    let (mut first, mut second) = (desk.approve(50, 130), desk.approve(50, 130));
    let mut client = desk.ask("one", &["true"]);
    for terminal in [&mut first, &mut second] {
        terminal.wait_seen("1 question waits");
        read(terminal);
    }
    first.key(b"n");
    first.wait_seen("denied by you");
    let seen = second.wait_seen("denied by desk (SHA256:");
    assert!(seen.contains("nothing waits") && seen.contains("with outpost approve"), "{seen}");
    assert_eq!(answer(&mut client)["status"], "denied");
    let client = desk.ask("two", &["echo"]);
    second.wait_seen("1 question waits");
    read(&mut second);
    drop(client);
    second.wait_seen("ended: whoever asked has left");
}

#[test]
fn a_command_that_does_not_fit_is_scrolled_before_it_is_approved() {
    let desk = Desk::enrolled();
    let mut terminal = desk.approve(12, 80);
    let long = "x".repeat(2000);
    let mut client = desk.ask("one", &["echo", &long]);
    terminal.wait_seen("1 question waits");
    press_until(&mut terminal, b"\r", "lines 1-8");
    wait_seconds(&terminal, 2);
    terminal.key(b"y");
    terminal.wait_seen("read to its end first");
    terminal.key(DOWN);
    terminal.wait_seen("lines 2-9");
    terminal.key(END);
    terminal.wait_seen("End of the question");
    terminal.key(b"y");
    terminal.wait_seen("approved by you");
    assert_eq!(answer(&mut client)["status"], "ok");
}

#[test]
fn what_is_privileged_is_approved_with_two_presses() {
    // For another user sudo would ask for a password.
    require!(root());
    let desk = Desk::enrolled();
    let mut terminal = desk.approve(50, 100);
    let mut client = desk.ask_with("one", &["id", "-u"], json!({"privileged": true}));
    terminal.wait_seen("ROOT");
    read(&mut terminal);
    terminal.key(b"y");
    let seen = terminal.wait_seen("press y again within 3 s");
    assert!(seen.contains("PRIVILEGED: this would run with root's rights"), "{seen}");
    assert!(!client.has_answer(Duration::ZERO));
    terminal.key(b"y");
    terminal.wait_seen("approved by you");
    assert_eq!(answer(&mut client)["stdout"], "MAo=");
}

#[test]
fn questions_outlive_the_worker_and_the_connection_comes_back() {
    let desk = Desk::enrolled();
    let (mut terminal, mut client) = read_first(&desk);
    desk.daemon.kill(Which::Worker);
    terminal.wait_seen("connected again as");
    terminal.key(b"y");
    terminal.wait_seen("approved by you");
    assert_eq!(answer(&mut client)["status"], "ok");
}

#[test]
fn a_terminal_is_given_back_whatever_ends_us() {
    let desk = Desk::enrolled();
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130)] {
        let mut terminal = desk.approve(24, 80);
        terminal.wait_seen("nothing waits");
        assert!(terminal.reads_keys());
        terminal.signal(signal);
        assert_eq!(terminal.wait().how, How::Code(code));
        assert!(!terminal.reads_keys());
        terminal.wait_picture("empty screen", |seen| seen.trim().is_empty());
    }
}

#[test]
fn root_decides_for_another_users_daemon_with_its_own_key_and_pastes_decide_nothing() {
    let desk = require!(Desk::of_nobody());
    let (mut terminal, mut client) = read_first(&desk);
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
    let desk = Desk::enrolled();
    desk.ssh_key("locked", "correct horse", 0);
    let mut terminal = desk.approve_with(&["--key", "locked"], 24, 80);
    terminal.wait_seen("Passphrase of the approver's key:");
    terminal.key(b"correct horse\r");
    terminal.wait_seen("nothing waits");
    assert!(!terminal.screen().contains("correct horse"));
}

#[test]
fn text_that_would_move_the_cursor_never_reaches_the_screen() {
    let desk = Desk::enrolled();
    let mut terminal = desk.approve(50, 100);
    let mut hostile = desk.ask_with("one", &["true"], json!({"reason": "\u{1b}[2J\u{1b}[1;1Happroved"}));
    assert_eq!(answer(&mut hostile)["status"], "error");
    let _client = desk.ask_with("two", &["echo", "\u{43e}k\n"], json!({"reason": "\u{43e}k"}));
    terminal.wait_seen("1 question waits");
    read(&mut terminal);
    let seen = terminal.picture();
    assert!(seen.contains("1: '\\u{43e}k\\n'") && seen.contains("reason: \\u{43e}k"), "{seen}");
    assert!(seen.contains("WARNING: ") && seen.is_ascii(), "{seen}");
}

/// The passphrase is typed into it, and it decides.
#[test]
fn other_processes_of_the_approver_cannot_read_its_memory() {
    let desk = require!(Desk::of_nobody());
    desk.ssh_key("state/approver.key", "correct horse", NOBODY);
    let terminal = desk.approve_as_nobody();
    terminal.wait_seen("Passphrase of the approver's key:");
    let owner = |name: &str| std::fs::metadata(format!("/proc/{}/{name}", terminal.pid())).unwrap().uid();
    assert_eq!((owner("status"), owner("mem")), (0, 0), "files of what may be read are its user's");
}
