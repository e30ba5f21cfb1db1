//! Stdin: offsets, order, a child that does not read, and closing.

use crate::support::{Host, Seen, read_all, read_until, shell, until, within};
use outpost_engine::{Accepted, Error, ExitCause, Size, Stdio};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rules_of_offsets() {
    let host = Host::new();
    let process = host.sh("cat", "cat").await;
    let write = |offset, data: &str| {
        let (process, data) = (process.clone(), data.as_bytes().to_vec());
        async move { process.write_stdin(offset, data).await.unwrap() }
    };
    assert_eq!(write(None, "abc").await, Accepted::Applied { applied: 3 });
    assert_eq!(write(Some(3), "def").await, Accepted::Applied { applied: 6 });
    assert_eq!(write(Some(7), "x").await, Accepted::Gap { applied: 6 });
    assert_eq!(write(Some(0), "abcdef").await, Accepted::Duplicate { applied: 6 });
    assert_eq!(write(Some(4), "efgh").await, Accepted::Applied { applied: 8 });
    assert_eq!(write(None, "").await, Accepted::Applied { applied: 8 });
    assert_eq!(process.stdin_accepted(), 8);
    process.close_stdin().await.unwrap();
    let seen = read_all(&process, 0).await;
    assert_eq!(seen.stdout, b"abcdefgh");
    assert_eq!(seen.ended.unwrap().exit.cause, ExitCause::Code(0));
    assert_eq!(process.write_stdin(None, b"later".to_vec()).await, Err(Error::NotRunning));
    let alive = host.sh("alive", "exec sleep 1000").await;
    alive.close_stdin().await.unwrap();
    assert_eq!(alive.write_stdin(None, b"late".to_vec()).await, Err(Error::NoStdin));
    host.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_that_does_not_read_blocks_no_other_and_loses_no_input() {
    let host = Host::with(|config| config.stdin_waiting_max = 1024 * 1024);
    let lazy = host.sh("lazy", "echo up; read line; [ \"$line\" = go ] || exit 9; wc -c").await;
    let mut sent = lazy.write_stdin(None, b"go\n".to_vec()).await.map(|_| 3).unwrap();
    let stuck = host.sh("stuck", "kill -STOP $$; wc -c").await;
    let mut stuck_sent = 0;
    loop {
        match stuck.write_stdin(None, vec![b'x'; 100_000]).await.unwrap() {
            Accepted::Applied { applied } => stuck_sent = applied,
            Accepted::Full { .. } => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(stuck_sent >= 1_000_000, "a stopped child has {stuck_sent} bytes waiting");
    for _ in 0..50 {
        match lazy.write_stdin(Some(sent), vec![b'y'; 65536]).await.unwrap() {
            Accepted::Applied { applied } => sent = applied,
            Accepted::Full { applied, .. } => within("room", lazy.stdin_room(applied, 65536)).await.unwrap(),
            other => panic!("{other:?}"),
        }
    }
    lazy.close_stdin().await.unwrap();
    let seen = read_all(&lazy, 0).await;
    assert_eq!(String::from_utf8_lossy(&seen.stdout).lines().last().unwrap().trim(), (sent - 3).to_string());
    stuck.close_stdin().await.unwrap();
    stuck.signal(outpost_engine::Signal::CONT, outpost_engine::Reach::Leader).await.unwrap();
    let seen = read_all(&stuck, 0).await;
    assert_eq!(String::from_utf8_lossy(&seen.stdout).trim(), stuck_sent.to_string());
    host.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_that_closed_its_stdin_runs_on_and_input_is_still_accepted() {
    let host = Host::new();
    let process = host.sh("closed", "exec 0<&-; echo closed; sleep 1000").await;
    let mut seen = Seen::default();
    read_until(&mut process.subscribe(0), &mut seen, |seen| seen.stdout == b"closed\n").await;
    for round in 1..=10u64 {
        let accepted = process.write_stdin(None, vec![b'z'; 100_000]).await.unwrap();
        assert_eq!(accepted, Accepted::Applied { applied: round * 100_000 });
    }
    host.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_takes_lines_interrupts_and_the_end_of_file() {
    let host = Host::new();
    let mut spawn = shell("tty", "cat; echo \"status $?\"; read line; echo never");
    spawn.stdio = Stdio::Terminal(Size { rows: 24, cols: 80 });
    let process = host.engine.spawn(spawn).await.unwrap();
    process.write_stdin(None, b"hello\n".to_vec()).await.unwrap();
    let mut seen = Seen::default();
    let mut subscription = process.subscribe(0);
    let text = |seen: &Seen| String::from_utf8_lossy(&seen.stdout).into_owned();
    read_until(&mut subscription, &mut seen, |seen| text(seen) == "hello\r\nhello\r\n").await;
    process.close_stdin().await.unwrap();
    read_until(&mut subscription, &mut seen, |seen| text(seen).ends_with("status 0\r\n")).await;
    process.write_stdin(None, b"\x03".to_vec()).await.unwrap();
    read_until(&mut subscription, &mut seen, |seen| seen.ended.is_some()).await;
    assert_eq!(seen.ended.unwrap().exit.cause, ExitCause::Signal(2));
    host.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_gets_the_descriptors_it_was_given_and_no_others() {
    let host = Host::new();
    let plan = outpost_sys::file::sealed_memory("plan", b"the plan").unwrap();
    let mut spawn = shell("stage", "cat <&7; ls /proc/self/fd | tr '\\n' ' '");
    spawn.descriptors = vec![(std::sync::Arc::new(plan), 7)];
    let process = host.engine.spawn(spawn).await.unwrap();
    let seen = read_all(&process, 0).await;
    // The last one is the directory that `ls` lists.
    assert_eq!(String::from_utf8_lossy(&seen.stdout), "the plan0 1 2 3 7 ");
    host.close().await;
}

/// A descendant shares the pipe, and reads only after the end of the process and its cleanup.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delivered_input_in_the_pipe_does_not_turn_into_zeros() {
    let host = Host::new();
    let marks = tempfile::tempdir().unwrap();
    let (go, read) = (marks.path().join("go"), marks.path().join("read"));
    let script = format!(
        "exec 3<&0; (until [ -e {go} ]; do sleep 0.01; done; head -c 800 >{read}.new; mv {read}.new {read}) <&3 >/dev/null 2>&1 &
         echo up; read line",
        go = go.display(),
        read = read.display()
    );
    let process = host.sh("shared", &script).await;
    let input = [b"end yourself\n".to_vec(), b"kept for a descendant, unread ".repeat(30)].concat();
    process.write_stdin(None, input[..813].to_vec()).await.unwrap();
    within("the end", process.finished()).await.unwrap();
    // The cleanup frees the disk space of delivered input.
    let log = host.dir().join("processes").join(process.slot().to_string()).join("stdin");
    let is_emptied = || std::fs::read(&log).map_or(true, |bytes| bytes.iter().all(|byte| *byte == 0));
    until("the log to be emptied", is_emptied).await;
    std::fs::write(&go, "").unwrap();
    until("the descendant", || read.exists()).await;
    assert_eq!(
        String::from_utf8_lossy(&std::fs::read(&read).unwrap()),
        String::from_utf8_lossy(&input[13..813])
    );
    assert_eq!(process.stdin_accepted(), 813);
    host.close().await;
}

/// The log of a long input has several files. Each is removed after its delivery.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_input_is_delivered_completely_and_does_not_stay_on_the_disk() {
    let host = Host::new();
    let process = host.sh("long", "cksum").await;
    let bytes: Vec<u8> =
        (0..40_000_000u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let slot = host.dir().join("processes").join(process.slot().to_string());
    let on_disk = || {
        let files = std::fs::read_dir(&slot).unwrap().map(|entry| entry.unwrap());
        let logs = files.filter(|file| file.file_name().to_str().unwrap().starts_with("stdin"));
        logs.map(|log| log.metadata().map_or(0, |found| found.len())).sum::<u64>()
    };
    for piece in bytes.chunks(1_000_000) {
        let offset = process.stdin_accepted();
        within("room", process.stdin_room(offset, piece.len() as u64)).await.unwrap();
        let accepted = process.write_stdin(Some(offset), piece.to_vec()).await.unwrap();
        assert_eq!(accepted, Accepted::Applied { applied: offset + piece.len() as u64 });
        assert!(on_disk() < 20_000_000, "{} bytes on disk", on_disk());
    }
    process.close_stdin().await.unwrap();
    let sum = std::process::Command::new("cksum")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn();
    let mut sum = sum.unwrap();
    std::io::Write::write_all(&mut sum.stdin.take().unwrap(), &bytes).unwrap();
    let expected = sum.wait_with_output().unwrap().stdout;
    assert_eq!(
        String::from_utf8_lossy(&read_all(&process, 0).await.stdout),
        String::from_utf8_lossy(&expected)
    );
    host.close().await;
}
