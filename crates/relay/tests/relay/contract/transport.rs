//! "Transport": line limit, line ends, half-close, pipelining.

use crate::contract::table::{TIMEOUT, answer, raw};
use outpost_testkit::{Relay, RelayClient, TOKEN};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;

fn ping(id: u64) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"server.ping\",\"auth\":\"{TOKEN}\"}}")
}

fn pong(id: u64) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"pong\":true}}}}")
}

/// A request of exactly this length, without its newline.
fn padded(id: u64, bytes: usize) -> String {
    let request = ping(id).replace('}', ",\"pad\":\"\"}");
    let pad = "x".repeat(bytes - request.len());
    request.replace(":\"\"}", &format!(":\"{pad}\"}}"))
}

/// Reads until the daemon closes the connection.
fn rest(mut stream: UnixStream) -> String {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut bytes = Vec::new();
    // Closing a socket with unread data resets the connection.
    let _reset = stream.read_to_end(&mut bytes);
    String::from_utf8(bytes).unwrap()
}

/// "AF_UNIX stream socket, created mode 0600 (owner only)".
#[test]
fn the_socket_has_mode_0600() {
    let relay = Relay::start();
    let found = relay.socket().metadata().unwrap();
    assert!(found.file_type().is_socket());
    assert_eq!(found.permissions().mode() & 0o7777, 0o600);
}

#[test]
fn empty_lines_are_ignored_and_a_carriage_return_is_part_of_the_line_end() {
    let relay = Relay::start();
    let mut client = relay.connect();
    client.send(format!("\n\r\n\n{}\r\n\r\n\n{}\n", ping(1), ping(2)));
    assert_eq!([client.line(), client.line()], [pong(1), pong(2)]);
    // Other carriage returns are JSON whitespace.
    client.send(format!("\r{}\r\r\n", ping(3)));
    assert_eq!(client.line(), pong(3));
}

/// "a line up to 1048575 bytes is served, 1048576+ closes the connection with no reply".
#[test]
fn a_line_below_the_limit_is_served() {
    let relay = Relay::start();
    let mut client = relay.connect();
    for (id, bytes) in [(1, 1_048_574), (2, 1_048_575)] {
        let line = padded(id, bytes);
        assert_eq!(line.len(), bytes);
        client.send(line + "\n");
        assert_eq!(client.line(), pong(id));
    }
    // The carriage return counts for the limit.
    client.send(padded(3, 1_048_574) + "\r\n");
    assert_eq!(client.line(), pong(3));
    // A last line without a newline.
    client.send(padded(4, 1_048_575));
    client.stream().shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.line(), pong(4));
    assert_eq!(client.line(), "");
}

