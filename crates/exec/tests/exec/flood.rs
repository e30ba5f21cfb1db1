//! More at once than any queue holds, and more in all than any table holds that is not cleared.

use crate::process::until;
use crate::streaming::{fed, on_terminal, streamed};
use crate::table::{PROBE, PROBE_TEXT, danger, error, is_result, result, server, sh, with};
use outpost_sys::procfs;
use outpost_testkit::AppServer;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fmt::Write;
use std::fs::DirEntry;
use std::path::PathBuf;

const REQUESTS: usize = 3000;

/// The original drops most of them silently, or replies that it is overloaded.
#[test]
fn of_three_thousand_requests_in_one_write_none_is_lost() {
    outpost_testkit::require!(crate::table::skip_on_original());
    let mut server = server();
    let mut lines = String::new();
    for id in 0..REQUESTS {
        writeln!(lines, "{{\"id\":\"f{id}\",{PROBE}}}").unwrap();
    }
    server.send(lines);
    for id in 0..REQUESTS {
        let id = json!(format!("f{id}")).to_string();
        assert_eq!(server.reply_to(&id), error(&id, -32600, PROBE_TEXT));
    }
}

/// Sends them in one write; each must print its own number.
fn all_at_once(server: &mut AppServer, commands: u32, params: impl Fn(&str) -> Value) {
    let mut lines = String::new();
    for id in 0..commands {
        let request = json!({"id": id, "method": "command/exec", "params": params(&id.to_string())});
        writeln!(lines, "{request}").unwrap();
    }
    server.send(lines);
    for id in 0..commands {
        let reply = server.reply_to(&id.to_string());
        assert!(is_result(&reply, &result(&id.to_string(), 0, &format!("{id}\n"), "")), "{reply}");
    }
}

#[test]
fn of_many_commands_in_one_write_none_is_lost() {
    outpost_testkit::require!(crate::table::skip_on_original());
    all_at_once(&mut server(), 1500, |word| danger(&["/bin/echo", word]));
}

#[test]
fn commands_in_sandboxes_do_not_get_in_each_others_way() {
    let limits = json!({"sandboxPolicy": {"type": "readOnly"}, "timeoutMs": 60000});
    all_at_once(&mut server(), 50, |word| with(json!({"command": ["/bin/echo", word]}), limits.clone()));
}

/// Both run, both are answered.
#[test]
fn two_requests_under_one_id_are_two_requests() {
    let mut server = server();
    let line = |word: &str| {
        json!({"id": 7, "method": "command/exec", "params": danger(&["/bin/echo", word])}).to_string() + "\n"
    };
    server.send(line("a") + &line("b"));
    let mut said = [server.line(), server.line()];
    said.sort();
    let [a, b] = said.map(|line| line.split(r#","stderr":"#).next().unwrap().to_owned());
    assert_eq!(a, r#"{"id":7,"result":{"exitCode":0,"stdout":"a\n""#);
    assert_eq!(b, r#"{"id":7,"result":{"exitCode":0,"stdout":"b\n""#);
}

/// One command of each kind, and one that does not start.
fn one_of_each(server: &mut AppServer) {
    server.exec(&sh("echo x; exit 1"));
    server.exec(&with(sh("true"), json!({"sandboxPolicy": {"type": "readOnly"}})));
    server.exec(&streamed("s", "echo x; kill -9 $$"));
    server.exec(&on_terminal("t", "echo x"));
    server.call("command/exec", &danger(&["/no/such/program"]));
    server.call("command/exec", &with(danger(&["/no/such/program"]), json!({"processId": "t", "tty": true})));
    let id = server.request("command/exec", &fed("f", "cat"));
    server.call("command/exec/write", &json!({"processId": "f", "closeStdin": true}));
    server.reply(id);
}

/// The prepared slots of a server, by their names: the engine makes them at its own pace.
fn prepared_slots(server: &AppServer) -> Vec<OsString> {
    let servers = std::fs::read_dir(server.dir().join("state/app-server")).into_iter().flatten();
    let processes = servers.flatten().filter_map(|own| std::fs::read_dir(own.path().join("processes")).ok());
    let undescribed = |slot: &DirEntry| {
        std::fs::metadata(slot.path().join("process.json")).is_ok_and(|found| found.len() == 0)
    };
    let names = processes.flatten().flatten().filter(undescribed).map(|slot| slot.file_name());
    // A directory with a dot in its name is being removed.
    names.filter(|name| !name.to_string_lossy().contains('.')).collect()
}

/// Descriptors of a prepared slot that do not name its directory: two pipes, and `/dev/null`.
const SLOT_DESCRIPTORS: usize = 5;

/// The number of descriptors of a server's processes, and of processes below them with zombies, without prepared slots.
fn holdings(server: &AppServer) -> (usize, usize) {
    let marker = format!("OUTPOST_TEST_DAEMON={}", server.dir().display());
    let all = procfs::all();
    let own: Vec<i32> = all
        .iter()
        .map(|stat| stat.pid)
        .filter(|pid| procfs::has_environment(*pid, marker.as_bytes()))
        .collect();
    let slots = prepared_slots(server);
    let is_slot = |path: &PathBuf| path.iter().any(|part| slots.iter().any(|slot| slot == part));
    let descriptors = own.iter().filter_map(|pid| std::fs::read_dir(format!("/proc/{pid}/fd")).ok());
    let files = descriptors.flatten().flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let below = all.iter().filter(|stat| own.contains(&stat.parent)).count();
    (files.filter(|path| !is_slot(path)).count().saturating_sub(SLOT_DESCRIPTORS * slots.len()), below)
}

#[test]
fn ended_commands_leave_neither_descriptors_nor_processes() {
    let mut server = server();
    for _ in 0..3 {
        one_of_each(&mut server);
    }
    let (mut descriptors, mut below) = (usize::MAX, usize::MAX);
    // What a server has at rest; the last command may still be on its way out.
    for _ in 0..50 {
        let now = holdings(&server);
        (descriptors, below) = (descriptors.min(now.0), below.min(now.1));
        outpost_testkit::pause();
    }
    for _ in 0..12 {
        one_of_each(&mut server);
    }
    // Some room for what is kept for the next one; far less than one for each command.
    until("descriptors and processes of ended commands are gone", || {
        let now = holdings(&server);
        now.0 <= descriptors + 8 && now.1 <= below + 1 && prepared_slots(&server).len() <= 8
    });
}
