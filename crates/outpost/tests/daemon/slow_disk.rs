//! A disk with slow metadata operations: it delays neither the output nor the start of other processes.

use crate::support::{self, cli, outpost, read, sh, until};
use outpost_control::client::Client;
use outpost_control::wire::{
    Attach, Attached, ProcessInfo, ProcessRef, Spawned, Status, StatusQuery, Stdin, StdinApplied,
    StdinOutcome,
};
use outpost_sys::epoll::wait_readable;
use outpost_sys::pidfd;
use outpost_sys::signal::Signal;
use outpost_testkit::{Daemon, binary_beside, require, root};
use outpost_wire::base64;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The delay of each operation. A reactor iteration that contains such an operation takes at least as long.
const DELAY: Duration = Duration::from_millis(300);

/// The start of the faces takes some dozens of such operations.
const SHORT_DELAY: Duration = Duration::from_millis(60);

/// A start without a prepared slot creates its directories and files one after the other.
const START_MAX: Duration = Duration::from_secs(15);

/// Output of each flooding process. It exceeds the cap, so segments are created and dropped continuously.
const FLOOD_BYTES: u64 = 18 * 1024 * 1024;
const CAP_BYTES: u64 = 9 * 1024 * 1024;

/// Input of the reading process: more than one file of the stdin log.
const INPUT_BYTES: u64 = 10 * 1024 * 1024;

fn slow_daemon() -> Daemon {
    slow_daemon_below("processes", DELAY, &["--metrics-listen=127.0.0.1:0"])
}

/// A daemon whose disk is slow below this directory of its state.
fn slow_daemon_below(directory: &str, delay: Duration, flags: &[&str]) -> Daemon {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config/outpost");
    std::fs::create_dir_all(&config).unwrap();
    let processes = format!("[processes]\noutput_bytes_max = {CAP_BYTES}\nsync_s = 1\n");
    std::fs::write(config.join("outpost.toml"), processes).unwrap();
    let mut serve = Command::new(binary_beside(outpost(), "slowdisk"));
    serve.arg(delay.as_millis().to_string()).arg(dir.path().join("state").join(directory)).arg(outpost());
    Daemon::start_by(serve, dir, flags)
}

/// Reads the longest reactor iteration from the metrics page.
fn longest_turn(daemon: &Daemon) -> Duration {
    let status = cli(daemon, &["status", "--json"]).output().unwrap().stdout;
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    let listening = status["listening"].as_array().unwrap();
    let metrics = listening.iter().find(|row| row["face"] == "metrics").unwrap();
    let page = support::metrics(daemon.dir(), metrics["address"].as_str().unwrap());
    let line = page.lines().find_map(|line| line.strip_prefix("outpost_reactor_turn_max_seconds "));
    Duration::from_secs_f64(line.unwrap_or_else(|| panic!("{page}")).trim().parse().unwrap())
}

/// Ends [`watch`] when dropped, also during a panic.
struct Watching<'a>(&'a AtomicBool);

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reads output of a process until `over` is set. Returns the longest time without output.
fn watch(daemon: &Daemon, process: &str, over: &AtomicBool) -> Duration {
    let mut client: Client = daemon.connect();
    let attach = Attach { process: process.to_owned(), ..Attach::default() };
    let _attached: Attached = client.call("attach", &attach).unwrap();
    let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
    while !over.load(Ordering::Relaxed) {
        client.receive().unwrap();
        longest = longest.max(last.elapsed());
        last = Instant::now();
    }
    longest
}

/// Writes all input of a process and closes its stdin.
fn feed(daemon: &Daemon, process: &str) {
    let mut client = daemon.connect();
    let data = base64_text(&vec![b'x'; 512 * 1024]);
    let mut offset = 0;
    while offset < INPUT_BYTES {
        let data = data.clone();
        let stdin = Stdin { process: process.to_owned(), offset: Some(offset), data };
        let applied: StdinApplied = client.call("stdin", &stdin).unwrap();
        assert_eq!(applied.outcome, StdinOutcome::Applied);
        offset = applied.applied;
    }
    let _closed: serde_json::Value =
        client.call("closeStdin", &ProcessRef { process: process.to_owned() }).unwrap();
}

