//! "Stream notifications": order, size and recipients of frames.

use crate::contract::table::{
    Frame, exchange, frames_to_exit, next_frame, read_bytes, spawn_sh, spawn_sh_with_pid, write_stdin,
    written,
};
use outpost_testkit::Relay;

/// Asserts consecutive sequence numbers and exactly one exit, at the end.
fn assert_in_order(frames: &[Frame], from: u64) {
    assert!(frames.iter().map(|frame| frame.seq).eq(from..from + frames.len() as u64), "out of order");
    let exits = frames.iter().filter(|frame| frame.stream == "exit").count();
    assert_eq!((exits, frames.last().unwrap().stream.as_str()), (1, "exit"));
}

/// "seq is per-process, starts at 1, monotonic across stdout/stderr/exit".
#[test]
fn sequence_numbers_span_both_streams_and_the_exit() {
    let relay = Relay::start();
    let mut client = relay.connect();
    spawn_sh(&mut client, "p", "read a; echo $a; read a; echo $a >&2; read a; echo $a; read a; exit 3");
    for (seq, stream, word) in [(1, "stdout", "one\n"), (2, "stderr", "two\n"), (3, "stdout", "three\n")] {
        let frames = exchange(&mut client, "p", word, word);
        assert_eq!(frames.len(), 1);
        assert_eq!((frames[0].seq, frames[0].stream.as_str()), (seq, stream));
    }
    write_stdin(&mut client, "p", "end\n");
    let exit = next_frame(&mut client);
    assert_eq!((exit.seq, exit.exit_code), (4, Some(3)));
}

/// "Each stdout/stderr frame carries at most one 32 KiB read"; `Frame::parse` checks each one.
#[test]
fn large_output_is_split_into_frames_of_at_most_32_kib() {
    let relay = Relay::start();
    let mut client = relay.connect();
    let script = "i=0; while [ $i -lt 40000 ]; do echo out $i; i=$((i+1)); done & \
                  i=0; while [ $i -lt 40000 ]; do echo err $i >&2; i=$((i+1)); done; wait; exit 5";
    spawn_sh(&mut client, "p", script);
    let frames = frames_to_exit(&mut client, "p");
    assert_in_order(&frames, 1);
    assert_eq!(frames.last().unwrap().exit_code, Some(5));
    for (stream, word) in [("stdout", "out"), ("stderr", "err")] {
        let expected: String = (0..40_000).map(|i| format!("{word} {i}\n")).collect();
        assert!(written(&frames, stream) == expected.as_bytes(), "{stream} differs");
    }
    spawn_sh(&mut client, "big", "head -c 3000001 /dev/zero");
    let frames = frames_to_exit(&mut client, "big");
    assert_in_order(&frames, 1);
    assert!(written(&frames, "stdout") == vec![0; 3_000_001]);
}

/// "waitpid first, then at most 5 s for the pipes": output of a descendant in this time comes before the exit.
#[test]
fn the_exit_frame_waits_for_output_of_descendants() {
    let relay = Relay::start();
    let mut client = relay.connect();
    spawn_sh(&mut client, "p", "(read a; sleep 0.5; echo late) <&0 & echo $!; exit 4");
    let first = next_frame(&mut client);
    assert_eq!((first.stream.as_str(), first.seq), ("stdout", 1));
    let frames = frames_to_exit(&mut client, "p");
    assert_eq!(written(&frames, "stdout"), b"late\n");
    assert_eq!(frames.last().unwrap().exit_code, Some(4));
    assert_in_order(&frames, 2);
}

#[test]
fn arbitrary_bytes_are_streamed_unchanged() {
    let relay = Relay::start();
    let mut client = relay.connect();
    spawn_sh(&mut client, "p", r"printf '\000\001\377\376\r\n\033[0m{\n\303'");
    let frames = frames_to_exit(&mut client, "p");
    assert_eq!(written(&frames, "stdout"), b"\x00\x01\xff\xfe\r\n\x1b[0m{\n\xc3");
}

/// "A process survives the disconnect of the connection that spawned it; another connection can pick it up".
#[test]
fn a_process_outlives_the_connection_that_started_it() {
    let relay = Relay::start();
    let mut first = relay.connect();
    let pid = spawn_sh_with_pid(&mut first, "p", "echo ready; while read x; do echo got $x; done");
    read_bytes(&mut first, "p", b"ready\n");
    drop(first);
    let mut second = relay.connect();
    let (reply, frames) = second.call_with_frames("process.reattach", r#"{"id":"p","wantPid":true}"#);
    assert!(
        reply.contains(&format!(r#""running":true,"firstSeq":1,"lastSeq":1,"stdinApplied":0,"pid":{pid},"#)),
        "{reply}"
    );
    assert_eq!(frames, [r#"{"type":"stream","processId":"p","stream":"stdout","seq":1,"data":"cmVhZHkK"}"#]);
    exchange(&mut second, "p", "it\n", "got it\n");
    drop(second);
    // The process continues without an attached connection.
    let mut third = relay.connect();
    third.call("process.stdin", r#"{"id":"p","data":"dGhpcwo="}"#);
    drop(third);
    let mut fourth = relay.connect();
    fourth.request("process.reattach", r#"{"id":"p","fromSeq":2}"#);
    read_bytes(&mut fourth, "p", b"got this\n");
}

/// Each process has its own sequence numbers. A connection gets the frames of all processes that it spawned.
#[test]
fn processes_of_one_connection_are_independent() {
    let relay = Relay::start();
    let mut client = relay.connect();
    let ids: Vec<String> = (0..10).map(|n| format!("p{n}")).collect();
    for id in &ids {
        spawn_sh(&mut client, id, "read x; echo $x; read x; exit 0");
    }
    for id in &ids {
        write_stdin(&mut client, id, &format!("{id}\n"));
    }
    // Skip replies between frames.
    for _ in &ids {
        let frame = next_frame(&mut client);
        assert_eq!((frame.seq, frame.bytes), (1, format!("{}\n", frame.id).into_bytes()));
    }
    for id in ids.iter().rev() {
        write_stdin(&mut client, id, "\n");
        let frame = next_frame(&mut client);
        assert_eq!((frame.id.as_str(), frame.seq, frame.exit_code), (id.as_str(), 2, Some(0)));
    }
}
