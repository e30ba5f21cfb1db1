//! Descriptors that children inherit, and listeners after the daemon stops or is killed.

use crate::support::{outpost, sh};
use outpost_control::wire::{Sandbox, SandboxPolicy, Spawn, Spawned, TerminalSize};
use outpost_sys::epoll::wait_readable;
use outpost_sys::pidfd::Pidfd;
use outpost_sys::signal::Signal;
use outpost_sys::{pidfd, procfs};
use outpost_testkit::{Daemon, install_fake_clis, kill_marked};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(30);

/// A daemon with all listeners and with fake agents.
fn daemon_with_all_listeners() -> Daemon {
    let dir = tempfile::tempdir().unwrap();
    let bin = dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    install_fake_clis(&bin, &["claude"]);
    let mut serve = Command::new(outpost());
    let path = std::env::var("PATH").unwrap_or_default();
    serve.env("PATH", format!("{}:{path}", bin.display()));
    Daemon::start_by(serve, dir, &["--exec-websocket=127.0.0.1:0", "--metrics-listen=127.0.0.1:0"])
}

fn spawn(daemon: &Daemon, spawn: Spawn) -> i32 {
    let spawned: Spawned = daemon.connect().call("spawn", &spawn).unwrap();
    spawned.pid
}

/// A descendant of the keeper.
#[derive(Debug)]
struct Child {
    /// Its executable is still that of the daemon.
    runs_outpost: bool,
    /// The link of each descriptor, by number.
    open: BTreeMap<i32, PathBuf>,
}

/// A consistent snapshot of executable and descriptors: an exec in between closes descriptors.
fn inspect(pid: i32) -> Child {
    let program = || std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    loop {
        let (before, open) = (program(), descriptors(pid));
        if program() == before {
            return Child { runs_outpost: before.is_some_and(|exe| exe == outpost()), open };
        }
    }
}

/// All descendants of the keeper except the worker.
fn children(daemon: &Daemon) -> BTreeMap<i32, Child> {
    let status = daemon.status();
    let keeper = status.keeper_pid.cast_signed();
    let below = procfs::descendants(&procfs::all(), &[keeper]);
    let worker = status.worker_pid.cast_signed();
    below.iter().map(|stat| stat.pid).filter(|pid| *pid != worker).map(|pid| (pid, inspect(pid))).collect()
}

fn descriptors(pid: i32) -> BTreeMap<i32, PathBuf> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let number = |entry: &std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    entries.filter_map(|entry| Some((number(&entry)?, std::fs::read_link(entry.path()).ok()?))).collect()
}

/// Listening sockets, as links in `/proc/PID/fd`.
fn listening_sockets() -> BTreeSet<PathBuf> {
    const TCP_LISTEN: &str = "0A";
    const ACCEPTS: &str = "00010000";
    let table = |name: &str| std::fs::read_to_string(format!("/proc/net/{name}")).unwrap_or_default();
    let column = |line: &str, at: usize| line.split_whitespace().nth(at).map(str::to_owned);
    let mut inodes = BTreeSet::new();
    for name in ["tcp", "tcp6"] {
        let lines = table(name);
        let listens = lines.lines().filter(|line| column(line, 3).as_deref() == Some(TCP_LISTEN));
        inodes.extend(listens.filter_map(|line| column(line, 9)));
    }
    let lines = table("unix");
    let listens = lines.lines().filter(|line| column(line, 3).as_deref() == Some(ACCEPTS));
    inodes.extend(listens.filter_map(|line| column(line, 6)));
    inodes.into_iter().map(|inode| format!("socket:[{inode}]").into()).collect()
}

#[test]
fn children_inherit_no_other_descriptors() {
    let daemon = daemon_with_all_listeners();
    let sleep = || vec!["/bin/sleep".into(), "1000".into()];
    let pipe = spawn(&daemon, Spawn { id: "pipe".into(), command: sleep(), stdin: true, ..Spawn::default() });
    let terminal = Some(TerminalSize { rows: 24, cols: 80 });
    let pty = spawn(&daemon, Spawn { id: "pty".into(), command: sleep(), terminal, ..Spawn::default() });
    let confined = |policy| Some(Sandbox { policy, network: false, writable: Vec::new() });
    let sandbox = confined(SandboxPolicy::WorkspaceWrite);
    let work = daemon.dir().join("work");
    std::fs::create_dir(&work).unwrap();
    let directory = Some(work.into());
    let sandboxed =
        Spawn { id: "sandboxed".into(), command: sleep(), sandbox, directory, ..Spawn::default() };
    let outer = spawn(&daemon, sandboxed);
    let sandbox = confined(SandboxPolicy::ReadOnly);
    let on_terminal = Spawn { id: "both".into(), command: sleep(), sandbox, terminal, ..Spawn::default() };
    let outer_of_pty = spawn(&daemon, on_terminal);
    let sessions = daemon.sessions();
    let created = sessions.result("session.create", json!({"path": daemon.dir(), "cliType": "claude"}));
    let session = created["sessionId"].as_str().unwrap().to_owned();
    let _stream = sessions.send(&session, "do:hang");
    let started = Instant::now();
    let is_agent = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("claude")
    };
    let found = loop {
        let found = children(&daemon);
        if found.iter().any(|(pid, child)| is_agent(pid) && !child.runs_outpost) {
            break found;
        }
        assert!(started.elapsed() < TIMEOUT, "{found:?}; {}", daemon.log());
        std::thread::park_timeout(Duration::from_millis(5));
    };
    let listening = listening_sockets();
    let held: BTreeSet<PathBuf> =
        descriptors(daemon.status().keeper_pid.cast_signed()).into_values().collect();
    assert!(held.intersection(&listening).count() >= 7, "the keeper holds every listening socket: {held:?}");
    let sandboxes = procfs::descendants(&procfs::all(), &[outer, outer_of_pty]);
    assert!(sandboxes.len() >= 4, "an init and a command for each: {sandboxes:?}");
    for pid in [pipe, pty, outer, outer_of_pty] {
        assert!(found.contains_key(&pid), "{pid}: {found:?}");
    }
    for (pid, Child { runs_outpost, open }) in &found {
        let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        for (number, what) in open {
            let message = format!("{pid} {command:?} has {number}: {}", what.display());
            assert!(!listening.contains(what), "{message}");
            let text = what.to_string_lossy();
            for own in ["anon_inode", "memfd:", "outpost.lock", "/state/", "cgroup", "net:[", "user:["] {
                assert!(!text.contains(own), "{message}");
            }
            assert!(!text.starts_with("socket:"), "{message}");
            let standard = *number <= 2;
            assert!(standard || *runs_outpost, "{message}");
            // The first process of a sandbox removes its placeholders in writable directories, so it has these open.
            let holds_names = *pid == outer && what.is_dir();
            let is_known = text.starts_with("pipe:") || holds_names;
            assert!(standard || is_known, "{message}");
        }
    }
}

