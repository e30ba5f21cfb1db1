//! Helpers of the contract tests: request tables, frame parsing, and process I/O.

use outpost_sys::epoll::wait_readable;
use outpost_sys::pidfd::Pidfd;
use outpost_testkit::{Relay, RelayClient, TOKEN};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::time::Duration;

/// A test fails after waiting this long.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// A method, its params as JSON (empty for absent params), and the reply: a result as JSON, or `-32602 text`. `$D` stands
/// for a directory.
pub(crate) type Row<'a> = (&'a str, &'a str, &'a str);

/// The part of a reply after its id.
pub(crate) fn answer(expected: &str) -> String {
    match expected.split_once(' ') {
        Some((code, text)) if code.parse::<i32>().is_ok() => {
            format!(r#""error":{{"code":{code},"message":"{text}"}}"#)
        }
        _ => format!(r#""result":{expected}"#),
    }
}

/// Sends every row and compares the replies. The failure lists all rows that differ.
pub(crate) fn check(client: &mut RelayClient, dir: &Path, rows: &[Row<'_>]) {
    let dir = dir.to_str().unwrap();
    let mut wrong = String::new();
    for (method, params, expected) in rows {
        let (params, expected) = (params.replace("$D", dir), answer(&expected.replace("$D", dir)));
        let got = client.call(method, &params);
        if got != expected {
            wrong += &format!("\n{method} {params}\n  expected {expected}\n  got      {got}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Like [`check`], for complete request and reply lines. `$T` stands for the token.
pub(crate) fn check_lines(relay: &Relay, rows: &[(&str, &str)]) {
    let mut client = relay.connect();
    let mut wrong = String::new();
    for (line, expected) in rows {
        client.send(line.replace("$T", TOKEN) + "\n");
        let got = client.line();
        if got != *expected {
            wrong += &format!("\n{line}\n  expected {expected}\n  got      {got}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Sends raw bytes on a new connection and returns the raw reply line.
pub(crate) fn raw(relay: &Relay, request: &[u8]) -> Vec<u8> {
    let mut stream = outpost_testkit::connect(relay.socket()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(request).unwrap();
    let mut reply = Vec::new();
    BufReader::new(stream).read_until(b'\n', &mut reply).unwrap();
    reply
}

/// A relay of an unprivileged user, also if the tests run as root.
pub(crate) fn unprivileged() -> Relay {
    if outpost_sys::process::effective_uid() == 0 { Relay::start_as(65534) } else { Relay::start() }
}

/// A parsed stream frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) id: String,
    pub(crate) stream: String,
    pub(crate) seq: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) exit_code: Option<i64>,
}

impl Frame {
    /// `None` if the line is not a frame. Asserts the exact encoding of the frame.
    pub(crate) fn parse(line: &str) -> Option<Frame> {
        if !line.starts_with(r#"{"type":"stream","#) {
            return None;
        }
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| value[name].as_str().unwrap().to_owned();
        let (stream, seq) = (text("stream"), value["seq"].as_u64().unwrap());
        let begin = line.split(r#","seq":"#).next().unwrap();
        let (expected, bytes, exit_code) = match stream.as_str() {
            "exit" => {
                let code = value["exitCode"].as_i64().unwrap();
                (format!(r#"{begin},"seq":{seq},"exitCode":{code}}}"#), Vec::new(), Some(code))
            }
            _ => {
                let data = text("data");
                let bytes = outpost_wire::base64::decode(data.as_bytes()).unwrap();
                assert!(!bytes.is_empty() && bytes.len() <= 32 * 1024, "{} bytes in a frame", bytes.len());
                (format!(r#"{begin},"seq":{seq},"data":"{data}"}}"#), bytes, None)
            }
        };
        assert_eq!(line, expected);
        assert!(begin.ends_with(&format!(r#","stream":"{stream}""#)), "{line}");
        Some(Frame { id: text("processId"), stream, seq, bytes, exit_code })
    }
}

/// The next frame of any process. Skips replies.
pub(crate) fn next_frame(client: &mut RelayClient) -> Frame {
    loop {
        let line = client.line();
        assert!(!line.is_empty(), "the connection was closed");
        if let Some(frame) = Frame::parse(&line) {
            return frame;
        }
    }
}

/// The frames of a process up to its exit.
pub(crate) fn frames_to_exit(client: &mut RelayClient, id: &str) -> Vec<Frame> {
    let mut frames = Vec::new();
    loop {
        let frame = next_frame(client);
        if frame.id == id {
            let last = frame.stream == "exit";
            frames.push(frame);
            if last {
                return frames;
            }
        }
    }
}

/// The data of one stream.
pub(crate) fn written(frames: &[Frame], stream: &str) -> Vec<u8> {
    frames.iter().filter(|frame| frame.stream == stream).flat_map(|frame| frame.bytes.clone()).collect()
}

/// Reads frames of a process and asserts that their data equals `bytes`.
pub(crate) fn read_bytes(client: &mut RelayClient, id: &str, bytes: &[u8]) {
    let mut got = Vec::new();
    while got.len() < bytes.len() {
        let frame = next_frame(client);
        if frame.id == id {
            assert_ne!(frame.stream, "exit", "exited after {got:?}");
            got.extend(frame.bytes);
        }
    }
    assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(bytes));
}

/// Spawns `sh -c script` and asserts success.
pub(crate) fn spawn_sh(client: &mut RelayClient, id: &str, script: &str) {
    let params = serde_json::json!({"id": id, "command": "/bin/sh", "args": ["-c", script]});
    assert_eq!(client.call("process.spawn", &params.to_string()), answer(r#"{"success":true}"#));
}

/// Spawns `sh -c script` with `wantPid` and returns the pid.
pub(crate) fn spawn_sh_with_pid(client: &mut RelayClient, id: &str, script: &str) -> i32 {
    let params = serde_json::json!({"id": id, "command": "/bin/sh", "args": ["-c", script], "wantPid": true});
    pid_in(&client.call("process.spawn", &params.to_string()))
}

/// Extracts the pid of a reply.
pub(crate) fn pid_in(reply: &str) -> i32 {
    let begin = reply.split_once(r#""pid":"#).unwrap_or_else(|| panic!("no pid in {reply}")).1;
    begin.split(|letter: char| !letter.is_ascii_digit()).next().unwrap().parse().unwrap()
}

/// Sends `process.stdin` without reading the reply, because frames can precede it. Returns the request id.
pub(crate) fn write_stdin(client: &mut RelayClient, id: &str, input: &str) -> u64 {
    let mut data = Vec::new();
    outpost_wire::base64::append(&mut data, input.as_bytes());
    let data = String::from_utf8(data).unwrap();
    client.request("process.stdin", &format!(r#"{{"id":"{id}","data":"{data}"}}"#))
}

/// Sends stdin, then reads the reply and the expected output, which arrive in any order.
pub(crate) fn exchange(client: &mut RelayClient, id: &str, input: &str, output: &str) -> Vec<Frame> {
    let reply =
        format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{"success":true,"#, write_stdin(client, id, input));
    let (mut answered, mut frames) = (false, Vec::new());
    while !answered || frames.iter().map(|frame: &Frame| frame.bytes.len()).sum::<usize>() < output.len() {
        let line = client.line();
        match Frame::parse(&line) {
            Some(frame) => {
                assert_eq!(frame.id, id);
                frames.push(frame);
            }
            None => {
                assert!(line.starts_with(&reply), "{line}");
                answered = true;
            }
        }
    }
    let bytes: Vec<u8> = frames.iter().flat_map(|frame| frame.bytes.clone()).collect();
    assert_eq!(String::from_utf8_lossy(&bytes), output);
    frames
}

/// Waits on a new connection until the process has written exactly these bytes.
pub(crate) fn wait_for_output(relay: &Relay, id: &str, bytes: &[u8]) {
    let mut client = relay.connect();
    client.request("process.reattach", &format!(r#"{{"id":"{id}"}}"#));
    read_bytes(&mut client, id, bytes);
}

/// A pidfd of any process; `None` if it is gone.
pub(crate) fn pidfd_of(pid: i32) -> Option<Pidfd> {
    outpost_testkit::process(pid).ok()
}

pub(crate) fn assert_exits(process: Option<Pidfd>, what: &str) {
    if let Some(process) = process {
        assert!(wait_readable(&process, TIMEOUT).unwrap(), "{what} is still there");
    }
}
