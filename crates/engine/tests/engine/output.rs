//! Output: every reader reads all bytes of a child, whenever it starts.

use crate::support::{Host, Seen, read_all, read_until, shell, within};
use outpost_engine::{Error, ExitCause, Size, Status, Stdio, Step};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_streams_and_the_exit_arrive_in_order() {
    let host = Host::new();
    let process = host.sh("a", "echo out; echo err >&2; exit 7").await;
    let seen = read_all(&process, 0).await;
    assert_eq!((seen.stdout.as_slice(), seen.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
    assert_eq!(seen.seqs, [1, 2, 3]);
    assert_eq!(seen.ended.unwrap().exit.cause, ExitCause::Code(7));
    assert_eq!(read_all(&process, 0).await, seen, "a replay is the same as the live reading");
    assert_eq!(read_all(&process, 2).await.seqs, [3]);
    assert!(matches!(process.status(), Status::Finished(_)));
    host.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_join_late_read_every_byte_once() {
    let host = Host::new();
    let process = host.sh("a", "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done").await;
    let expected: Vec<u8> = (0..20000).flat_map(|i| format!("line {i}\n").into_bytes()).collect();
    let mut readers = Vec::new();
    for round in 0..20 {
        let process = process.clone();
        readers.push(tokio::spawn(async move {
            // Leaves after some output and comes back with the last number it has seen.
            let mut seen = Seen::default();
            let mut after = 0;
            for stop in 1..=round {
                let mut subscription = process.subscribe(after);
                read_until(&mut subscription, &mut seen, |seen| {
                    seen.ended.is_some() || seen.stdout.len() > stop * 1000
                })
                .await;
                after = subscription.last_seen();
            }
            if seen.ended.is_none() {
                read_until(&mut process.subscribe(after), &mut seen, |seen| seen.ended.is_some()).await;
            }
            seen
        }));
    }
    for reader in readers {
        let seen = reader.await.unwrap();
        assert!(seen.stdout == expected, "every byte once and in order");
        assert!(seen.seqs.windows(2).all(|pair| pair[0] + 1 == pair[1]), "numbers without holes");
    }
    host.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_start_reports_its_step_and_errno_and_leaves_nothing() {
    let host = Host::new();
    let mut missing = shell("a", "true");
    missing.program = "/does/not/exist".into();
    match host.engine.spawn(missing).await.map(|_| ()) {
        Err(Error::Start { failure, .. }) => {
            assert_eq!((failure.step, failure.errno.raw_os_error()), (Step::Exec, 2));
        }
        other => panic!("{other:?}"),
    }
    let mut nowhere = shell("a", "true");
    nowhere.directory = Some("/does/not/exist".into());
    match host.engine.spawn(nowhere).await.map(|_| ()) {
        Err(error @ Error::Start { failure, .. }) => {
            assert_eq!(failure.step, Step::Directory);
            assert_eq!(
                error.to_string(),
                "start /bin/sh: its working directory: No such file or directory (os error 2)"
            );
        }
        other => panic!("{other:?}"),
    }
    assert!(host.engine.list().await.is_empty());
    host.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_has_its_size_and_follows_a_resize() {
    let host = Host::new();
    let mut spawn =
        shell("tty", "stty size; trap 'stty size; exit 3' WINCH; echo ready; while :; do sleep 0.01; done");
    spawn.stdio = Stdio::Terminal(Size { rows: 33, cols: 77 });
    let process = host.engine.spawn(spawn).await.unwrap();
    let mut seen = Seen::default();
    let mut subscription = process.subscribe(0);
    read_until(&mut subscription, &mut seen, |seen| seen.stdout.ends_with(b"ready\r\n")).await;
    process.resize(Size { rows: 44, cols: 88 }).unwrap();
    read_until(&mut subscription, &mut seen, |seen| seen.ended.is_some()).await;
    assert_eq!(String::from_utf8_lossy(&seen.stdout), "33 77\r\nready\r\n44 88\r\n");
    assert_eq!(seen.ended.unwrap().exit.cause, ExitCause::Code(3));
    host.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn null_stdio_has_no_output_but_an_exit() {
    let host = Host::new();
    let mut spawn = shell("null", "cat; echo lost; echo lost >&2; exit 5");
    spawn.stdio = Stdio::Null;
    let process = host.engine.spawn(spawn).await.unwrap();
    let seen = read_all(&process, 0).await;
    assert_eq!((seen.stdout.len(), seen.stderr.len(), seen.seqs), (0, 0, vec![1]));
    assert_eq!(within("the exit", process.finished()).await.unwrap().cause, ExitCause::Code(5));
    host.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_oldest_output_is_dropped_at_the_cap_and_the_reader_sees_the_gap() {
    const CAP: u64 = 16 * 1024 * 1024;
    let host = Host::with(|config| config.process_bytes_max = CAP);
    let process = host.sh("big", "head -c 67108864 /dev/zero; echo end").await;
    within("the end", process.finished()).await.unwrap();
    let info = process.info();
    assert!(info.bytes_kept <= CAP, "{} bytes kept", info.bytes_kept);
    assert_eq!(info.bytes_total, 67_108_864 + 4);
    let seen = read_all(&process, 0).await;
    assert_eq!(seen.first_kept, Some(info.first_seq));
    assert!(info.first_seq > 1 && seen.seqs.first() == Some(&info.first_seq));
    assert!(seen.stdout.ends_with(b"\0end\n") && seen.stdout.len() as u64 <= CAP);
    host.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_keeps_up_loses_nothing_at_the_cap_and_a_stuck_one_does_not_block() {
    let host = Host::with(|config| config.process_bytes_max = 24 * 1024 * 1024);
    let process = host.sh("big", "head -c 134217728 /dev/zero; echo end").await;
    // A reader that never reads: the process does not wait for it.
    let _stuck = process.subscribe(0);
    let seen = read_all(&process, 0).await;
    assert_eq!((seen.first_kept, seen.stdout.len()), (None, 134_217_728 + 4));
    assert!(seen.seqs.windows(2).all(|pair| pair[0] + 1 == pair[1]));
    host.close().await;
}
