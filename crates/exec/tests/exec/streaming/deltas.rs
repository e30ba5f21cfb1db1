//! `command/exec/outputDelta`: what comes, in which order, and where the cap cuts.

use super::{fed, streamed};
use crate::process::until;
use crate::table::{check_exec, danger, is_result, result, server, with};
use outpost_testkit::{AppServer, Delta};
use serde_json::{Value, json};

/// Runs it; its reply must be the last line, with nothing in it but the code.
fn run(server: &mut AppServer, params: &Value, exit_code: i32) {
    let id = server.request("command/exec", params);
    let line = server.reply(id);
    assert!(is_result(&line, &result(&id.to_string(), exit_code, "", "")), "{params}: {line}");
    assert_eq!(server.lines().last(), Some(&line), "something came after the reply");
}

fn delta(stream: &str, text: &str, cap_reached: bool) -> Delta {
    Delta { stream: stream.into(), bytes: text.into(), cap_reached }
}

#[test]
fn both_streams_come_in_deltas_and_the_reply_is_last_and_empty() {
    let mut server = server();
    run(&mut server, &streamed("p", "printf out; printf err >&2; exit 5"), 5);
    assert_eq!((server.text("p", "stdout"), server.text("p", "stderr")), ("out".into(), "err".into()));
    assert!(server.deltas("p").iter().all(|delta| !delta.cap_reached && !delta.bytes.is_empty()));
    // Nothing is sent for the end of a stream.
    run(&mut server, &streamed("silent", "exit 0"), 0);
    assert!(server.deltas("silent").is_empty());
    // Killed or late, what was there comes first.
    run(&mut server, &streamed("killed", "printf out; kill -9 $$"), -1);
    assert_eq!(server.text("killed", "stdout"), "out");
    run(&mut server, &with(streamed("late", "printf out; exec sleep 1000"), json!({"timeoutMs": 1000})), 124);
    assert_eq!(server.text("late", "stdout"), "out");
}

/// A client sees what a command writes when it writes it.
#[test]
fn output_is_not_held_back_until_there_is_more() {
    let mut server = server();
    let gate = server.dir().join("gate");
    let script = format!("printf a; until [ -e {0} ]; do :; done; printf b", gate.display());
    let id = server.request("command/exec", &streamed("p", &script));
    server.wait_output("p", "a");
    assert!(!server.has_reply(id));
    std::fs::write(&gate, "").unwrap();
    server.reply(id);
    assert_eq!(server.deltas("p"), [delta("stdout", "a", false), delta("stdout", "b", false)]);
}

/// "exactly once per stream, when the cumulated bytes *equal* the cap, even if nothing was truncated".
#[test]
fn each_stream_reports_its_cap_once() {
    let rows = [
        (4, "printf abc", vec![("abc", false)]),
        (3, "printf abc", vec![("abc", true)]),
        (2, "printf abc", vec![("ab", true)]),
        (0, "printf abc", vec![("", true)]),
        (0, "true", vec![]),
        (3, "printf abc; read x; printf def", vec![("abc", true)]),
        (5, "printf abc; read x; printf def", vec![("abc", false), ("de", true)]),
        (0, "printf abc; read x; printf def", vec![("", true)]),
    ];
    let mut server = server();
    for (row, (cap, script, expected)) in rows.into_iter().enumerate() {
        for stream in ["stdout", "stderr"] {
            let process = format!("{row}-{stream}");
            let script = if stream == "stderr" { format!("exec >&2; {script}") } else { script.to_owned() };
            let params = with(fed(&process, &script), json!({"outputBytesCap": cap}));
            let id = server.request("command/exec", &params);
            // What comes later comes in a delta of its own, if it comes.
            while script.contains("read") && server.deltas(&process).is_empty() {
                server.line();
            }
            // It may have ended before.
            server.call("command/exec/write", &json!({"processId": process, "closeStdin": true}));
            let line = server.reply(id);
            assert!(is_result(&line, &result(&id.to_string(), 0, "", "")), "{script}: {line}");
            let expected: Vec<Delta> = expected.iter().map(|(text, cap)| delta(stream, text, *cap)).collect();
            assert_eq!(server.deltas(&process), expected, "cap {cap}, {script}");
        }
    }
    // Each stream has its own.
    let params = with(streamed("both", "printf abcdef; printf abcdef >&2"), json!({"outputBytesCap": 5}));
    run(&mut server, &params, 0);
    for stream in ["stdout", "stderr"] {
        let of = |delta: &&Delta| delta.stream == stream;
        assert_eq!(server.text("both", stream), "abcde");
        assert_eq!(server.deltas("both").iter().filter(of).filter(|delta| delta.cap_reached).count(), 1);
    }
}

