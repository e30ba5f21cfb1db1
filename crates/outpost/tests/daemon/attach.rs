//! `outpost attach` and `outpost run --tty` on real terminals: size, keys, screen contents, viewers, killed workers.

use crate::support::{daemon, on_terminal, outpost, stdout_and_code};
use outpost_sys::pidfd::ExitCause;
use outpost_testkit::{Daemon, Half, Terminal};
use std::process::Command;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Starts a shell with the name `shell` on a terminal.
fn shell(daemon: &Daemon, rows: u16, cols: u16) -> Terminal {
    let terminal = on_terminal(daemon, &["run", "--tty", "--name", "shell", "--", "sh"], rows, cols);
    terminal.wait_seen("in>");
    terminal
}

#[test]
fn a_terminal_can_be_resized_detached_and_attached_again() {
    let daemon = daemon();
    let mut first = shell(&daemon, 30, 90);
    first.key(b"stty size\r");
    first.wait_seen("30 90");
    first.resize(31, 91);
    let started = Instant::now();
    while !first.picture().contains("31 91") {
        assert!(started.elapsed() < TIMEOUT, "{}", first.picture());
        first.key(b"stty size\r");
        first.wait_drawn(Duration::from_millis(100));
    }
    // The process gets ctrl-c as input.
    first.key(b"sleep 1000\r");
    first.wait_seen("sleep 1000");
    first.key(b"\x03");
    first.wait_seen("^C");
    first.key(b"echo $((6*7))\r\x1c");
    first.wait_seen("is still running. Reattach");
    assert_eq!(first.wait().cause, ExitCause::Code(0));
    assert!(!first.reads_keys(), "the terminal is as it was");
    let mut second = on_terminal(&daemon, &["attach", "--detach-keys", "ctrl-a,d", "shell"], 25, 80);
    second.wait_picture("the screen as it was", |seen| seen.contains("31 91") && seen.contains("42"));
    // With other detach keys this one is ordinary input, which the shell ignores.
    second.key(b"\x1c");
    second.wait_seen("^\\");
    second.key(b"stty size\r");
    second.wait_seen("25 80");
    second.key(b"\x01d");
    assert_eq!(second.wait().cause, ExitCause::Code(0));
    let mut third = on_terminal(&daemon, &["attach", "shell"], 25, 80);
    third.wait_seen("25 80");
    third.key(b"exit 7\r");
    assert_eq!(third.wait().cause, ExitCause::Code(7));
    let mut late = on_terminal(&daemon, &["attach", "shell"], 25, 80);
    assert_eq!(late.wait().cause, ExitCause::Code(7));
    late.wait_picture("last screen", |seen| {
        seen.contains("the process has ended") && seen.contains("exit 7")
    });
}

#[test]
fn terminal_modes_are_reset_on_detach() {
    let daemon = daemon();
    let script = r"printf '\033[?1049h\033[?1003h\033[?1006h\033[?2004h\033[?25l\033[>1u\033[2J\033[Hfull screen'; cat";
    let mut terminal =
        on_terminal(&daemon, &["run", "--tty", "--name", "p", "--", "sh", "-c", script], 24, 80);
    terminal.wait_seen("full screen");
    let before = terminal.drawn_bytes();
    // The process enabled the kitty keyboard protocol, which encodes the detach key in this way.
    terminal.key(b"\x1b[92;5u");
    assert_eq!(terminal.wait().cause, ExitCause::Code(0));
    terminal.find("is still running. Reattach", before, TIMEOUT).unwrap();
    let undone = terminal.screen_from(before);
    for sequence in ["\x1b[?1049l", "\x1b[?1003l", "\x1b[?1006l", "\x1b[?2004l", "\x1b[?25h", "\x1b[<1u"] {
        assert!(undone.contains(sequence), "{sequence:?} in {undone:?}");
    }
    // A new viewer gets the alternate screen. A signal also resets the modes.
    let mut again = on_terminal(&daemon, &["attach", "p"], 24, 80);
    again.wait_seen("full screen");
    assert!(again.screen().contains("\x1b[?1049h") && again.reads_keys());
    again.signal(outpost_sys::signal::Signal::TERM);
    assert_eq!(again.wait().cause, ExitCause::Signal(15));
    again.find("\x1b[?1049l", 0, TIMEOUT).unwrap();
    assert!(!again.reads_keys());
}

#[test]
fn one_viewer_has_the_input_and_another_can_take_it_over() {
    let daemon = daemon();
    let mut first = shell(&daemon, 24, 80);
    let mut second = on_terminal(&daemon, &["attach", "shell"], 24, 80);
    second.wait_seen("read-only: another terminal has its input");
    second.key(b"echo not-me\r");
    first.key(b"echo by-$((1))\r");
    second.wait_seen("by-1");
    let mut third = on_terminal(&daemon, &["attach", "--steal", "shell"], 24, 80);
    first.wait_seen("this one is read-only now");
    third.wait_seen("by-1");
    first.key(b"echo nor-me\r");
    third.key(b"echo by-$((3))\r");
    for terminal in [&first, &second, &third] {
        terminal.wait_seen("by-3");
        assert!(!terminal.screen().contains("-me"), "{}", terminal.screen());
    }
    // After a restart of the worker each viewer keeps its role.
    daemon.kill(Half::Worker);
    third.key(b"echo still-$((3))\r");
    for terminal in [&first, &second, &third] {
        terminal.wait_seen("still-3");
    }
    // ctrl-c ends a read-only viewer.
    second.key(b"\x03");
    assert_eq!(second.wait().cause, ExitCause::Code(0));
    third.key(b"\x1c");
    assert_eq!(third.wait().cause, ExitCause::Code(0));
    let mut fourth = on_terminal(&daemon, &["attach", "shell"], 24, 80);
    fourth.wait_seen("still-3");
    fourth.key(b"exit 4\r");
    assert_eq!((fourth.wait().cause, first.wait().cause), (ExitCause::Code(4), ExitCause::Code(4)));
}

