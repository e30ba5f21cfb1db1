//! Load tests: many clients, many processes, and clients that do not read. Memory stays bounded, other clients are served.

use crate::lifecycle::{Gate, base64, spawn_sh};
use outpost_sys::procfs;
use outpost_testkit::{Relay, RelayClient, TOKEN};
use serde_json::{Value, json};
use std::io::{ErrorKind, Write};
use std::time::{Duration, Instant};

const PONG: &str = r#""result":{"pong":true}"#;
/// Limit of the worker's memory growth. An optimised build needs a fraction.
const GROWTH_BYTES: u64 = 96 * 1024 * 1024;

/// Resident memory of the worker in bytes.
fn resident(relay: &Relay) -> u64 {
    let pid = relay.status().unwrap().worker_pid.cast_signed();
    procfs::stat(pid).unwrap().rss_pages * procfs::page_size()
}

/// Data length and sequence number of an output frame; `None` for other lines.
fn measure(line: &str) -> Option<(usize, u64)> {
    let data = line.split_once(r#""data":""#)?.1.strip_suffix("\"}")?;
    let padding = data.len() - data.trim_end_matches('=').len();
    let seq = line.split_once(r#""seq":"#)?.1.split_once(',')?.0.parse().unwrap();
    Some((data.len() / 4 * 3 - padding, seq))
}

/// Reads the frames of one process up to its exit and returns the number of output bytes.
fn read_to_exit(client: &mut RelayClient) -> usize {
    let (mut bytes, mut last_seq) = (0, 0);
    loop {
        let line = client.line();
        assert!(!line.is_empty(), "the connection was closed");
        if let Some((length, seq)) = measure(&line) {
            assert_eq!(seq, last_seq + 1);
            (bytes, last_seq) = (bytes + length, seq);
        } else if line.contains(r#""stream":"exit""#) {
            return bytes;
        }
    }
}

#[test]
fn a_thousand_clients_follow_one_process() {
    const CLIENTS: usize = 1000;
    const BYTES: usize = 100_000;
    let relay = Relay::start();
    let mut gate = Gate::new(&relay.path("gate"));
    let script = format!("read x < gate; yes 0123456789 | head -c {BYTES}");
    spawn_sh(&mut relay.connect(), "p", &script);
    let mut clients: Vec<RelayClient> = (0..CLIENTS).map(|_| relay.connect()).collect();
    for client in &mut clients {
        client.request("server.ping", "");
        client.request("process.reattach", r#"{"id":"p","fromSeq":0}"#);
    }
    for client in &mut clients {
        let mut answers = [client.line(), client.line()];
        answers.sort();
        assert_eq!(answers[0], format!(r#"{{"jsonrpc":"2.0","id":1,{PONG}}}"#));
        assert!(answers[1].contains(r#""found":true,"running":true"#), "{}", answers[1]);
    }
    gate.open();
    for client in &mut clients {
        assert_eq!(read_to_exit(client), BYTES);
    }
    assert_eq!(relay.connect().call("server.ping", ""), PONG);
}

#[test]
fn a_thousand_processes_echo_their_stdin() {
    const PROCESSES: usize = 1000;
    let relay = Relay::start();
    let mut client = relay.connect();
    for number in 0..PROCESSES {
        client.request(
            "process.spawn",
            &json!({"id": format!("p{number}"), "command": "/bin/cat"}).to_string(),
        );
        let data = base64(format!("I am {number}\n").as_bytes());
        client.request("process.stdin", &json!({"id": format!("p{number}"), "data": data}).to_string());
    }
    let (mut answered, mut echoed) = (0, vec![false; PROCESSES]);
    while answered < 2 * PROCESSES || echoed.contains(&false) {
        let line = client.line();
        let frame: Value = serde_json::from_str(&line).unwrap();
        if frame.get("type").is_none() {
            assert_eq!(frame["result"]["success"], true, "{line}");
            answered += 1;
            continue;
        }
        let number: usize = frame["processId"].as_str().unwrap()[1..].parse().unwrap();
        let data = outpost_wire::base64::decode(frame["data"].as_str().unwrap().as_bytes()).unwrap();
        assert_eq!(data, format!("I am {number}\n").as_bytes());
        assert!(!std::mem::replace(&mut echoed[number], true), "{line}");
    }
    let status = relay.status().unwrap();
    assert_eq!(status.running, PROCESSES);
    let parts = crate::lifecycle::daemon_pidfds(&relay);
    crate::lifecycle::stop(&relay);
    parts.iter().for_each(|part| crate::lifecycle::assert_exits(part, "a daemon with a thousand processes"));
}

#[test]
fn a_client_that_does_not_read_its_stream_delays_no_other() {
    const BYTES: usize = 64 * 1024 * 1024;
    let relay = Relay::start();
    let mut gate = Gate::new(&relay.path("gate"));
    let script = format!("read x < gate; yes 0123456789abcde | head -c {BYTES}; echo end >&2");
    let mut client = relay.connect();
    let child = spawn_sh(&mut client, "p", &script);
    let mut stuck: Vec<RelayClient> = (0..3).map(|_| relay.connect()).collect();
    for stuck in &mut stuck {
        stuck.request("process.reattach", r#"{"id":"p","fromSeq":0}"#);
        assert!(stuck.line().contains(r#""found":true"#));
    }
    let before = resident(&relay);
    gate.open();
    assert_eq!(read_to_exit(&mut client), BYTES + 4);
    assert!(!crate::lifecycle::is_alive(child));
    let growth = resident(&relay).saturating_sub(before);
    assert!(growth < GROWTH_BYTES, "{growth} bytes");
    // A stuck client that reads again gets everything.
    assert_eq!(read_to_exit(&mut stuck[0]), BYTES + 4);
}

/// Sends a line repeatedly until the socket buffer stays full for a second. Returns the number of lines.
fn flood(client: &mut RelayClient, line: &str, most: usize) -> usize {
    client.stream().set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let lines = line.repeat(100);
    for sent in 0..most / 100 {
        match client.stream().write_all(lines.as_bytes()) {
            Ok(()) => {}
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
                return sent * 100;
            }
        }
    }
    most
}

fn request(method: &str, params: &Value) -> String {
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "auth": TOKEN, "params": params});
    format!("{request}\n")
}

/// Floods the worker from clients that do not read replies. Asserts that memory is bounded and others are served.
fn assert_flood_is_bounded(relay: &Relay, method: &str, params: &Value) {
    let probe = relay.path("probe");
    std::fs::write(&probe, "small").unwrap();
    let mut other = relay.connect();
    let before = resident(relay);
    let mut non_readers: Vec<RelayClient> = (0..2).map(|_| relay.connect()).collect();
    let line = request(method, params);
    for client in &mut non_readers {
        let sent = flood(client, &line, 200_000);
        assert!(sent < 200_000, "{method}: a client that does not read can send without limit");
    }
    let growth = resident(relay).saturating_sub(before);
    assert!(growth < GROWTH_BYTES, "{method} {params}: {growth} bytes");
    other.stream().set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let begun = Instant::now();
    assert_eq!(other.call("server.ping", ""), PONG);
    let read = other.call("files.read", &json!({"path": probe}).to_string());
    assert_eq!(read, r#""result":{"content":"small","exists":true}"#);
    let spawned = other.call("process.spawn", r#"{"id":"other","command":"/bin/true"}"#);
    assert_eq!(spawned, r#""result":{"success":true}"#);
    assert!(begun.elapsed() < Duration::from_secs(10), "{method}: {:?}", begun.elapsed());
}

#[test]
fn requests_without_reading_replies_use_bounded_memory() {
    let relay = Relay::start();
    assert_flood_is_bounded(&relay, "server.ping", &Value::Null);
    assert_flood_is_bounded(&relay, "server.capabilities", &Value::Null);
    assert_flood_is_bounded(&relay, "process.reattach", &json!({"id": "unknown"}));
    assert_flood_is_bounded(&relay, "files.stat", &json!({"path": "/"}));
}

#[test]
fn file_reads_without_reading_replies_use_bounded_memory() {
    let relay = Relay::start();
    let file = relay.path("file");
    // The largest file that does not count as large.
    std::fs::write(&file, vec![b'x'; 1024 * 1024]).unwrap();
    assert_flood_is_bounded(&relay, "files.read", &json!({"path": file}));
}

#[test]
fn large_file_reads_without_reading_replies_delay_no_other() {
    let relay = Relay::start();
    let file = relay.path("file");
    std::fs::write(&file, vec![b'x'; 3 * 1024 * 1024]).unwrap();
    assert_flood_is_bounded(&relay, "files.read", &json!({"path": file}));
    // Another client can read the large file.
    let mut other = relay.connect();
    other.stream().set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let read = other.call("files.read", &json!({"path": file}).to_string());
    assert!(read.len() > 3 * 1024 * 1024);
}

/// Waits until the process has at most this many descriptors.
fn wait_for_descriptors(pid: i32, most: usize) {
    let begun = Instant::now();
    while descriptors(pid) > most {
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "{} descriptors are open, not {most}",
            descriptors(pid)
        );
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

fn descriptors(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Sends a line until the socket buffer stays full for a second. Returns the number of lines.
fn send_until_stuck(client: &mut RelayClient, line: &str) -> usize {
    client.stream().set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    for sent in 0..600 {
        if let Err(error) = client.stream().write_all(line.as_bytes()) {
            assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
            return sent;
        }
    }
    panic!("stdin of a process that does not read is accepted without limit");
}

#[test]
fn stdin_of_disconnected_clients_is_freed() {
    const CLIENTS: usize = 12;
    let relay = Relay::start();
    let mut client = relay.connect();
    spawn_sh(&mut client, "deaf", "exec sleep 1000");
    let data = base64(&vec![b'x'; 750_000]);
    let line = request("process.stdin", &json!({"id": "deaf", "data": data}));
    // Fills the stdin log on disk, then the connection's load limit.
    let mut first = relay.connect();
    assert!(send_until_stuck(&mut first, &line) > 256);
    let pid = relay.status().unwrap().worker_pid.cast_signed();
    let (open_before, resident_before) = (descriptors(pid), resident(&relay));
    let mut others: Vec<RelayClient> = (0..CLIENTS).map(|_| relay.connect()).collect();
    for other in &mut others {
        send_until_stuck(other, &line);
    }
    let growth = resident(&relay).saturating_sub(resident_before);
    assert!(growth < 2 * GROWTH_BYTES, "{growth} bytes");
    drop(others);
    wait_for_descriptors(pid, open_before);
    drop(first);
    wait_for_descriptors(pid, open_before - 1);
    // The waiting data of disconnected clients is not applied later.
    let applied = |client: &mut RelayClient| client.call("process.reattach", r#"{"id":"deaf","fromSeq":0}"#);
    let before = applied(&mut client);
    client.call("process.stdin", r#"{"id":"deaf","data":""}"#);
    assert_eq!(applied(&mut client), before);
}