#[test]
fn a_command_goes_on_after_its_cap() {
    let mut server = server();
    let done = server.dir().join("done");
    let script = format!("head -c 50000000 /dev/zero && touch {}", done.display());
    run(&mut server, &with(streamed("p", &script), json!({"outputBytesCap": 1})), 0);
    assert_eq!(server.deltas("p"), [delta("stdout", "\0", true)]);
    assert!(done.exists());
    // Without one, the default holds.
    run(&mut server, &streamed("default", "head -c 3000000 /dev/zero"), 0);
    assert_eq!(server.output("default", "stdout").len(), 1024 * 1024);
    assert!(server.deltas("default").last().unwrap().cap_reached);
}

#[test]
fn many_megabytes_arrive_whole_and_in_order() {
    let mut server = server();
    let params = with(streamed("p", "seq 3000000"), json!({"disableOutputCap": true, "timeoutMs": 60000}));
    run(&mut server, &params, 0);
    let bytes = server.output("p", "stdout");
    let mut expected = 0_u32;
    for line in bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        expected += 1;
        assert_eq!(std::str::from_utf8(line).unwrap().parse::<u32>().unwrap(), expected);
    }
    assert_eq!(expected, 3_000_000);
}

/// "a client that stops reading blocks the child and memory stays flat".
#[test]
fn a_client_that_does_not_read_holds_up_the_command_and_nothing_is_lost() {
    let mut server = server();
    let progress = server.dir().join("progress");
    let script = format!(
        "i=0; while [ $i -lt 300 ]; do head -c 1048576 /dev/zero; i=$((i+1)); echo $i > {}; done",
        progress.display()
    );
    let params = with(streamed("p", &script), json!({"disableOutputCap": true, "disableTimeout": true}));
    let id = server.request("command/exec", &params);
    let written = || std::fs::read_to_string(&progress).unwrap_or_default().trim().parse().unwrap_or(0_u64);
    // It stands still: as much was written at the end of a second as at its beginning.
    let (mut last, mut since) = (0, std::time::Instant::now());
    until("the command waits", || {
        let now = written();
        if now != last {
            (last, since) = (now, std::time::Instant::now());
        }
        since.elapsed() > std::time::Duration::from_secs(1)
    });
    assert!(last < 290, "{last} MiB were written without a reader");
    let line = server.reply(id);
    assert!(is_result(&line, &result(&id.to_string(), 0, "", "")), "{line}");
    assert_eq!(server.output("p", "stdout").len(), 300 << 20);
}

#[test]
fn bytes_that_are_no_text_come_as_they_are() {
    let mut server = server();
    let bytes: Vec<u8> = (0..=255).collect();
    let file = server.dir().join("bytes");
    std::fs::write(&file, &bytes).unwrap();
    let params = with(
        danger(&["/bin/cat", file.to_str().unwrap()]),
        json!({"processId": "p", "streamStdoutStderr": true}),
    );
    run(&mut server, &params, 0);
    assert_eq!(server.output("p", "stdout"), bytes);
}

/// Streaming of output alone does not change the input.
#[test]
fn output_alone_can_be_streamed() {
    let mut server = server();
    run(&mut server, &streamed("p", "cat; readlink /proc/self/fd/0"), 0);
    assert_eq!(server.text("p", "stdout"), "/dev/null\n");
    // And input alone: the output is then in the reply.
    let params = with(crate::table::sh("echo out"), json!({"processId": "q", "streamStdin": true}));
    check_exec(&mut server, vec![(params, "exit 0 out\n|")]);
}
