//! The disk: a full one, the cap over all processes, records of earlier engines.

use crate::support::{Host, POLL_INTERVAL, Seen, TIMEOUT, read_all, read_until, shell, within};
use outpost_engine::{Batch, Config, Engine, ExitCause, Key};
use outpost_testkit::{SmallDisk, require};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_stalls_the_child_notifies_its_readers_and_loses_no_output() {
    let disk = require!(SmallDisk::mount("size=6m"));
    let engine = Engine::with_keeper_thread(Config::new(disk.path())).unwrap();
    let script = "i=0; while [ $i -lt 2000 ]; do printf '%08000d\\n' $i; i=$((i+1)); done; exit 5";
    let process = engine.spawn(shell("big", script)).await.unwrap();
    let mut subscription = process.subscribe(0);
    let mut seen = Seen::default();
    let mut batch = Batch::default();
    while !subscription.is_stalled() {
        within("the stall", subscription.next(&mut batch)).await.unwrap();
        seen.take(&batch);
    }
    assert!(process.is_stalled() && process.info().stalled && seen.ended.is_none());
    // Requests that need no disk work, and the stalled process can be inspected.
    assert_eq!(engine.list().await.len(), 1);
    disk.resize("size=64m");
    read_until(&mut subscription, &mut seen, |seen| seen.ended.is_some()).await;
    let expected: Vec<u8> = (0..2000).flat_map(|i| format!("{i:08000}\n").into_bytes()).collect();
    assert!(seen.stdout == expected, "every byte although the disk was full in between");
    assert_eq!(seen.ended.unwrap().exit.cause, ExitCause::Code(5));
    assert!(!subscription.is_stalled());
    assert_eq!(read_all(&process, 0).await.stdout.len(), expected.len());
    engine.shut_down(TIMEOUT).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_the_hosts_cap_ended_processes_go_first_then_the_largest_loses_its_head() {
    const MIB: u64 = 1024 * 1024;
    let host = Host::with(|config| config.host_bytes_max = 40 * MIB);
    for id in ["first", "second"] {
        let process = host.sh(id, "head -c 15728640 /dev/zero").await;
        within(id, process.finished()).await.unwrap();
    }
    let third = host.sh("third", "head -c 20971520 /dev/zero; exec sleep 1000").await;
    read_until(&mut third.subscribe(0), &mut Seen::default(), |seen| seen.stdout.len() == 20 * MIB as usize)
        .await;
    assert!(
        host.engine.find(&Key::new("test", "", "first")).await.is_none(),
        "the oldest that has ended went"
    );
    assert!(host.engine.find(&Key::new("test", "", "second")).await.is_some());
    let fourth = host.sh("fourth", "head -c 62914560 /dev/zero; exec sleep 1000").await;
    within("the last byte", async {
        while fourth.info().bytes_total < 60 * MIB {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    })
    .await;
    assert!(host.engine.find(&Key::new("test", "", "second")).await.is_none());
    assert!(
        fourth.info().first_seq > 1,
        "the largest has lost its oldest output, and its readers see the gap"
    );
    let kept: u64 = host.engine.list().await.iter().map(|process| process.info().bytes_kept).sum();
    assert!(kept <= 45 * MIB, "{kept} bytes are kept");
    host.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_processes_beyond_the_number_kept_are_dropped_and_the_rest_is_found_by_the_next_life() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::with_keeper_thread(Config::new(dir.path())).unwrap();
    for id in ["a", "b", "c"] {
        let process = engine.spawn(shell(id, &format!("echo {id}"))).await.unwrap();
        within(id, process.finished()).await.unwrap();
    }
    engine.spawn(shell("cut", "echo cut; exec sleep 1000")).await.unwrap();
    engine.shut_down(TIMEOUT).await.unwrap();
    let config = Config { exited_max: 2, ..Config::new(dir.path()) };
    let engine = Engine::with_keeper_thread(config).unwrap();
    for id in ["a", "b", "c"] {
        let process = engine.find(&Key::new("test", "", id)).await.unwrap();
        assert_eq!(read_all(&process, 0).await.stdout, format!("{id}\n").into_bytes());
    }
    let cut = engine.find(&Key::new("test", "", "cut")).await.unwrap();
    assert_eq!(read_all(&cut, 0).await.ended.unwrap().exit.cause, ExitCause::Signal(9));
    engine.shut_down(TIMEOUT).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_record_of_an_earlier_life_that_cannot_be_completed_on_a_full_disk_is_not_erased() {
    const DESCRIPTION: &str = r#"{"key":{"face":"test","scope":"","id":"p"},"program":"/bin/sh","arguments":["sh"],
        "directory":null,"terminal":false,"started_ms":1,"started_by":""}"#;
    let disk = require!(SmallDisk::mount("size=6m"));
    let place = disk.path().join("processes/1a1ed8920de001");
    std::fs::create_dir_all(&place).unwrap();
    std::fs::write(place.join("process.json"), DESCRIPTION).unwrap();
    std::fs::write(place.join("index"), "").unwrap();
    disk.fill();
    let engine = Engine::with_keeper_thread(Config { cgroups: false, ..Config::new(disk.path()) }).unwrap();
    // Its exit cannot be recorded.
    assert_eq!(within("the loader", engine.list_known()).await.len(), 0);
    disk.empty();
    within("the next attempt", async {
        while engine.list_known().await.is_empty() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    })
    .await;
    let process = engine.find(&Key::new("test", "", "p")).await.unwrap();
    assert_eq!(read_all(&process, 0).await.ended.unwrap().exit.cause, ExitCause::Unknown);
    engine.shut_down(TIMEOUT).await.unwrap();
}