#[test]
fn a_line_over_the_limit_closes_the_connection_without_a_reply() {
    let relay = Relay::start();
    let too_long = [
        padded(1, 1_048_576) + "\n",
        padded(1, 1_048_575) + "\r\n",
        padded(1, 1_048_576),
        "x".repeat(3_000_000),
        "\0".repeat(1_048_576) + "\n",
    ];
    for bytes in too_long {
        let mut stream = outpost_testkit::connect(relay.socket()).unwrap();
        // The daemon may close the connection before it has read everything.
        let _broken = stream.write_all(bytes.as_bytes());
        assert_eq!(rest(stream), "", "{} bytes", bytes.len());
    }
    // Requests before the long line get replies, requests after it do not.
    let mut stream = outpost_testkit::connect(relay.socket()).unwrap();
    let bytes = format!("{}\n{}\n{}\n", ping(1), padded(2, 1_048_576), ping(3));
    let _broken = stream.write_all(bytes.as_bytes());
    let got = rest(stream);
    assert!(got.is_empty() || got == pong(1) + "\n", "{got}");
    assert_eq!(relay.connect().call("server.ping", ""), answer(r#"{"pong":true}"#));
}

#[test]
fn each_malformed_line_gets_an_error_and_the_connection_stays_open() {
    let relay = Relay::start();
    let parse = "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32700,\"message\":\"Parse error\"}}";
    let mut client = relay.connect();
    client.send(b"\x00\x01\xff\xfe\nGET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!([client.line(), client.line(), client.line()], [parse, parse, parse]);
    client.send(ping(9) + "\n");
    assert_eq!(client.line(), pong(9));
    // "parse/auth errors answered before a half-close is honoured"
    assert_eq!(String::from_utf8(half_closed(&relay, b"{")).unwrap(), format!("{parse}\n"));
}

/// Sends bytes, shuts down the sending side, and reads to EOF.
fn half_closed(relay: &Relay, bytes: &[u8]) -> Vec<u8> {
    let mut stream = outpost_testkit::connect(relay.socket()).unwrap();
    stream.write_all(bytes).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    rest(stream).into_bytes()
}

/// The original serves a last line without a newline, but can lose its reply, which is a defect.
#[test]
fn a_half_closed_connection_gets_every_reply() {
    let relay = Relay::start();
    assert_eq!(half_closed(&relay, b""), b"");
    assert_eq!(half_closed(&relay, b"\n\n"), b"");
    assert_eq!(half_closed(&relay, ping(1).as_bytes()), (pong(1) + "\n").into_bytes());
    assert_eq!(half_closed(&relay, (ping(1) + "\r").as_bytes()), (pong(1) + "\n").into_bytes());
    let many: String = (1..=200).map(|id| ping(id) + if id == 200 { "" } else { "\n" }).collect();
    let got = String::from_utf8(half_closed(&relay, many.as_bytes())).unwrap();
    let expected: String = (1..=200).map(|id| pong(id) + "\n").collect();
    assert_eq!(got, expected);
    // Also replies of slow methods, and the frames of a spawned process.
    let slow = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"process.spawn\",\"auth\":\"{TOKEN}\",\"params\":\
         {{\"id\":\"p\",\"command\":\"/bin/sh\",\"args\":[\"-c\",\"printf done\"]}}}}\n\
         {{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"files.stat\",\"auth\":\"{TOKEN}\",\"params\":{{}}}}"
    );
    let got = String::from_utf8(half_closed(&relay, slow.as_bytes())).unwrap();
    for line in [
        r#"{"jsonrpc":"2.0","id":1,"result":{"success":true}}"#,
        r#"{"jsonrpc":"2.0","id":2,"result":{"exists":false,"isDir":false,"size":0,"mode":""}}"#,
        r#"{"type":"stream","processId":"p","stream":"stdout","seq":1,"data":"ZG9uZQ=="}"#,
        r#"{"type":"stream","processId":"p","stream":"exit","seq":2,"exitCode":0}"#,
    ] {
        assert!(got.lines().any(|found| found == line), "no {line} in {got}");
    }
    assert_eq!(got.lines().count(), 4, "{got}");
}

#[test]
fn ten_thousand_pipelined_requests_get_replies() {
    let relay = Relay::start();
    let mut client = relay.connect();
    let mut writer = client.stream().try_clone().unwrap();
    let requests: String = (1..=10_000)
        .map(|id| {
            let method = if id % 2 == 0 { "server.ping" } else { "files.validate" };
            format!(
                "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"auth\":\"{TOKEN}\",\"params\":{{\"path\":\"/\"}}}}\n"
            )
        })
        .collect();
    let writing = std::thread::spawn(move || writer.write_all(requests.as_bytes()).unwrap());
    let mut replies = BTreeSet::new();
    for _ in 1..=10_000 {
        assert!(replies.insert(client.line()), "duplicate reply");
    }
    writing.join().unwrap();
    for id in 1..=10_000 {
        let odd = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"valid\":true,\"isDir\":true}}}}");
        let expected = if id % 2 == 0 { pong(id) } else { odd };
        assert!(replies.contains(&expected), "no reply to {id}");
    }
}

#[test]
fn a_request_can_arrive_byte_by_byte() {
    let relay = Relay::start();
    let mut client = relay.connect();
    for byte in (ping(1) + "\n").bytes() {
        client.send([byte]);
    }
    assert_eq!(client.line(), pong(1));
}

/// "A connection's requests are dispatched concurrently — responses may arrive out of request order".
#[test]
fn a_blocking_request_delays_no_other() {
    let relay = Relay::start();
    let mut client: RelayClient = relay.connect();
    let params =
        r#"{"id":"p","command":"/bin/sh","args":["-c","trap '' TERM; echo up; while :; do sleep 1; done"]}"#;
    client.call("process.spawn", params);
    assert!(client.line().contains(r#""data":"dXAK""#));
    let waiting = client.request("process.killAndWait", r#"{"id":"p","timeoutMs":600000,"escalate":false}"#);
    assert_eq!(client.call("server.ping", ""), answer(r#"{"pong":true}"#));
    assert_eq!(client.call("files.validate", r#"{"path":"/"}"#), answer(r#"{"valid":true,"isDir":true}"#));
    client.request("process.kill", r#"{"id":"p","signal":"KILL"}"#);
    let expected =
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{waiting},\"result\":{{\"found\":true,\"died\":true}}}}");
    while client.line() != expected {}
}

#[test]
fn replies_go_only_to_their_connection() {
    let relay = Relay::start();
    let mut clients = [relay.connect(), relay.connect(), relay.connect()];
    for (id, client) in (1..).zip(&mut clients) {
        client.send(ping(id) + "\n");
    }
    for (id, client) in (1..).zip(&mut clients) {
        assert_eq!(client.line(), pong(id));
    }
    assert_eq!(raw(&relay, (ping(7) + "\n").as_bytes()), (pong(7) + "\n").into_bytes());
}
