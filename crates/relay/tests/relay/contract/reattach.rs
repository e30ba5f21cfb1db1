//! "process.reattach": "Replays buffered frames with seq > fromSeq (exclusive) to this connection, (re)subscribes it for
//! future frames, then returns the result."

use crate::contract::table::{
    Frame, answer, check, exchange, frames_to_exit, next_frame, spawn_sh, write_stdin,
};
use outpost_testkit::{Relay, RelayClient};

const UNKNOWN: &str = r#"{"found":false,"running":false,"firstSeq":0,"lastSeq":0,"stdinApplied":0}"#;

/// Spawns an echo process and exchanges these lines, each in a frame of its own.
fn start_echo(client: &mut RelayClient, id: &str, lines: &[&str]) {
    spawn_sh(client, id, "exec cat");
    for line in lines {
        exchange(client, id, line, line);
    }
}

/// Reattaches and returns the reply and the sequence numbers of the frames before it.
fn reattach(client: &mut RelayClient, params: &str) -> (String, Vec<u64>) {
    let (reply, frames) = client.call_with_frames("process.reattach", params);
    (reply, frames.iter().map(|line| Frame::parse(line).unwrap().seq).collect())
}

#[test]
fn an_unknown_process_and_one_without_output_have_zero_seqs() {
    let relay = Relay::start();
    let mut client = relay.connect();
    start_echo(&mut client, "silent", &[]);
    let silent = r#"{"found":true,"running":true,"firstSeq":0,"lastSeq":0,"stdinApplied":0}"#;
    check(
        &mut client,
        relay.dir(),
        &[
            ("process.reattach", "", "-32602 Invalid params"),
            ("process.reattach", "{}", "-32602 Process ID is required"),
            ("process.reattach", r#"{"id":"","fromSeq":0}"#, "-32602 Process ID is required"),
            ("process.reattach", r#"{"fromSeq":3}"#, "-32602 Process ID is required"),
            ("process.reattach", r#"{"id":"nope"}"#, UNKNOWN),
            ("process.reattach", r#"{"id":"nope","fromSeq":7}"#, UNKNOWN),
            ("process.reattach", r#"{"id":"nope","fromSeq":-7,"wantPid":true}"#, UNKNOWN),
            ("process.reattach", r#"{"id":"SILENT"}"#, UNKNOWN),
            ("process.reattach", r#"{"id":"silent"}"#, silent),
            ("process.reattach", r#"{"id":"silent","fromSeq":5}"#, silent),
            ("process.reattach", r#"{"id":"silent","fromSeq":-5}"#, silent),
        ],
    );
    // The exit is a frame too.
    check(
        &mut client,
        relay.dir(),
        &[
            ("process.killAndWait", r#"{"id":"silent"}"#, r#"{"found":true,"died":true}"#),
            (
                "process.reattach",
                r#"{"id":"silent","fromSeq":1}"#,
                r#"{"found":true,"running":false,"firstSeq":1,"lastSeq":1,"stdinApplied":0}"#,
            ),
        ],
    );
}

#[test]
fn the_frames_after_from_seq_are_replayed_before_the_reply() {
    let relay = Relay::start();
    let mut client = relay.connect();
    start_echo(&mut client, "p", &["one\n", "two\n", "three\n"]);
    let expected_reply =
        answer(r#"{"found":true,"running":true,"firstSeq":1,"lastSeq":3,"stdinApplied":14}"#);
    let cases: [(&str, &[u64]); 10] = [
        (r#"{"id":"p"}"#, &[1, 2, 3]),
        (r#"{"id":"p","fromSeq":null}"#, &[1, 2, 3]),
        (r#"{"id":"p","fromSeq":0}"#, &[1, 2, 3]),
        (r#"{"id":"p","fromSeq":1}"#, &[2, 3]),
        (r#"{"id":"p","fromSeq":2}"#, &[3]),
        (r#"{"id":"p","fromSeq":3}"#, &[]),
        (r#"{"id":"p","fromSeq":4}"#, &[]),
        (r#"{"id":"p","fromSeq":9223372036854775807}"#, &[]),
        (r#"{"id":"p","fromSeq":-1}"#, &[1, 2, 3]),
        (r#"{"id":"p","fromSeq":-9223372036854775808}"#, &[1, 2, 3]),
    ];
    // Twice on a connection that already follows the process, and on new connections.
    for (params, seqs) in cases {
        let expected = (expected_reply.clone(), seqs.to_vec());
        assert_eq!(reattach(&mut client, params), expected, "{params}");
        assert_eq!(reattach(&mut client, params), expected, "{params} again");
        assert_eq!(reattach(&mut relay.connect(), params), expected, "{params} elsewhere");
    }
    let (_, frames) = client.call_with_frames("process.reattach", r#"{"id":"p","fromSeq":1}"#);
    assert_eq!(
        frames,
        [
            r#"{"type":"stream","processId":"p","stream":"stdout","seq":2,"data":"dHdvCg=="}"#,
            r#"{"type":"stream","processId":"p","stream":"stdout","seq":3,"data":"dGhyZWUK"}"#,
        ]
    );
    // A new frame arrives once, in spite of several reattaches.
    let frames = exchange(&mut client, "p", "four\n", "four\n");
    assert_eq!(frames.iter().map(|frame| frame.seq).collect::<Vec<_>>(), [4]);
    let ping = client.request("server.ping", "");
    assert_eq!(client.line(), format!(r#"{{"jsonrpc":"2.0","id":{ping},"result":{{"pong":true}}}}"#));
}

/// A `fromSeq` beyond the end replays nothing and does not suppress new frames.
#[test]
fn a_from_seq_beyond_the_end_suppresses_no_frame() {
    let relay = Relay::start();
    let mut client = relay.connect();
    start_echo(&mut client, "p", &["one\n"]);
    let mut other = relay.connect();
    let expected_reply = answer(r#"{"found":true,"running":true,"firstSeq":1,"lastSeq":1,"stdinApplied":4}"#);
    assert_eq!(reattach(&mut other, r#"{"id":"p","fromSeq":1000}"#), (expected_reply, Vec::new()));
    write_stdin(&mut client, "p", "two\n");
    let frame = next_frame(&mut other);
    assert_eq!((frame.seq, frame.bytes.as_slice()), (2, &b"two\n"[..]));
}

#[test]
fn every_attached_connection_gets_every_frame() {
    let relay = Relay::start();
    let mut first = relay.connect();
    start_echo(&mut first, "p", &["one\n"]);
    let mut others = [relay.connect(), relay.connect()];
    for other in &mut others {
        assert_eq!(reattach(other, r#"{"id":"p"}"#).1, [1]);
    }
    write_stdin(&mut first, "p", "two\n");
    let [second, third] = &mut others;
    for client in [&mut first, second, third] {
        let frame = next_frame(client);
        assert_eq!((frame.seq, frame.bytes.as_slice()), (2, &b"two\n"[..]));
    }
    // A disconnect does not affect the other connections. Each of them can write and kill.
    drop(first);
    let [mut second, mut third] = others;
    exchange(&mut third, "p", "three\n", "three\n");
    assert_eq!(next_frame(&mut second).bytes, b"three\n");
    second.request("process.kill", r#"{"id":"p","signal":"KILL"}"#);
    for client in [&mut second, &mut third] {
        let frames = frames_to_exit(client, "p");
        assert_eq!(frames.last().map(|frame| (frame.seq, frame.exit_code)), Some((4, Some(-1))));
    }
}

/// "The replay buffer retains frames for the life of the process, so reattach{fromSeq:0} replays everything."
#[test]
fn an_exited_process_can_be_replayed_repeatedly() {
    let relay = Relay::start();
    let mut client = relay.connect();
    start_echo(&mut client, "p", &["one\n", "two\n"]);
    client.request("process.kill", r#"{"id":"p"}"#);
    let seen = frames_to_exit(&mut client, "p");
    assert_eq!(seen.iter().map(|frame| frame.seq).collect::<Vec<_>>(), [3]);
    let expected_reply =
        answer(r#"{"found":true,"running":false,"firstSeq":1,"lastSeq":3,"stdinApplied":8}"#);
    let lines = [
        r#"{"type":"stream","processId":"p","stream":"stdout","seq":1,"data":"b25lCg=="}"#,
        r#"{"type":"stream","processId":"p","stream":"stdout","seq":2,"data":"dHdvCg=="}"#,
        r#"{"type":"stream","processId":"p","stream":"exit","seq":3,"exitCode":-1}"#,
    ];
    let mut other = relay.connect();
    for _ in 0..2 {
        for client in [&mut client, &mut other] {
            for (from, expected) in
                [(-1, &lines[..]), (0, &lines), (1, &lines[1..]), (2, &lines[2..]), (3, &[]), (4, &[])]
            {
                let params = format!(r#"{{"id":"p","fromSeq":{from}}}"#);
                let (reply, frames) = client.call_with_frames("process.reattach", &params);
                assert_eq!(reply, expected_reply, "{from}");
                assert_eq!(frames, expected, "{from}");
            }
        }
    }
}
