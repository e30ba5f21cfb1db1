//! Commands that do not do their part: what they hold up, and what not.

use super::{fed, input, on_terminal};
use crate::process::{is_alive, until};
use crate::table::{check, fits, server, sh, with};
use outpost_testkit::AppServer;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const WRITE: &str = "command/exec/write";

/// More than any pipe and the original's queue of 128 hold.
const WRITES: usize = 300;
const PIECE_BYTES: usize = 64 * 1024;

/// Starts a command that reads nothing, and sends it all that.
fn stuff(server: &mut AppServer, process: &str, params: Value) -> (u64, Vec<u64>) {
    let id = server.request("command/exec", &params);
    server.wait_output(process, "up");
    let piece = input(process, "x".repeat(PIECE_BYTES));
    (id, (0..WRITES).map(|_| server.request(WRITE, &piece)).collect())
}

/// In the original the whole server stands still until the command ends by itself.
#[test]
fn a_command_that_does_not_read_can_be_terminated_and_others_go_on() {
    outpost_testkit::require!(crate::table::skip_on_original());
    let mut server = server();
    for (process, params) in [
        ("pipe", fed("pipe", "echo up; exec sleep 1000")),
        ("tty", on_terminal("tty", "stty raw -echo; echo up; exec sleep 1000")),
    ] {
        let (id, _writes) = stuff(&mut server, process, with(params, json!({"disableTimeout": true})));
        let begun = Instant::now();
        assert_eq!(server.exec(&sh("echo other"))["stdout"], "other\n");
        assert!(begun.elapsed() < Duration::from_secs(5), "another command waited for it");
        check(&mut server, &[("command/exec/terminate", json!({"processId": process}), "{}")]);
        let code = if process == "tty" { 1 } else { -1 };
        let line = server.reply(id);
        assert!(fits(&line, &id.to_string(), &format!("exit {code}")), "{line}");
        assert!(begun.elapsed() < Duration::from_secs(10), "it took {:?}", begun.elapsed());
    }
}

#[test]
fn a_command_that_does_not_read_ends_with_its_time() {
    outpost_testkit::require!(crate::table::skip_on_original());
    let mut server = server();
    let params = with(fed("p", "echo up; exec sleep 1000"), json!({"timeoutMs": 1500}));
    let begun = Instant::now();
    let (id, writes) = stuff(&mut server, "p", params);
    let line = server.reply(id);
    assert!(fits(&line, &id.to_string(), "exit 124"), "{line}");
    assert!(begun.elapsed() < Duration::from_secs(8), "it took {:?}", begun.elapsed());
    // Each write has an answer, whichever it is.
    for write in writes {
        server.reply(write);
    }
}

/// The room for waiting input is the connection's, so a leak would outlive the commands that it was taken for.
#[test]
fn input_that_waits_when_its_command_ends_takes_no_room_from_the_next() {
    outpost_testkit::require!(crate::table::skip_on_original());
    let mut server = server();
    for at in 0..6 {
        let process = format!("stuck-{at}");
        let params = with(fed(&process, "echo up; exec sleep 1000"), json!({"disableTimeout": true}));
        let (id, _writes) = stuff(&mut server, &process, params);
        check(&mut server, &[("command/exec/terminate", json!({"processId": process}), "{}")]);
        server.reply(id);
    }
    let id = server.request("command/exec", &fed("cat", "wc -c"));
    let piece = input("cat", "x".repeat(PIECE_BYTES));
    check(&mut server, &[(WRITE, piece, "{}")]);
    server.call(WRITE, &json!({"processId": "cat", "closeStdin": true}));
    server.reply(id);
    assert_eq!(server.text("cat", "stdout"), format!("{PIECE_BYTES}\n"));
}

/// It reads late, and then everything is there.
#[test]
fn what_waited_for_a_command_arrives_when_it_reads() {
    outpost_testkit::require!(crate::table::skip_on_original());
    let mut server = server();
    let gate = server.dir().join("gate");
    let script = format!("echo up; until [ -e {} ]; do sleep 0.02; done; wc -c", gate.display());
    let params = with(fed("p", &script), json!({"disableTimeout": true}));
    let (id, writes) = stuff(&mut server, "p", params);
    let close = server.request(WRITE, &json!({"processId": "p", "closeStdin": true}));
    assert_eq!(server.exec(&sh("echo other"))["stdout"], "other\n");
    std::fs::write(&gate, "").unwrap();
    server.reply(id);
    let taken = |server: &mut AppServer, write: u64| fits(&server.reply(write), &write.to_string(), "{}");
    assert!(taken(&mut server, close));
    // A server may refuse what is too much, but what it took it has to deliver.
    let pieces = writes.into_iter().filter(|write| taken(&mut server, *write)).count();
    assert!(pieces >= 100, "only {pieces} of {WRITES} were taken");
    assert_eq!(server.text("p", "stdout"), format!("up\n{}\n", pieces * PIECE_BYTES));
}

/// While a background child holds the output, the original answers no request for two seconds.
#[test]
fn requests_are_answered_while_the_output_of_an_ended_command_is_awaited() {
    outpost_testkit::require!(crate::table::skip_on_original());
    let mut server = server();
    let file = server.dir().join("pid");
    let script = format!("sleep 1000 & echo $$ > {}; echo up", file.display());
    let id = server.request("command/exec", &fed("p", &script));
    server.wait_output("p", "up");
    let pid: i32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    until("the command has ended", || !is_alive(pid));
    let gone = [
        r#"-32600 command/exec "p" is no longer running"#,
        r#"-32600 no active command/exec for process id "p""#,
        "{}",
    ];
    let answered = |server: &mut AppServer, method: &str, params: &serde_json::Value| {
        let request = server.request(method, params);
        let line = server.reply(request);
        assert!(gone.iter().any(|text| fits(&line, &request.to_string(), text)), "{line}");
    };
    answered(&mut server, WRITE, &input("p", "x"));
    assert_eq!(server.exec(&sh("echo other"))["stdout"], "other\n");
    assert!(!server.has_reply(id), "they waited until the two seconds were over");
    // It may end the background child, and the wait with it.
    answered(&mut server, "command/exec/terminate", &json!({"processId": "p"}));
    let line = server.reply(id);
    assert!(fits(&line, &id.to_string(), "exit 0"), "{line}");
}
