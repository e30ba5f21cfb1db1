//! "process.stdin": order of checks, offsets, base64, back-pressure.

use crate::contract::table::{
    Frame, Row, check, exchange, frames_to_exit, next_frame, pid_in, read_bytes, spawn_sh, wait_for_output,
    write_stdin, written,
};
use outpost_testkit::{Relay, RelayClient, TOKEN};
use std::io::Write;
use std::process::Stdio;

const NO_BASE64: &str = "-32602 Invalid base64 data";
const NOT_FOUND: &str = "-32602 Process not found";
const NOT_RUNNING: &str = "-32602 Process not running";
const GAP: &str = "-32003 stdin offset gap: offset ahead of applied bytes";

/// "Checks run in a fixed order: decode → exists → running → offset".
#[test]
fn checks_run_in_the_contracts_order() {
    let relay = Relay::start();
    let mut client = relay.connect();
    spawn_sh(&mut client, "ended", "exit 0");
    frames_to_exit(&mut client, "ended");
    spawn_sh(&mut client, "live", "exec cat");
    check(
        &mut client,
        relay.dir(),
        &[
            ("process.stdin", r#"{"id":"nope","data":"!"}"#, NO_BASE64),
            ("process.stdin", r#"{"data":"!"}"#, NO_BASE64),
            ("process.stdin", r#"{"id":"nope","data":"!","offset":99}"#, NO_BASE64),
            ("process.stdin", r#"{"id":"ended","data":"!"}"#, NO_BASE64),
            ("process.stdin", r#"{"id":"live","data":"!","offset":99}"#, NO_BASE64),
            ("process.stdin", "{}", NOT_FOUND),
            ("process.stdin", r#"{"id":""}"#, NOT_FOUND),
            ("process.stdin", r#"{"id":"nope"}"#, NOT_FOUND),
            ("process.stdin", r#"{"id":"nope","data":"aGk="}"#, NOT_FOUND),
            ("process.stdin", r#"{"id":"nope","data":"aGk=","offset":99}"#, NOT_FOUND),
            ("process.stdin", r#"{"id":"Live","data":"aGk="}"#, NOT_FOUND),
            ("process.stdin", r#"{"id":"ended","data":"aGk="}"#, NOT_RUNNING),
            ("process.stdin", r#"{"id":"ended"}"#, NOT_RUNNING),
            ("process.stdin", r#"{"id":"ended","data":"aGk=","offset":99}"#, NOT_RUNNING),
            ("process.stdin", r#"{"id":"ended","data":"aGk=","offset":0}"#, NOT_RUNNING),
            ("process.stdin", r#"{"id":"ended","data":"aGk=","offset":-1}"#, NOT_RUNNING),
            ("process.stdin", r#"{"id":"live","data":"aGk=","offset":99}"#, GAP),
            ("process.stdin", r#"{"id":"live","data":"","offset":1}"#, GAP),
            ("process.stdin", r#"{"id":"live","data":"aGk="}"#, r#"{"success":true,"applied":2}"#),
        ],
    );
    wait_for_output(&relay, "live", b"hi");
}

/// "absent offset, or offset == applied → append", and offsets ahead, behind and overlapping.
#[test]
fn offsets_make_stdin_idempotent() {
    let relay = Relay::start();
    let mut client = relay.connect();
    spawn_sh(&mut client, "p", "exec cat");
    check(
        &mut client,
        relay.dir(),
        &[
            // `applied` is present also at 0.
            ("process.stdin", r#"{"id":"p"}"#, r#"{"success":true,"applied":0}"#),
            ("process.stdin", r#"{"id":"p","data":"","offset":0}"#, r#"{"success":true,"applied":0}"#),
            // Negative offsets: wholly before byte 0, or with a fresh tail.
            (
                "process.stdin",
                r#"{"id":"p","data":"aGk=","offset":-2}"#,
                r#"{"success":true,"applied":0,"duplicate":true}"#,
            ),
            (
                "process.stdin",
                r#"{"id":"p","data":"","offset":-1}"#,
                r#"{"success":true,"applied":0,"duplicate":true}"#,
            ),
            (
                "process.stdin",
                r#"{"id":"p","data":"eHgwMQ==","offset":-2}"#,
                r#"{"success":true,"applied":2}"#,
            ),
            // "01" is applied.
            ("process.stdin", r#"{"id":"p","data":"MjM0"}"#, r#"{"success":true,"applied":5}"#),
            ("process.stdin", r#"{"id":"p","data":"NQ==","offset":5}"#, r#"{"success":true,"applied":6}"#),
            ("process.stdin", r#"{"id":"p","data":"Ng==","offset":null}"#, r#"{"success":true,"applied":7}"#),
            // "wholly already applied → no-op"
            (
                "process.stdin",
                r#"{"id":"p","data":"MDE=","offset":0}"#,
                r#"{"success":true,"applied":7,"duplicate":true}"#,
            ),
            (
                "process.stdin",
                r#"{"id":"p","data":"MDEyMzQ1Ng==","offset":0}"#,
                r#"{"success":true,"applied":7,"duplicate":true}"#,
            ),
            (
                "process.stdin",
                r#"{"id":"p","data":"Ng==","offset":6}"#,
                r#"{"success":true,"applied":7,"duplicate":true}"#,
            ),
            (
                "process.stdin",
                r#"{"id":"p","data":"","offset":3}"#,
                r#"{"success":true,"applied":7,"duplicate":true}"#,
            ),
            (
                "process.stdin",
                r#"{"id":"p","data":"aGk=","offset":-9223372036854775808}"#,
                r#"{"success":true,"applied":7,"duplicate":true}"#,
            ),
            // Empty data at the end is an append of nothing.
            ("process.stdin", r#"{"id":"p","data":"","offset":7}"#, r#"{"success":true,"applied":7}"#),
            ("process.stdin", r#"{"id":"p","data":""}"#, r#"{"success":true,"applied":7}"#),
            // "only the fresh tail data[applied-offset:] is written and applied advances to offset+len(data)"
            (
                "process.stdin",
                r#"{"id":"p","data":"NTY3OA==","offset":5}"#,
                r#"{"success":true,"applied":9}"#,
            ),
            (
                "process.stdin",
                r#"{"id":"p","data":"MDEyMzQ1Njc4OQ==","offset":0}"#,
                r#"{"success":true,"applied":10}"#,
            ),
            (
                "process.stdin",
                r#"{"id":"p","data":"eDAxMjM0NTY3ODlh","offset":-1}"#,
                r#"{"success":true,"applied":11}"#,
            ),
            // "a hole that would drop input … Nothing is enqueued."
            ("process.stdin", r#"{"id":"p","data":"eA==","offset":12}"#, GAP),
            ("process.stdin", r#"{"id":"p","data":"","offset":12}"#, GAP),
            ("process.stdin", r#"{"id":"p","data":"eA==","offset":9223372036854775807}"#, GAP),
            ("process.stdin", r#"{"id":"p","data":"Yg==","offset":11}"#, r#"{"success":true,"applied":12}"#),
        ],
    );
    // "A reconnecting client resumes stdin from this offset".
    let mut other = relay.connect();
    let (reply, _) = other.call_with_frames("process.reattach", r#"{"id":"p"}"#);
    assert!(reply.ends_with(r#""stdinApplied":12}"#), "{reply}");
    check(
        &mut other,
        relay.dir(),
        &[("process.stdin", r#"{"id":"p","data":"YWJj","offset":10}"#, r#"{"success":true,"applied":13}"#)],
    );
    wait_for_output(&relay, "p", b"0123456789abc");
}

/// Go's StdEncoding ignores newlines, requires padding, and ignores trailing bits.
#[test]
fn base64_is_decoded_as_in_go() {
    let relay = Relay::start();
    let mut client = relay.connect();
    let good: [(&str, &[u8]); 14] = [
        ("aGVsbG8=", b"hello"),
        (r"aGVs\nbG8=", b"hello"),
        (r"\naGVsbG8=\n", b"hello"),
        (r"aGVs\r\nbG8=\r\n", b"hello"),
        (r"a\nG\nV\ns", b"hel"),
        (r"aA=\n=", b"h"),
        (r"aA\n==", b"h"),
        (r"aA==\n\n", b"h"),
        ("aGVsbG9=", b"hello"),
        ("aB==", b"h"),
        (r"\u0061A==", b"h"),
        (r"+\/+\/", b"\xfb\xff\xbf"),
        (r"\n", b""),
        ("////", b"\xff\xff\xff"),
    ];
    let mut rows: Vec<(String, String)> = Vec::new();
    for (index, (data, bytes)) in good.iter().enumerate() {
        let id = format!("p{index}");
        spawn_sh(&mut client, &id, "exec cat");
        let expected = format!(r#"{{"success":true,"applied":{}}}"#, bytes.len());
        rows.push((format!(r#"{{"id":"{id}","data":"{data}"}}"#), expected));
    }
    let bad = [
        "!",
        "a",
        "aG",
        "aGV",
        "aA=",
        "aA===",
        "=",
        "==",
        "====",
        "a===",
        "aGVs=",
        "aA==x",
        "aA==aA==",
        "aGVs bG8=",
        " ",
        "aGVsbG8= ",
        r"aGVs\tbG8=",
        "-_-_",
        "aGV$",
        "é",
        r"\u0000",
        r"aGVs\u0000",
        "aA=a",
        r"=\naA=",
    ];
    rows.extend(bad.map(|data| (format!(r#"{{"id":"p0","data":"{data}"}}"#), NO_BASE64.to_owned())));
    let rows: Vec<Row<'_>> =
        rows.iter().map(|(params, expected)| ("process.stdin", params.as_str(), expected.as_str())).collect();
    check(&mut client, relay.dir(), &rows);
    // The children receive the decoded bytes.
    for (index, (_, bytes)) in good.iter().enumerate() {
        let id = format!("p{index}");
        let mut other = relay.connect();
        other.request("process.reattach", &format!(r#"{{"id":"{id}"}}"#));
        let mut got = Vec::new();
        while got.len() < bytes.len() {
            got.extend(next_frame(&mut other).bytes);
        }
        assert_eq!(got, *bytes, "{id}");
    }
}

/// The original has a defect: it can reorder pipelined writes.
#[test]
fn pipelined_writes_keep_their_order() {
    let relay = Relay::start();
    let mut client = relay.connect();
    let request = |id: u64, method: &str, params: &str| {
        format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"auth\":\"{TOKEN}\",\"params\":{params}}}\n"
        )
    };
    // The spawn and all stdin requests in one write. Half of them have offsets.
    let mut bytes = request(0, "process.spawn", r#"{"id":"p","command":"/bin/cat"}"#);
    let mut expected = String::new();
    for n in 0..500 {
        let line = format!("line {n}\n");
        let mut data = Vec::new();
        outpost_wire::base64::append(&mut data, line.as_bytes());
        let data = String::from_utf8(data).unwrap();
        let offset = if n % 2 == 0 { String::new() } else { format!(r#","offset":{}"#, expected.len()) };
        bytes += &request(n + 1, "process.stdin", &format!(r#"{{"id":"p","data":"{data}"{offset}}}"#));
        expected += &line;
    }
    client.send(bytes);
    let (mut got, mut answered) = (Vec::new(), 0);
    while got.len() < expected.len() || answered < 501 {
        let line = client.line();
        match Frame::parse(&line) {
            Some(frame) => got.extend(frame.bytes),
            None => {
                assert!(line.contains(r#""result":{"success":true"#), "{line}");
                answered += 1;
            }
        }
    }
    assert_eq!(String::from_utf8(got).unwrap(), expected);
}

/// "applied counts … bytes accepted for delivery", also if the child does not read.
#[test]
fn a_child_that_does_not_read_blocks_no_request() {
    let relay = Relay::start();
    let mut client = relay.connect();
    spawn_sh(&mut client, "deaf", "exec sleep 1000");
    spawn_sh(&mut client, "p", "exec cat");
    let data = "eHh4".repeat(200_000);
    for round in 1..=5 {
        let expected = format!(r#"{{"success":true,"applied":{}}}"#, round * 600_000);
        check(
            &mut client,
            relay.dir(),
            &[("process.stdin", &format!(r#"{{"id":"deaf","data":"{data}"}}"#), &expected)],
        );
    }
    exchange(&mut client, "p", "hi", "hi");
    // Writing to a running child with a closed stdin is not an error.
    spawn_sh(&mut client, "closed", "exec <&-; echo closed; exec sleep 1000");
    read_bytes(&mut client, "closed", b"closed\n");
    check(
        &mut client,
        relay.dir(),
        &[
            ("process.stdin", r#"{"id":"closed","data":"aGk="}"#, r#"{"success":true,"applied":2}"#),
            ("process.stdin", r#"{"id":"closed","data":"aGk="}"#, r#"{"success":true,"applied":4}"#),
        ],
    );
}

/// The replies to these ids, in any order and among other lines.
fn answers_to<const N: usize>(client: &mut RelayClient, ids: [u64; N]) -> [String; N] {
    let begins = ids.map(|id| format!(r#"{{"jsonrpc":"2.0","id":{id},"#));
    let mut answers = [const { String::new() }; N];
    while answers.iter().any(String::is_empty) {
        let line = client.line();
        for (begin, answer) in begins.iter().zip(&mut answers) {
            if let Some(rest) = line.strip_prefix(begin) {
                *answer = rest.to_owned();
            }
        }
    }
    answers
}

fn answer_to(client: &mut RelayClient, id: u64) -> String {
    let [answer] = answers_to(client, [id]);
    answer
}

/// "queue cap 8 MiB, beyond it the request blocks": the request blocks, not its connection.
#[test]
fn a_full_stdin_queue_blocks_neither_a_kill_nor_a_new_spawn() {
    let relay = Relay::start();
    let mut client = relay.connect();
    let data = "eHh4".repeat(233_000);
    let feed_much = |client: &mut RelayClient, id: &str| -> Vec<u64> {
        let params = format!(r#"{{"id":"{id}","data":"{data}"}}"#);
        (0..40).map(|_| client.request("process.stdin", &params)).collect()
    };
    for id in ["killed", "replaced"] {
        spawn_sh(&mut client, id, "exec sleep 1000");
    }
    let last = *feed_much(&mut client, "killed").last().unwrap();
    let gap = client.request("process.stdin", r#"{"id":"killed","data":"eA==","offset":99999999}"#);
    assert!(answer_to(&mut client, gap).contains("-32003"));
    let killed = client.request("process.kill", r#"{"id":"killed","signal":"KILL"}"#);
    let [killed, last] = answers_to(&mut client, [killed, last]);
    assert!(killed.contains(r#""success":true"#), "{killed}");
    // A race: the daemon notices the closed pipe first, which is not an error, or the exit.
    assert!(last.contains(r#""success":true"#) || last.contains("Process not running"), "{last}");
    feed_much(&mut client, "replaced");
    let spawned = client.request("process.spawn", r#"{"id":"replaced","command":"/bin/cat"}"#);
    assert_eq!(answer_to(&mut client, spawned), r#""result":{"success":true}}"#);
    // The new process gets no stdin of the old one.
    write_stdin(&mut client, "replaced", "hi");
    read_bytes(&mut client, "replaced", b"hi");
}

/// A request beyond the queue cap gets its reply when the child has read enough.
#[test]
fn stdin_beyond_the_queue_cap_arrives_when_the_child_reads() {
    let relay = Relay::start();
    let mut client = relay.connect();
    spawn_sh(&mut client, "late", "read line; head -c 27960000 | cksum");
    let bytes: Vec<u8> = (0..699_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut data = Vec::new();
    outpost_wire::base64::append(&mut data, &bytes);
    let data = String::from_utf8(data).unwrap();
    let asleep = pid_in(&client.call("process.reattach", r#"{"id":"late","wantPid":true}"#));
    assert!(outpost_testkit::process(asleep).is_ok());
    // The child stops itself before it reads.
    std::process::Command::new("kill").args(["-STOP", &asleep.to_string()]).status().unwrap();
    client.request("process.stdin", r#"{"id":"late","data":"Cg=="}"#);
    let params = format!(r#"{{"id":"late","data":"{data}"}}"#);
    let sent: Vec<u64> = (0..40).map(|_| client.request("process.stdin", &params)).collect();
    // The connection handles another request, so it has accepted all data.
    let ping = client.request("server.ping", "{}");
    assert!(answer_to(&mut client, ping).contains("pong"));
    std::process::Command::new("kill").args(["-CONT", &asleep.to_string()]).status().unwrap();
    let applied = format!(r#""applied":{}"#, 1 + 40 * bytes.len());
    assert!(answer_to(&mut client, *sent.last().unwrap()).contains(&applied));
    let frames = frames_to_exit(&mut client, "late");
    let whole = bytes.repeat(40);
    let mut cksum = std::process::Command::new("cksum");
    let mut cksum = cksum.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    cksum.stdin.take().unwrap().write_all(&whole).unwrap();
    assert_eq!(written(&frames, "stdout"), cksum.wait_with_output().unwrap().stdout);
}

/// Arbitrary bytes, as many as fit into a line.
#[test]
fn the_largest_stdin_request_is_accepted() {
    let relay = Relay::start();
    let mut client = relay.connect();
    let bytes: Vec<u8> = (0..750_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut data = Vec::new();
    outpost_wire::base64::append(&mut data, &bytes);
    let params = format!(r#"{{"id":"p","data":"{}"}}"#, String::from_utf8(data).unwrap());
    assert!(params.len() > 1_000_000);
    spawn_sh(&mut client, "p", &format!("head -c {}", bytes.len()));
    client.request("process.stdin", &params);
    assert!(written(&frames_to_exit(&mut client, "p"), "stdout") == bytes);
}
