//! Clients of the control socket that disconnect before the reply, and clients that shut down their write side.

use crate::support::{daemon, read, sh};
use outpost_control::wire::{ProcessRef, Stdin, StdinApplied, StdinOutcome};
use outpost_sys::procfs;
use outpost_testkit::Daemon;
use outpost_wire::base64;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(30);
const MIB: usize = 1024 * 1024;
/// Maximum number of bytes that may be queued for the stdin of a child.
const WAITING_MAX: usize = 8 * MIB;
/// Maximum memory by which the worker may grow while the clients are connected.
const GROWTH_BYTES: u64 = 192 * MIB as u64;

fn raw(daemon: &Daemon) -> UnixStream {
    let stream = outpost_testkit::connect(daemon.socket()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

fn request(id: u64, method: &str, params: &Value) -> String {
    format!("{}\n", json!({"id": id, "method": method, "params": params}))
}

fn encoded(bytes: &[u8]) -> String {
    let mut data = Vec::new();
    base64::append(&mut data, bytes);
    String::from_utf8(data).unwrap()
}

fn stdin(daemon: &Daemon, process: &str, offset: Option<u64>, bytes: &[u8]) -> StdinApplied {
    let params = Stdin { process: process.to_owned(), offset, data: encoded(bytes) };
    daemon.connect().call("stdin", &params).unwrap()
}

/// Fills the stdin queue of a child that does not read.
fn fill(daemon: &Daemon, process: &str) -> u64 {
    let mut applied = 0;
    while applied < WAITING_MAX as u64 {
        let answer = stdin(daemon, process, Some(applied), &vec![b'f'; MIB]);
        assert_eq!(answer.outcome, StdinOutcome::Applied);
        applied = answer.applied;
    }
    applied
}

fn worker_pid(daemon: &Daemon) -> i32 {
    daemon.status().worker_pid.cast_signed()
}

fn resident_bytes(pid: i32) -> u64 {
    procfs::stat(pid).unwrap().rss_pages * procfs::page_size()
}

fn descriptors(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Waits until the worker has no more descriptors than this.
fn descriptors_fall_to(pid: i32, most: usize) {
    let started = Instant::now();
    while descriptors(pid) > most {
        assert!(started.elapsed() < TIMEOUT, "{} descriptors are open, not {most}", descriptors(pid));
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

#[test]
fn requests_of_disconnected_clients_are_freed() {
    const CLIENTS: usize = 6;
    let daemon = daemon();
    let deaf = sh(&daemon, "deaf", "exec sleep 1000").process;
    let applied = fill(&daemon, &deaf);
    let pid = worker_pid(&daemon);
    let (open_before, resident_before) = (descriptors(pid), resident_bytes(pid));
    let line =
        request(1, "stdin", &json!({"process": deaf, "offset": null, "data": encoded(&vec![b'x'; MIB])}));
    let clients: Vec<UnixStream> = (0..CLIENTS)
        .map(|_| {
            let mut client = raw(&daemon);
            client.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
            for sent in 0.. {
                assert!(sent < 64, "a client may have 64 MiB of requests under way");
                match client.write_all(line.as_bytes()) {
                    Ok(()) => {}
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                        break;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            client
        })
        .collect();
    let growth = resident_bytes(pid).saturating_sub(resident_before);
    assert!(growth < GROWTH_BYTES, "the worker grew by {growth} bytes");
    drop(clients);
    descriptors_fall_to(pid, open_before);
    let accepted = daemon.list().iter().find(|process| process.process == deaf).unwrap().stdin_accepted;
    assert_eq!(accepted, applied);
}

#[test]
fn queued_input_of_a_disconnected_client_is_dropped() {
    let daemon = daemon();
    let gate = daemon.dir().join("gate");
    assert!(std::process::Command::new("mkfifo").arg(&gate).status().unwrap().success());
    let script = "read go < gate; head -c 8388608 >/dev/null; echo drained; wc -c";
    let process = sh(&daemon, "late", script).process;
    assert_eq!(fill(&daemon, &process), WAITING_MAX as u64);
    let pid = worker_pid(&daemon);
    let open_before = descriptors(pid);
    for offset in [Value::Null, json!(WAITING_MAX)] {
        let mut leaver = raw(&daemon);
        // The data is larger than a pipe, so it waits for room.
        let params = json!({"process": process, "offset": offset, "data": encoded(&vec![b'x'; 2 * MIB])});
        leaver.write_all(request(1, "stdin", &params).as_bytes()).unwrap();
        leaver.write_all(request(2, "status", &json!({})).as_bytes()).unwrap();
        // The reply to the second request shows that the worker has read the first one.
        let mut answer = String::new();
        BufReader::new(leaver.try_clone().unwrap()).read_line(&mut answer).unwrap();
        assert!(answer.starts_with("{\"id\":2,"), "{answer}");
    }
    descriptors_fall_to(pid, open_before);
    std::fs::write(&gate, "go\n").unwrap();
    assert_eq!(read(&daemon, &process, 8).0, b"drained\n");
    assert_eq!(stdin(&daemon, &process, None, b"y").applied, WAITING_MAX as u64 + 1);
    let () = daemon.connect().call("closeStdin", &ProcessRef { process: process.clone() }).unwrap();
    assert_eq!(read(&daemon, &process, usize::MAX).0, b"drained\n1\n");
}

#[test]
fn a_half_closed_client_gets_every_reply() {
    let daemon = daemon();
    let stubborn = sh(&daemon, "stubborn", "trap '' TERM; echo deaf; while :; do sleep 1; done").process;
    assert_eq!(read(&daemon, &stubborn, 5).0, b"deaf\n");
    let mut client = raw(&daemon);
    let spawn = json!({"id": "quick", "command": ["/bin/echo", "hello"]});
    client.write_all(request(1, "kill", &json!({"process": stubborn, "graceMs": 300})).as_bytes()).unwrap();
    client.write_all(request(2, "attach", &json!({"process": stubborn, "after": 0})).as_bytes()).unwrap();
    client.write_all(request(3, "spawn", &spawn).as_bytes()).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let lines: Vec<Value> =
        BufReader::new(client).lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    let answer =
        |id: u64| lines.iter().find(|line| line["id"] == id).unwrap_or_else(|| panic!("{id}: {lines:?}"));
    assert_eq!(answer(1)["result"]["died"], true, "{lines:?}");
    assert_eq!(answer(2)["result"]["running"], true, "{lines:?}");
    assert!(answer(3)["result"]["pid"].is_number(), "{lines:?}");
    assert!(lines.iter().any(|line| line.get("exit").is_some()), "the client received the exit: {lines:?}");
}

#[test]
fn requests_of_a_disconnected_client_are_still_carried_out() {
    let daemon = daemon();
    let stubborn = sh(&daemon, "stubborn", "trap '' TERM; echo deaf; while :; do sleep 1; done").process;
    assert_eq!(read(&daemon, &stubborn, 5).0, b"deaf\n");
    let fed = sh(&daemon, "fed", "exec head -c 2").process;
    let mut client = raw(&daemon);
    client.write_all(request(1, "kill", &json!({"process": stubborn, "graceMs": 300})).as_bytes()).unwrap();
    let input = json!({"process": fed, "offset": null, "data": encoded(b"hi")});
    client.write_all(request(2, "stdin", &input).as_bytes()).unwrap();
    drop(client);
    let (_, exit) = read(&daemon, &stubborn, usize::MAX);
    assert_eq!(exit.unwrap().signal, Some(9), "the tree is killed though no client waits for it");
    assert_eq!(read(&daemon, &fed, usize::MAX).0, b"hi");
}