/// Every address that a daemon listens on.
fn addresses(daemon: &Daemon) -> (Vec<PathBuf>, SocketAddr) {
    let run = daemon.dir().join("run");
    let sockets = ["control.sock", "exec.sock", "broker.sock", "approvals.sock"].map(|name| run.join(name));
    let port: u16 = std::fs::read_to_string(run.join("sessions.port")).unwrap().parse().unwrap();
    (sockets.into(), SocketAddr::from(([127, 0, 0, 1], port)))
}

fn is_refused(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, TIMEOUT)
        .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

fn until_refused(address: SocketAddr) {
    let started = Instant::now();
    while !is_refused(address) {
        assert!(started.elapsed() < Duration::from_secs(5), "{address} still accepts connections");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

fn open_pid(pid: u32) -> Pidfd {
    outpost_testkit::process(pid.cast_signed()).unwrap()
}

#[test]
fn a_daemon_that_stops_refuses_connections_before_its_processes_have_ended() {
    let daemon = daemon_with_all_listeners();
    sh(&daemon, "long", "exec sleep 1000");
    let (sockets, port) = addresses(&daemon);
    // Hard links stay when the daemon removes its sockets.
    let linked: Vec<PathBuf> = sockets.iter().map(|socket| socket.with_extension("link")).collect();
    for (socket, link) in sockets.iter().zip(&linked) {
        std::fs::hard_link(socket, link).unwrap();
    }
    assert!(!is_refused(port));
    let status = daemon.status();
    let (keeper, worker) = (open_pid(status.keeper_pid), open_pid(status.worker_pid));
    // The stopped keeper reaps no process, so the worker keeps waiting for the exits.
    pidfd::signal(&keeper, Signal::STOP).unwrap();
    let mut client = daemon.connect();
    client.send("stop", &()).unwrap();
    until_refused(port);
    for link in &linked {
        let connected = outpost_testkit::connect(link);
        assert!(
            connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused),
            "{}",
            link.display()
        );
    }
    assert!(!wait_readable(&worker, Duration::ZERO).unwrap(), "the worker still waits for processes");
    pidfd::signal(&keeper, Signal::CONT).unwrap();
    assert!(wait_readable(&worker, TIMEOUT).unwrap() && wait_readable(&keeper, TIMEOUT).unwrap());
}

#[test]
fn nothing_listens_any_more_when_both_halves_were_killed() {
    let daemon = daemon_with_all_listeners();
    let sandbox = Some(Sandbox { policy: SandboxPolicy::ReadOnly, network: false, writable: Vec::new() });
    let command = vec!["/bin/sleep".into(), "1000".into()];
    let outer = spawn(&daemon, Spawn { id: "sandboxed".into(), command, sandbox, ..Spawn::default() });
    let plain = sh(&daemon, "plain", "exec sleep 1000").pid;
    let (_, port) = addresses(&daemon);
    assert!(!is_refused(port));
    let status = daemon.status();
    let halves = [open_pid(status.keeper_pid), open_pid(status.worker_pid)];
    let left = [outer, plain].map(|pid| outpost_testkit::process(pid).unwrap());
    // Stop both first: each half would restart the other.
    for signal in [Signal::STOP, Signal::KILL] {
        halves.iter().for_each(|half| pidfd::signal(half, signal).unwrap());
    }
    for half in &halves {
        assert!(wait_readable(half, TIMEOUT).unwrap());
    }
    until_refused(port);
    for child in &left {
        let _ended_already = pidfd::signal(child, Signal::KILL);
    }
    kill_marked(&format!("OUTPOST_TEST_DAEMON={}", daemon.dir().display()));
}