#[test]
fn output_and_starts_of_other_processes_go_on_while_each_operation_on_the_disk_takes_long() {
    require!(root());
    let daemon = slow_daemon();
    let old: Vec<Spawned> = (0..4).map(|number| sh(&daemon, &format!("old{number}"), "echo old")).collect();
    for spawned in &old {
        read(&daemon, &spawned.process, usize::MAX);
    }
    let ticker = sh(&daemon, "ticker", "while echo tick; do sleep 0.02; done");
    let reader = sh(&daemon, "reader", "wc -c");
    let flood = format!("head -c {FLOOD_BYTES} /dev/zero; head -c 5000000 /dev/zero >&2; echo done");
    let floods: Vec<Spawned> = (0..2).map(|number| sh(&daemon, &format!("flood{number}"), &flood)).collect();
    let over = AtomicBool::new(false);
    let (longest_start, longest_silence) = std::thread::scope(|scope| {
        let silence = scope.spawn(|| watch(&daemon, &ticker.process, &over));
        let watching = Watching(&over);
        let fed = scope.spawn(|| feed(&daemon, &reader.process));
        for spawned in &old {
            let which = ProcessRef { process: spawned.process.clone() };
            let _forgotten: serde_json::Value = daemon.connect().call("forget", &which).unwrap();
        }
        let mut longest_start = Duration::ZERO;
        for number in 0..4 {
            let started = Instant::now();
            let spawned = sh(&daemon, &format!("new{number}"), "echo new");
            assert_eq!(read(&daemon, &spawned.process, 4).0, b"new\n");
            longest_start = longest_start.max(started.elapsed());
        }
        fed.join().unwrap();
        for spawned in &floods {
            let (output, exit) = read(&daemon, &spawned.process, usize::MAX);
            // stdout and stderr are read in the order of their recording.
            let is_whole = output.windows(5).any(|end| end == b"done\n");
            assert!(is_whole && exit.is_some(), "{} bytes", output.len());
        }
        drop(watching);
        (longest_start, silence.join().unwrap())
    });
    let counted = format!("{INPUT_BYTES}\n").into_bytes();
    assert_eq!(read(&daemon, &reader.process, usize::MAX).0, counted);
    let turn = longest_turn(&daemon);
    println!("longest turn {turn:?}, start {longest_start:?}, silence {longest_silence:?}");
    assert!(turn < DELAY, "one turn of the reactor took {turn:?}");
    assert!(longest_start < START_MAX, "one start took {longest_start:?}");
    assert!(longest_silence < 10 * DELAY, "output of another process stood still for {longest_silence:?}");
    let records = daemon.dir().join("state/processes");
    until("the records are erased", || !old.iter().any(|spawned| records.join(&spawned.process).exists()));
}

#[test]
fn a_restarted_worker_serves_processes_before_its_faces_begin() {
    require!(root());
    let daemon = slow_daemon_below("approvals", SHORT_DELAY, &[]);
    let process = sh(&daemon, "p", "cat");
    let worker = daemon.worker();
    pidfd::signal(&worker, Signal::KILL).unwrap();
    assert!(wait_readable(&worker, START_MAX).unwrap());
    // The backlog of the socket holds the request until the next worker serves it.
    let mut client: Client = daemon.connect();
    let status: Status = client.call("status", &()).unwrap();
    assert!(status.faces.starting, "{:?}", status.faces);
    let listed: Vec<ProcessInfo> = client.call("list", &()).unwrap();
    assert_eq!(listed.len(), 1);
    let input = base64_text(b"input\n");
    let stdin = Stdin { process: process.process.clone(), offset: Some(0), data: input };
    let _applied: StdinApplied = client.call("stdin", &stdin).unwrap();
    assert_eq!(read(&daemon, &process.process, 6).0, b"input\n");
    let status: Status = client.call("status", &()).unwrap();
    assert!(status.faces.starting, "the faces were faster than the requests: {:?}", status.faces);
    let status: Status = client.call("status", &StatusQuery { await_faces: true }).unwrap();
    assert!(!status.faces.starting && status.faces.problems.is_empty(), "{:?}", status.faces);
    for face in ["control", "exec", "broker", "sessions", "approve"] {
        assert!(status.faces.listening.iter().any(|row| row.face == face), "{face}: {:?}", status.faces);
    }
}

/// Replies of a worker whose faces have not started do not count as serving: its deaths are restarted with a pause.
#[test]
fn a_worker_that_dies_while_its_faces_start_is_restarted_with_a_pause() {
    require!(root());
    let daemon = slow_daemon_below("approvals", SHORT_DELAY, &[]);
    // From the tenth kill on the keeper pauses before it starts the next worker.
    for _ in 0..12 {
        let mut client: Client = daemon.connect();
        let status: Status = client.call("status", &()).unwrap();
        let worker = outpost_testkit::process(status.worker_pid.cast_signed()).unwrap();
        pidfd::signal(&worker, Signal::KILL).unwrap();
        assert!(wait_readable(&worker, START_MAX).unwrap());
    }
    until("the log has the pause", || daemon.log().contains("before it served; trying again in 100ms"));
    assert!(!daemon.status().faces.starting);
}

fn base64_text(bytes: &[u8]) -> String {
    let mut text = Vec::new();
    base64::append(&mut text, bytes);
    String::from_utf8(text).unwrap()
}
