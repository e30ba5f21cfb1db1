//! `command/exec/terminate` and the control requests' errors for unknown ids, ended commands and other connections.

use super::{fed, input, on_terminal, streamed};
use crate::process::Watched;
use crate::table::{check, fits, server, sh, with};
use outpost_testkit::{AppServer, Options};
use serde_json::{Value, json};

const TERMINATE: &str = "command/exec/terminate";
const RESIZE: &str = "command/exec/resize";

#[test]
fn an_unknown_process_id_is_named_in_the_error() {
    let mut server = server();
    // Ids that a server would give by itself reach nothing.
    let id = server.request("command/exec", &sh("exec sleep 2"));
    for name in ["ghost", "", "0", "1", &id.to_string(), "a\"b\\\né\u{1f600}"] {
        let text = format!("-32600 no active command/exec for process id {}", json!(name));
        check(
            &mut server,
            &[
                (TERMINATE, json!({"processId": name}), &text),
                (RESIZE, json!({"processId": name, "size": {"rows": 1, "cols": 1}}), &text),
                ("command/exec/write", input(name, "x"), &text),
            ],
        );
    }
    let line = server.reply(id);
    assert!(fits(&line, &id.to_string(), "exit 0"), "{line}");
}

/// "resize: 0 rows/cols (before the id lookup)", "pipes → failed to resize PTY".
#[test]
fn a_size_is_checked_before_its_process_is_looked_up() {
    let mut server = server();
    server.request("command/exec", &streamed("pipes", "exec sleep 1000"));
    server.request("command/exec", &with(sh("exec sleep 1000"), json!({"processId": "buffered"})));
    let size = |process: &str, rows: u16, cols: u16| json!({"processId": process, "size": {"rows": rows, "cols": cols}});
    let too_small = "-32602 command/exec size rows and cols must be greater than 0";
    let no_terminal = "-32600 failed to resize PTY: process is not attached to a PTY";
    check(
        &mut server,
        &[
            (RESIZE, size("ghost", 0, 1), too_small),
            (RESIZE, size("ghost", 1, 0), too_small),
            (RESIZE, size("pipes", 0, 0), too_small),
            (RESIZE, size("ghost", 1, 1), r#"-32600 no active command/exec for process id "ghost""#),
            (RESIZE, size("pipes", 1, 1), no_terminal),
            (RESIZE, size("buffered", 1, 1), no_terminal),
        ],
    );
}

#[test]
fn terminate_kills_the_whole_group_at_once() {
    let mut server = server();
    for (process, params, code) in [
        ("pipes", fed("pipes", "trap '' TERM; sleep 1000 & echo $! > $PID; echo up; wait"), -1),
        ("tty", on_terminal("tty", "trap '' TERM; sleep 1000 & echo $! > $PID; echo up; wait"), 1),
    ] {
        let file = server.dir().join(process);
        let id = server
            .request("command/exec", &with(params, json!({"env": {"PID": file}, "disableTimeout": true})));
        server.wait_output(process, "up");
        let child = Watched::pid_in(&file);
        let reply = server.call(TERMINATE, &json!({"processId": process}));
        assert!(reply.ends_with(r#""result":{}}"#), "{reply}");
        let line = server.reply(id);
        assert!(fits(&line, &id.to_string(), &format!("exit {code}")), "{line}");
        child.ends("the child");
    }
}

/// "a second one gets "no longer running" or "no active …"".
#[test]
fn terminate_after_the_end_reports_an_ended_or_unknown_process() {
    let mut server = server();
    let id = server.request("command/exec", &streamed("p", "exec sleep 1000"));
    let first = server.request(TERMINATE, &json!({"processId": "p"}));
    let again: Vec<u64> = (0..20).map(|_| server.request(TERMINATE, &json!({"processId": "p"}))).collect();
    assert!(server.reply(first).ends_with(r#""result":{}}"#));
    for id in again {
        let line = server.reply(id);
        let id = id.to_string();
        let known = [
            "{}",
            r#"-32600 command/exec "p" is no longer running"#,
            r#"-32600 no active command/exec for process id "p""#,
        ];
        assert!(known.iter().any(|text| fits(&line, &id, text)), "{line}");
    }
    server.reply(id);
    check(
        &mut server,
        &[(TERMINATE, json!({"processId": "p"}), r#"-32600 no active command/exec for process id "p""#)],
    );
}

/// "Only client-supplied ids of the same connection resolve."
#[test]
fn commands_of_another_server_are_out_of_reach() {
    let (mut one, mut other) = (server(), AppServer::start(&Options::default()));
    let run = |server: &mut AppServer| {
        let id = server.request("command/exec", &fed("same", "echo up; read x; echo \"$x\""));
        server.wait_output("same", "up");
        id
    };
    let (first, second) = (run(&mut one), run(&mut other));
    one.call(TERMINATE, &json!({"processId": "same"}));
    one.reply(first);
    other.call("command/exec/write", &input("same", "alive\n"));
    let line = other.reply(second);
    assert!(fits(&line, &second.to_string(), "exit 0"), "{line}");
    assert_eq!(other.text("same", "stdout"), "up\nalive\n");
    let strangers: Vec<&String> = other.lines().iter().filter(|line| line.contains("ghost")).collect();
    assert_eq!(strangers, Vec::<&String>::new());
}

/// Requests are answered while commands run, and commands end in any order.
#[test]
fn one_command_does_not_wait_for_another() {
    let mut server = server();
    let slow = server.request("command/exec", &fed("slow", "read x; echo \"$x\""));
    let quick: Vec<Value> = (0..10).map(|n| server.exec(&sh(&format!("echo {n}")))).collect();
    assert!(quick.iter().enumerate().all(|(n, result)| result["stdout"] == format!("{n}\n")));
    assert!(!server.has_reply(slow));
    server.call("command/exec/write", &input("slow", "done\n"));
    server.reply(slow);
}
