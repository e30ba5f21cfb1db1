//! How far a command lives: no longer than its connection, and no longer than the server.

use crate::process::Watched;
use crate::streaming::{fed, on_terminal, streamed};
use crate::table::{runs_on_original, server, sh, with};
use outpost_sys::procfs::Stat;
use outpost_sys::signal::Signal;
use outpost_sys::{pidfd, procfs};
use outpost_testkit::{AppServer, Options, no_cgroups, require};
use serde_json::{Value, json};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Writes its pid and that of a background child to files, and keeps running.
const SCRIPT: &str = "sleep 1000 & echo $! > $DIR/child; echo $$ > $DIR/shell; wait";

/// Starts one of each kind; returns all of their processes.
fn start_all(server: &mut AppServer) -> Vec<(String, Watched)> {
    let limits = json!({"disableTimeout": true});
    let confined = json!({"sandboxPolicy": {"type": "workspaceWrite", "writableRoots": [server.dir()]}});
    let kinds: [(&str, Value); 5] = [
        ("buffered", with(sh(SCRIPT), json!({"processId": "buffered"}))),
        ("nameless", sh(SCRIPT)),
        ("streamed", fed("streamed", SCRIPT)),
        ("terminal", on_terminal("terminal", SCRIPT)),
        ("sandboxed", with(streamed("sandboxed", "echo up; exec sleep 1000"), confined)),
    ];
    let mut watched = Vec::new();
    for (name, params) in kinds {
        let dir = server.dir().join(name);
        std::fs::create_dir(&dir).unwrap();
        server.request("command/exec", &with(with(params, limits.clone()), json!({"env": {"DIR": dir}})));
        if name == "sandboxed" {
            // It has numbers of its own, so it is looked for by its environment.
            server.wait_output(name, "up");
            let marker = format!("DIR={}", dir.display());
            let is_inside = |stat: &Stat| procfs::has_environment(stat.pid, marker.as_bytes());
            let mut inside = Vec::new();
            // While it executes another program it has none for a moment.
            crate::process::until("it is found", || {
                inside = procfs::all().iter().filter(|stat| is_inside(stat)).map(|stat| stat.pid).collect();
                !inside.is_empty()
            });
            watched.extend(inside.into_iter().map(|pid| (format!("{name} {pid}"), Watched::new(pid))));
        } else {
            for process in ["shell", "child"] {
                watched.push((format!("{name} {process}"), Watched::pid_in(&dir.join(process))));
            }
        }
    }
    assert!(watched.iter().all(|(_, process)| process.runs()));
    watched
}

/// "stdio EOF additionally ends the server (exit 0, …)".
#[test]
fn the_end_of_the_connection_ends_its_commands_and_the_server() {
    let mut server = server();
    let watched = start_all(&mut server);
    server.close();
    assert_eq!(server.wait().code(), Some(0), "log: {}", server.log());
    for (name, process) in watched {
        process.ends(&name);
    }
}

#[test]
fn a_server_without_commands_ends_with_its_connection() {
    let mut idle = server();
    idle.close();
    assert_eq!(idle.wait().code(), Some(0), "log: {}", idle.log());
    let mut silent = AppServer::launch(&Options::default());
    silent.close();
    assert_eq!(silent.wait().code(), Some(0), "log: {}", silent.log());
}

/// "Server SIGKILLed: pipe children get SIGTERM (parent-death signal), PTY children SIGHUP, sandboxed ones die".
#[test]
fn a_killed_server_takes_its_commands_with_it() {
    let mut server = server();
    let watched = start_all(&mut server);
    server.kill();
    server.wait();
    for (name, process) in watched {
        // The original does not end a child of a command with pipes.
        if !runs_on_original() || !name.ends_with("child") {
            process.ends(&name);
        }
    }
}

/// Placeholders of a confined command exist on the host while it runs, and no other process removes its cgroup.
#[test]
fn a_killed_server_leaves_nothing_on_the_host() {
    outpost_testkit::require!(crate::table::skip_on_original());
    let mut server = server();
    let names = |server: &AppServer| {
        let mut names: Vec<_> =
            std::fs::read_dir(server.cwd()).unwrap().flatten().map(|entry| entry.file_name()).collect();
        names.sort();
        names
    };
    let params = json!({"command": ["/bin/sh", "-c", "echo up; exec sleep 1000"], "disableTimeout": true,
        "processId": "p", "streamStdoutStderr": true, "sandboxPolicy": {"type": "workspaceWrite"}});
    server.request("command/exec", &params);
    server.wait_output("p", "up");
    assert_eq!(names(&server), [".agents", ".codex", ".git"]);
    server.kill();
    server.wait();
    crate::process::until("nothing is held any more", || names(&server).is_empty());
}

/// For a user without a cgroup of its own there is nothing it could be found by while the server runs.
#[test]
fn a_process_that_left_its_session_and_environment_ends_with_the_server() {
    outpost_testkit::require!(crate::table::skip_on_original());
    let is_root = outpost_sys::process::effective_uid() == 0;
    let options = if is_root { Options::default().uid(65534) } else { Options::default() };
    let mut server = AppServer::start(&options);
    let file = server.cwd().join("pid");
    let script = format!(
        "env -i setsid sh -c 'echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000' >/dev/null 2>&1 </dev/null &
         until [ -e {0} ]; do :; done",
        file.display()
    );
    assert_eq!(server.exec(&sh(&script))["exitCode"], 0);
    let hidden = Watched::pid_in(&file);
    server.close();
    server.wait();
    hidden.ends("what had hidden");
}

