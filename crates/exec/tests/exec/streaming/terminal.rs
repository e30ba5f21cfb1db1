//! Commands on a terminal: echo, size, keys, and its end.

use super::{input, on_terminal};
use crate::table::{check, fits, server, with};
use outpost_testkit::AppServer;
use serde_json::{Value, json};

const WRITE: &str = "command/exec/write";
const RESIZE: &str = "command/exec/resize";

fn start(server: &mut AppServer, process: &str, script: &str, more: Value) -> u64 {
    server.request("command/exec", &with(on_terminal(process, script), more))
}

/// The code at its end; the reply is the last line and empty.
fn ends(server: &mut AppServer, id: u64, code: i32) {
    let line = server.reply(id);
    assert!(fits(&line, &id.to_string(), &format!("exit {code}")), "{line}");
    assert_eq!(server.lines().last(), Some(&line), "something came after the reply");
}

/// "PTY; implies streamStdin and streamStdoutStderr; stderr merged into stdout".
#[test]
fn a_terminal_is_one_stream_and_streams_by_itself() {
    let mut server = server();
    let script = r#"
        [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo is a terminal
        tty >/dev/null && [ "$(readlink /proc/$$/fd/0)" = "$(readlink /proc/$$/fd/2)" ] && echo one
        echo controlling > /dev/tty
        read -r pid comm state ppid pgrp session tty rest < /proc/$$/stat
        [ "$pid" = "$session" ] && echo leader
        echo err >&2
        echo "TERM=${TERM-unset}"
        exit 7
    "#;
    let id = start(&mut server, "p", script, json!({"env": {"TERM": null}}));
    ends(&mut server, id, 7);
    let text = "is a terminal\r\none\r\ncontrolling\r\nleader\r\nerr\r\nTERM=unset\r\n";
    assert_eq!(server.text("p", "stdout"), text);
    assert!(server.deltas("p").iter().all(|delta| delta.stream == "stdout"));
}

#[test]
fn what_is_typed_is_echoed_unless_the_command_turns_that_off() {
    let mut server = server();
    let id = start(&mut server, "echo", "echo up; read -r x; echo \"<$x>\"", json!({}));
    server.wait_output("echo", "up\r\n");
    assert!(server.call(WRITE, &input("echo", "typed\n")).ends_with(r#""result":{}}"#));
    ends(&mut server, id, 0);
    assert_eq!(server.text("echo", "stdout"), "up\r\ntyped\r\n<typed>\r\n");
    let id = start(&mut server, "quiet", "stty -echo; echo up; read -r x; echo \"<$x>\"", json!({}));
    server.wait_output("quiet", "up\r\n");
    server.call(WRITE, &input("quiet", "typed\n"));
    ends(&mut server, id, 0);
    assert_eq!(server.text("quiet", "stdout"), "up\r\n<typed>\r\n");
}

/// "TERM is not set by the server; IUTF8 off; echo/icanon/onlcr/isig on".
#[test]
fn a_terminal_begins_as_the_kernel_makes_it() {
    let mut server = server();
    let id = start(&mut server, "p", "stty -a", json!({}));
    ends(&mut server, id, 0);
    let text = server.text("p", "stdout");
    let words: Vec<&str> = text.split([' ', ';', '\r', '\n']).collect();
    for word in ["-iutf8", "echo", "icanon", "onlcr", "isig", "icrnl", "opost"] {
        assert!(words.contains(&word), "{word} is not in {text}");
    }
}

/// "24x80" by default, and "resize sets TIOCSWINSZ (SIGWINCH)".
#[test]
fn a_terminal_has_the_size_it_was_given_and_takes_another() {
    let mut server = server();
    let id = start(&mut server, "default", "stty size", json!({}));
    ends(&mut server, id, 0);
    assert_eq!(server.text("default", "stdout"), "24 80\r\n");
    let script = "trap 'stty size; exit 3' WINCH; stty size; while :; do sleep 0.05; done";
    let id = start(&mut server, "p", script, json!({"size": {"rows": 31, "cols": 101}}));
    server.wait_output("p", "31 101\r\n");
    check(&mut server, &[(RESIZE, json!({"processId": "p", "size": {"rows": 45, "cols": 132}}), "{}")]);
    ends(&mut server, id, 3);
    assert_eq!(server.text("p", "stdout"), "31 101\r\n45 132\r\n");
    let largest = json!({"size": {"rows": 65535, "cols": 65535}});
    let id = start(&mut server, "large", "stty size", largest);
    ends(&mut server, id, 0);
    assert_eq!(server.text("large", "stdout"), "65535 65535\r\n");
}

/// "PTY -> `\n` + VEOF (^D) is typed into the terminal (so `abc` + close makes `cat` print `abc\r\n` and exit)".
#[test]
fn the_end_of_input_is_typed() {
    let mut server = server();
    let id = start(&mut server, "p", "stty -echo; echo up; cat; echo end; [ -t 0 ] && echo still", json!({}));
    server.wait_output("p", "up\r\n");
    let close = |bytes: &str| with(input("p", bytes), json!({"closeStdin": true}));
    assert!(server.call(WRITE, &close("abc")).ends_with(r#""result":{}}"#));
    ends(&mut server, id, 0);
    assert_eq!(server.text("p", "stdout"), "up\r\nabc\r\nend\r\nstill\r\n");
}

#[test]
fn nothing_is_typed_after_the_end_of_input() {
    let mut server = server();
    let id = start(&mut server, "p", "stty -echo; echo up; cat; echo end; exec sleep 1000", json!({}));
    server.wait_output("p", "up");
    let close = json!({"processId": "p", "closeStdin": true});
    check(
        &mut server,
        &[
            (WRITE, close.clone(), "{}"),
            (WRITE, input("p", "x"), "-32600 stdin is already closed"),
            (WRITE, input("p", ""), "{}"),
            (WRITE, close, "{}"),
        ],
    );
    server.wait_output("p", "end");
    server.call("command/exec/terminate", &json!({"processId": "p"}));
    ends(&mut server, id, 1);
}

/// "killed by signal / terminate / ^C, PTY: 1"; "timeout: 124".
#[test]
fn ends_on_a_terminal() {
    let mut server = server();
    let id = start(&mut server, "code", "exit 42", json!({}));
    ends(&mut server, id, 42);
    let id = start(&mut server, "killed", "kill -9 $$", json!({}));
    ends(&mut server, id, 1);
    let id = start(&mut server, "late", "echo out; exec sleep 1000", json!({"timeoutMs": 1000}));
    ends(&mut server, id, 124);
    assert_eq!(server.text("late", "stdout"), "out\r\n");
    let id = start(&mut server, "interrupted", "echo up; exec sleep 1000", json!({}));
    server.wait_output("interrupted", "up");
    server.call(WRITE, &input("interrupted", "\u{3}"));
    ends(&mut server, id, 1);
    let id = start(&mut server, "capped", "echo abcdef", json!({"outputBytesCap": 4}));
    ends(&mut server, id, 0);
    assert_eq!(server.text("capped", "stdout"), "abcd");
    assert!(server.deltas("capped").last().unwrap().cap_reached);
}

#[test]
fn the_reply_names_the_signal_that_ended_a_command_on_a_terminal() {
    outpost_testkit::require!(crate::table::skip_on_original());
    let mut server = server();
    let result = server.exec(&on_terminal("p", "kill -TERM $$"));
    assert_eq!((&result["exitCode"], &result["signal"]), (&json!(1), &json!("SIGTERM")), "{result}");
}

/// "PTY: background child gets SIGHUP, no 2 s wait".
#[test]
fn a_background_child_does_not_keep_a_terminal() {
    let mut server = server();
    let file = server.dir().join("pid");
    let script = format!("sleep 1000 & echo $! > {}; echo done", file.display());
    let begun = std::time::Instant::now();
    let id = start(&mut server, "p", &script, json!({}));
    let child = crate::process::Watched::pid_in(&file);
    ends(&mut server, id, 0);
    assert!(begun.elapsed() < std::time::Duration::from_secs(2), "it waited for the child");
    child.ends("the child");
}

/// The original starts it in the home directory without a word.
#[test]
fn a_missing_directory_is_an_error_on_a_terminal_too() {
    outpost_testkit::require!(crate::table::skip_on_original());
    let mut server = server();
    let params = with(on_terminal("p", "touch made"), json!({"cwd": "/no/such/directory"}));
    let text = "-32603 failed to spawn command: No such file or directory (os error 2)";
    check(&mut server, &[("command/exec", params, text)]);
    assert!(!server.home().join("made").exists());
}