#[test]
fn killed_workers_lose_no_output_and_no_input_of_a_terminal() {
    let daemon = daemon();
    let script = "stty -echo; echo ready; read a; seq 1 60000; read b; echo \"$a $b\"; exit 6";
    let mut terminal = on_terminal(&daemon, &["run", "--tty", "--", "sh", "-c", script], 24, 80);
    terminal.wait_seen("ready");
    daemon.kill(Half::Worker);
    terminal.key(b"one\r");
    for _ in 0..5 {
        daemon.kill(Half::Worker);
    }
    terminal.find("60000\r\n", 0, TIMEOUT).unwrap();
    terminal.key(b"two\r");
    assert_eq!(terminal.wait().cause, ExitCause::Code(6));
    terminal.find("one two\r\n", 0, TIMEOUT).unwrap();
    let numbers: String = (1..=60_000).map(|number| format!("{number}\r\n")).collect();
    let screen = terminal.screen();
    assert!(screen.starts_with(&format!("ready\r\n{numbers}one two\r\n")), "{} bytes", screen.len());
    assert!(!terminal.reads_keys());
}

#[test]
fn a_process_with_pipes_is_followed_and_given_lines() {
    let daemon = daemon();
    let (number, _) = stdout_and_code(&daemon, &["run", "--detach", "--name", "p", "--", "sleep", "1000"]);
    assert!(!number.trim().is_empty());
    let script = "echo begun; while read line; do echo \"got $line\"; done; echo over; exit 8";
    let _spawned = crate::support::sh(&daemon, "lines", script);
    let mut terminal = on_terminal(&daemon, &["attach", "lines"], 24, 80);
    terminal.wait_seen("begun");
    terminal.key(b"one\r");
    terminal.wait_seen("got one");
    terminal.key(b"\x03");
    assert_eq!(terminal.wait().cause, ExitCause::Signal(2), "the viewer exits, the process stays");
    let mut again = on_terminal(&daemon, &["attach", "lines"], 24, 80);
    again.wait_seen("got one");
    again.key(b"\x04");
    assert_eq!(again.wait().cause, ExitCause::Code(8));
    again.wait_seen("over");
}

/// An independent terminal emulator.
struct Tmux(tempfile::TempDir);

impl Tmux {
    fn run(&self, arguments: &[&str]) -> String {
        let mut tmux = Command::new("tmux");
        tmux.arg("-S").arg(self.0.path().join("socket")).args(["-f", "/dev/null"]).args(arguments);
        let output = tmux.env("LC_ALL", "C.UTF-8").output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn start(&self, session: &str, daemon: &Daemon, arguments: &[&str]) {
        let own = [outpost().to_str().unwrap(), "--state-dir", "state", "--runtime-dir", "run"];
        let dir = daemon.dir().to_str().unwrap();
        let new = ["new-session", "-d", "-x", "70", "-y", "20", "-c", dir, "-s", session, "--"];
        self.run(&[&new, &own[..], arguments].concat());
    }

    /// Waits until the screen contains this text. Returns the screen with its colours.
    fn wait_seen(&self, session: &str, wanted: &str) -> String {
        let started = Instant::now();
        loop {
            let seen = self.run(&["capture-pane", "-p", "-e", "-t", session]);
            if seen.contains(wanted) {
                return seen;
            }
            assert!(started.elapsed() < TIMEOUT, "no {wanted:?} in {seen}");
            outpost_testkit::pause();
        }
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let mut tmux = Command::new("tmux");
        let _gone = tmux.arg("-S").arg(self.0.path().join("socket")).arg("kill-server").output();
    }
}

#[test]
fn a_later_viewer_sees_the_same_screen() {
    let daemon = daemon();
    let tmux = Tmux(tempfile::tempdir().unwrap());
    let script = concat!(
        r"stty -echo; printf '\033[?1049h\033[2J\033[3;5H\033[1;31mred\033[0m \033[4munder\033[0m \303\244\342\202\254 \033[7minverse\033[0m';",
        r"printf '\033[5;12r\033[12;1H'; seq 100 120; printf '\033[r\033[15;1H\033[6n\033[c\033[38;5;208morange\033[0m \033[?25l';",
        r"read answer; printf '\033[18;1Hanswered %s' $answer; cat",
    );
    tmux.start("first", &daemon, &["run", "--tty", "--name", "drawn", "--", "sh", "-c", script]);
    tmux.wait_seen("first", "orange");
    tmux.run(&["send-keys", "-t", "first", "yes", "Enter"]);
    let drawn = tmux.wait_seen("first", "answered");
    tmux.start("second", &daemon, &["attach", "--read-only", "drawn"]);
    assert_eq!(tmux.wait_seen("second", "answered"), drawn);
    // The replay contains no terminal queries: the viewer's terminal has sent no further input.
    let typed = daemon.list().iter().find(|process| process.id == "drawn").unwrap().stdin_accepted;
    tmux.start("third", &daemon, &["attach", "--steal", "drawn"]);
    assert_eq!(tmux.wait_seen("third", "answered"), drawn);
    assert_eq!(daemon.list().iter().find(|process| process.id == "drawn").unwrap().stdin_accepted, typed);
}