/// With keeper and server killed at once no process can end it, until the next server uses the same directory.
#[test]
fn what_a_server_and_its_keeper_left_running_the_next_one_ends() {
    outpost_testkit::require!(crate::table::skip_on_original());
    let mut server = server();
    let file = server.dir().join("pid");
    let script = format!("echo $$ > {}; exec sleep 1000", file.display());
    server.request("command/exec", &with(streamed("p", &script), json!({"disableTimeout": true})));
    let command = Watched::pid_in(&file);
    let is_half = |stat: &Stat| stat.pid == server.pid() || stat.parent == server.pid();
    let halves: Vec<i32> = procfs::all().iter().filter(|stat| is_half(stat)).map(|stat| stat.pid).collect();
    let open = halves.iter().flat_map(|pid| std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten());
    let mut files = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    // Without one there is nothing that it could be found by.
    let is_group = |path: &PathBuf| {
        path.starts_with("/sys/fs/cgroup") && path.file_name().unwrap().as_bytes().starts_with(b"outpost-")
    };
    let groups = require!(files.find(is_group).ok_or_else(no_cgroups));
    for signal in [Signal::STOP, Signal::KILL] {
        for pid in &halves {
            pidfd::signal(outpost_testkit::process(*pid).unwrap(), signal).unwrap();
        }
    }
    server.wait();
    assert!(command.runs());
    let state = server.dir().join("state");
    let mut next = AppServer::start(&Options::default().env("OUTPOST_STATE_DIR", state.to_str().unwrap()));
    assert_eq!(next.exec(&sh("true"))["exitCode"], 0);
    command.ends("the command");
    assert!(!groups.exists(), "{} is still there", groups.display());
}

/// A command waits for a client that does not read, with its output and with its end: that must not outlive the client.
#[test]
fn a_client_that_never_read_takes_its_command_with_it() {
    outpost_testkit::require!(crate::table::skip_on_original());
    let dir = tempfile::Builder::new().prefix("outpost-exec-").tempdir_in("/var/tmp").unwrap();
    let server = Command::new(crate::daemon::binary())
        .args(["--state-dir", "state", "app-server"])
        .current_dir(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let Ended(server) = &mut Ended(server);
    let (mut input, output) = (server.stdin.take().unwrap(), server.stdout.take().unwrap());
    let params = json!({"command": ["/bin/cat", "/dev/zero"], "processId": "p", "streamStdoutStderr": true,
        "disableOutputCap": true, "disableTimeout": true, "sandboxPolicy": {"type": "dangerFullAccess"}});
    writeln!(
        input,
        "{}",
        json!({"id": 1, "method": "initialize", "params": {"clientInfo": {"name": "x", "version": "0"}}})
    )
    .unwrap();
    writeln!(input, "{}", json!({"id": 2, "method": "command/exec", "params": params})).unwrap();
    let (mut before, mut still) = (0, 0);
    crate::process::until("the command waits", || {
        let kept = bytes_below(&dir.path().join("state"));
        still = if kept == before && kept > 32 << 20 { still + 1 } else { 0 };
        before = kept;
        still == 200
    });
    drop((input, output));
    crate::process::until("the server has ended", || server.try_wait().unwrap().is_some());
}

/// Ended when the test is over, however it went.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ended_already = self.0.kill();
        let _reaped = self.0.wait();
    }
}

fn bytes_below(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_below(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    };
    entries.map(size).sum()
}

/// A descendant that has left group and session; unsandboxed it survives everything in the original.
#[test]
fn a_descendant_in_a_session_of_its_own_ends_with_the_connection() {
    outpost_testkit::require!(crate::table::skip_on_original());
    for kill in [false, true] {
        let mut server = server();
        let file = server.dir().join("pid");
        let script = format!(
            "setsid sh -c 'echo $$ > {}; exec sleep 1000' </dev/null >/dev/null 2>&1 & wait",
            file.display()
        );
        server.request("command/exec", &with(fed("p", &script), json!({"disableTimeout": true})));
        let descendant = Watched::pid_in(&file);
        if kill {
            server.kill();
        } else {
            server.close();
        }
        server.wait();
        descendant.ends("the descendant");
    }
}

/// A descendant that ignores everything that can be ignored, too.
#[test]
fn a_command_that_ignores_signals_ends_with_the_connection() {
    let mut server = server();
    let file = server.dir().join("pid");
    let script =
        format!("trap '' HUP INT TERM PIPE; echo $$ > {}; while :; do sleep 1000; done", file.display());
    server.request("command/exec", &with(streamed("p", &script), json!({"disableTimeout": true})));
    let command = Watched::pid_in(&file);
    server.close();
    assert_eq!(server.wait().code(), Some(0));
    command.ends("the command");
}

/// Nothing that was there before is left: neither processes nor files.
#[test]
fn a_server_that_has_ended_leaves_nothing() {
    let mut server = server();
    for _ in 0..3 {
        server.exec(&sh("echo x > \"$HOME/made\"; rm \"$HOME/made\""));
    }
    let marker = format!("OUTPOST_TEST_DAEMON={}", server.dir().display());
    server.close();
    assert_eq!(server.wait().code(), Some(0));
    crate::process::until("every process of the server is gone", || {
        let mut left =
            outpost_sys::procfs::all().into_iter().filter(|stat| !matches!(stat.state, b'Z' | b'X'));
        !left.any(|stat| outpost_sys::procfs::has_environment(stat.pid, marker.as_bytes()))
    });
    let left: Vec<_> =
        std::fs::read_dir(server.cwd()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}
