//! A daemon under limits on memory, pipe buffers and inotify instances.

use crate::support::{daemon, exit_code, outpost, read, sh, until};
use outpost_control::wire::{Stdin, StdinApplied};
use outpost_testkit::{Daemon, Half, MemoryCgroup, require, root};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A user for these tests only: the kernel counts pipe buffers per user.
const UID: u32 = 54_323;

#[test]
fn a_child_that_reaches_the_memory_limit_is_killed_alone() {
    let group = require!(MemoryCgroup::new("memory", 256 << 20));
    let mut serve = Command::new("/bin/sh");
    serve.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(group.processes()).arg(outpost());
    let daemon = Daemon::start_by(serve, tempfile::tempdir().unwrap(), &[]);
    let before = daemon.status();
    let other = sh(&daemon, "other", "read line; exit 4");
    let greedy = sh(&daemon, "greedy", "echo begun; exec perl -e '$x = \"a\" x (1 << 30); print length $x'");
    let (output, exit) = read(&daemon, &greedy.process, usize::MAX);
    let exit = exit.unwrap();
    assert_eq!((output, exit.code, exit.signal), (b"begun\n".to_vec(), None, Some(9)));
    let after = daemon.status();
    assert_eq!((after.worker_pid, after.keeper_pid), (before.worker_pid, before.keeper_pid));
    let stdin = Stdin { process: other.process.clone(), offset: Some(0), data: "Cg==".into() };
    let _applied: StdinApplied = daemon.ask("stdin", &stdin);
    assert_eq!(exit_code(read(&daemon, &other.process, usize::MAX).1), Some(4));
}

#[test]
fn a_worker_killed_at_the_memory_limit_is_replaced_and_loses_nothing() {
    let group = require!(MemoryCgroup::new("worker", 512 << 10));
    let daemon = daemon();
    let process = sh(&daemon, "p", "echo before; read line; echo \"got $line\"; exit 9").process;
    assert_eq!(read(&daemon, &process, 7).0, b"before\n");
    let worker = daemon.status().worker_pid;
    std::fs::write(group.processes(), worker.to_string()).unwrap();
    // Each connection uses memory of the worker.
    let mut clients = Vec::new();
    until("the kernel has killed the worker", || {
        let greeted = outpost_control::client::Client::connect(&daemon.socket()).map(|mut client| {
            let _sent = client.send("read", &serde_json::json!({"process": process, "afterSeq": 0}));
            clients.push(client);
        });
        greeted.is_err() || !Path::new(&format!("/proc/{worker}")).exists()
    });
    drop(clients);
    until("the next worker serves", || daemon.status().worker_pid != worker);
    let stdin = Stdin { process: process.clone(), offset: Some(0), data: "aGVsbG8K".into() };
    let _applied: StdinApplied = daemon.ask("stdin", &stdin);
    let (output, exit) = read(&daemon, &process, usize::MAX);
    assert_eq!(String::from_utf8_lossy(&output), "before\ngot hello\n");
    assert_eq!(exit_code(exit), Some(9));
}

/// Uses up the pipe buffers of the user: new pipes have one or two pages and cannot grow.
struct PipeHog(Child);

impl PipeHog {
    fn start() -> PipeHog {
        const SCRIPT: &str = "$| = 1; my @all; for (1 .. 4000) { pipe(my $r, my $w) or last; push @all, $r, $w; \
            if (fcntl($r, 1032, 0) < 65536) { print \"full\\n\"; sleep 1000; exit } } print \"none\\n\"";
        let mut hog = Command::new("setpriv");
        hog.args([format!("--reuid={UID}"), format!("--regid={UID}"), "--clear-groups".into()]);
        hog.args(["prlimit", "--nofile=9000:9000", "perl", "-e", SCRIPT]).stdout(Stdio::piped());
        let mut hog = hog.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(hog.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "full\n");
        PipeHog(hog)
    }
}

impl Drop for PipeHog {
    fn drop(&mut self) {
        let _ended_already = self.0.kill();
        let _reaped = self.0.wait();
    }
}

#[test]
fn output_and_input_flow_for_a_user_without_pipe_buffers() {
    require!(root());
    let _hog = PipeHog::start();
    let daemon = Daemon::start_as(outpost(), UID);
    assert!(daemon.status().faces.problems.is_empty(), "{:?}", daemon.status().faces.problems);
    let loud = sh(&daemon, "loud", "head -c 3000000 /dev/zero; exit 3");
    let echo = sh(&daemon, "echo", "exec cat");
    daemon.kill(Half::Worker);
    daemon.kill(Half::Keeper);
    let (output, exit) = read(&daemon, &loud.process, usize::MAX);
    assert_eq!((output.len(), output.iter().any(|byte| *byte != 0)), (3_000_000, false));
    // Its parent was the killed keeper. Before Linux 6.15 it depends on the host whether the exit code is known.
    assert!(matches!(exit_code(exit), Some(3) | None));
    let data = "YWJj".repeat(50_000);
    let stdin = Stdin { process: echo.process.clone(), offset: Some(0), data };
    let _applied: StdinApplied = daemon.ask("stdin", &stdin);
    assert_eq!(read(&daemon, &echo.process, 150_000).0, b"abc".repeat(50_000));
}

/// The daemon does not depend on `fs.inotify.max_user_instances`.
#[test]
fn no_half_of_the_daemon_uses_inotify() {
    let daemon = daemon();
    let _started = sh(&daemon, "p", "read line");
    daemon.sessions().result("health.check", serde_json::json!({}));
    let status = daemon.status();
    for pid in [status.worker_pid, status.keeper_pid] {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let open: Vec<PathBuf> = open.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect();
        assert!(!open.is_empty());
        assert!(!open.iter().any(|path| path.as_os_str() == "anon_inode:inotify"), "{open:?}");
    }
}
