//! `-metrics-addr`: the Prometheus endpoint.

use super::{Follower, wait_until, write_stdin};
use outpost_testkit::{Half, Relay, TOKEN};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// A loopback address with a port that is free at this moment.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Head and body of the response; `None` while no socket listens.
fn try_get(address: &str, path: &str) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // A relay of root requires the token.
    let token = format!("Authorization: Bearer {TOKEN}\r\n");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{token}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    Some((head.to_owned(), body.to_owned()))
}

/// The metrics. Waits until the endpoint is up.
fn metrics(address: &str) -> String {
    let mut body = String::new();
    wait_until("metrics are served", || match try_get(address, "/metrics") {
        Some((head, text)) => {
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
            assert!(head.contains("\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
            body = text;
            true
        }
        None => false,
    });
    body
}

fn value(metrics: &str, name: &str) -> u64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is missing in {metrics}")).parse().unwrap()
}

const COUNTERS: [(&str, &str); 6] = [
    ("claustrum_connections_total", "Client connections accepted."),
    ("claustrum_process_spawns_total", "Processes started via process.spawn."),
    ("claustrum_process_exits_total", "Managed processes that have exited."),
    ("claustrum_reattaches_total", "process.reattach calls that found their process."),
    ("claustrum_stream_bytes_total", "Process stdout/stderr bytes streamed to clients."),
    ("claustrum_stdin_bytes_total", "Bytes accepted for child stdin."),
];

#[test]
fn the_contracts_counters_come_first_and_count() {
    let relay = Relay::prepare();
    let address = free_address();
    relay.serve(&["-metrics-addr", &address]);
    let before = metrics(&address);
    let mut lines = before.lines();
    for (name, help) in COUNTERS {
        assert_eq!(lines.next(), Some(format!("# HELP {name} {help}").as_str()));
        assert_eq!(lines.next(), Some(format!("# TYPE {name} counter").as_str()));
        // The launcher's liveness probe does not count as a client.
        assert_eq!(lines.next(), Some(format!("{name} 0").as_str()));
    }
    let mut client = relay.connect();
    client.call("process.spawn", r#"{"id":"p","command":"/bin/sh","args":["-c","head -c 10; echo no >&2"]}"#);
    write_stdin(&mut client, "p", b"hello");
    write_stdin(&mut client, "p", b"world");
    let mut follower = Follower::new(&relay.socket(), "p");
    assert_eq!((follower.read_to_exit(), follower.bytes.len()), (0, 13));
    client.call("process.reattach", r#"{"id":"unknown"}"#);
    client.call("process.spawn", r#"{"id":"q","command":"/no/such/program"}"#);
    client.call("process.spawn", r#"{"id":"r","command":"/bin/cat"}"#);
    // Counts once: the second request is a duplicate.
    let again = r#"{"id":"r","data":"aGVsbG8=","offset":0}"#;
    client.call("process.stdin", again);
    assert!(client.call("process.stdin", again).contains(r#""duplicate":true"#));
    let mut cat = Follower::new(&relay.socket(), "r");
    cat.read_until("hello");
    let after = metrics(&address);
    let grown: Vec<u64> =
        COUNTERS.iter().map(|(name, _)| value(&after, name) - value(&before, name)).collect();
    assert_eq!(grown, [3, 2, 1, 2, 18, 15], "{after}");
    assert_eq!(value(&after, "outpost_relay_processes_running"), 1);
    assert_eq!(value(&after, "outpost_relay_processes_ended"), 1);
    assert_eq!(value(&after, "outpost_relay_connections"), 3);
    assert!(value(&after, "outpost_relay_subscribers") >= 1, "{after}");
    assert!(value(&after, "outpost_relay_journal_bytes") >= 18, "{after}");
    let count = "outpost_relay_request_seconds_count{namespace=\"process\"}";
    assert!(value(&after, count) >= 9, "{after}");
    let all = "outpost_relay_request_seconds_bucket{namespace=\"process\",le=\"+Inf\"}";
    assert_eq!(value(&after, all), value(&after, count));
    assert!(after.contains("# TYPE outpost_relay_request_seconds histogram\n"));
}

#[test]
fn a_port_without_host_binds_every_address() {
    let relay = Relay::prepare();
    let address = free_address();
    let (_, port) = address.rsplit_once(':').unwrap();
    relay.serve(&["-metrics-addr", &format!(":{port}")]);
    assert!(metrics(&address).starts_with("# HELP claustrum_connections_total "));
    wait_until("the log has the line", || {
        relay.log().contains(&format!("[Server] metrics: serving Prometheus counters on :{port}/metrics"))
    });
}

#[test]
fn every_other_path_is_not_found() {
    let relay = Relay::prepare();
    let address = free_address();
    relay.serve(&["-metrics-addr", &address]);
    metrics(&address);
    for path in ["/", "/metrics/", "/metricsx", "/favicon.ico"] {
        let (head, _) = try_get(&address, path).unwrap();
        assert!(head.starts_with("HTTP/1.1 404 Not Found\r\n"), "{path}: {head}");
    }
}

#[test]
fn a_bind_failure_is_logged_and_not_fatal() {
    let relay = Relay::prepare();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    relay.serve(&["-metrics-addr", &address]);
    assert_eq!(relay.connect().call("server.ping", ""), r#""result":{"pong":true}"#);
    wait_until("the log has the line", || {
        relay.log().contains(&format!("[Server] metrics: listen {address}: "))
    });
    super::stop(&relay);
    for nonsense in ["nonsense", "127.0.0.1:99999", ":-1"] {
        relay.serve(&["-metrics-addr", nonsense]);
        assert_eq!(relay.connect().call("server.ping", ""), r#""result":{"pong":true}"#, "{nonsense}");
        super::stop(&relay);
    }
}

#[test]
fn every_new_worker_serves_metrics() {
    let relay = Relay::prepare();
    let address = free_address();
    relay.serve(&["-metrics-addr", &address]);
    metrics(&address);
    relay.kill(Half::Worker);
    metrics(&address);
    relay.kill(Half::Keeper);
    metrics(&address);
    // The new worker starts while the old one still listens.
    super::crashes::upgrade(&relay);
    metrics(&address);
    let parts = super::daemon_pidfds(&relay);
    super::stop(&relay);
    parts.iter().for_each(|part| super::assert_exits(part, "the daemon"));
    assert!(try_get(&address, "/metrics").is_none(), "the endpoint is still up");
}

#[test]
fn without_the_flag_there_is_no_tcp_listener() {
    let relay = Relay::start();
    let status = relay.status().unwrap();
    let inodes: Vec<String> = std::fs::read_dir(format!("/proc/{}/fd", status.worker_pid))
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    assert!(!inodes.is_empty());
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let Ok(table) = std::fs::read_to_string(table) else { continue };
        let ours = table.lines().filter(|line| {
            line.split_ascii_whitespace().nth(9).is_some_and(|inode| inodes.iter().any(|ours| ours == inode))
        });
        assert_eq!(ours.count(), 0);
    }
}
