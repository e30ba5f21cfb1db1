//! Concurrent starts with one key.

use crate::support::{Host, shell, within};
use outpost_engine::{Error, Key, OnTaken, Process, Spawn};
use std::convert::Infallible;
use std::sync::{Arc, Barrier};

/// Two starts that reach the engine at the same moment.
async fn race(host: &Host, spawn: Spawn) -> [outpost_engine::Result<Process>; 2] {
    let meet = Arc::new(Barrier::new(2));
    let start = || {
        let (engine, spawn, meet) = (host.engine.clone(), spawn.clone(), meet.clone());
        tokio::spawn(async move {
            let make = move || {
                meet.wait();
                Ok::<_, Infallible>(spawn)
            };
            let Ok(started) = engine.spawn_made(make).await;
            started
        })
    };
    let (first, second) = (start(), start());
    [within("the first", first).await.unwrap(), within("the second", second).await.unwrap()]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_concurrent_starts_with_one_key_one_is_refused() {
    let host = Host::new();
    let key = Key::new("test", "", "same");
    for round in 0..100 {
        let outcomes = race(&host, shell("same", "exec sleep 1000")).await;
        let refused = outcomes.iter().filter(|outcome| matches!(outcome, Err(Error::Taken { .. }))).count();
        let started: Vec<&Process> = outcomes.iter().flatten().collect();
        assert_eq!((started.len(), refused), (1, 1), "round {round}");
        let listed = host.engine.find(&key).await.expect("the one that was started is listed");
        assert_eq!(listed.pid(), started[0].pid(), "round {round}");
        within("the end", async {
            listed.kill_tree().await.unwrap();
            listed.finished().await.unwrap();
        })
        .await;
    }
    host.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_starts_that_replace_each_other_one_is_left_and_the_other_is_killed() {
    let host = Host::new();
    let key = Key::new("test", "", "same");
    for round in 0..50 {
        let spawn = Spawn { on_taken: OnTaken::Replace, ..shell("same", "exec sleep 1000") };
        let outcomes = race(&host, spawn).await;
        let listed = host.engine.find(&key).await.expect("one is listed");
        for process in outcomes.into_iter().flatten().filter(|process| process.slot() != listed.slot()) {
            // Its record is gone too, so its end is visible by the pid only.
            let alive = || {
                let stat = outpost_sys::procfs::stat(process.pid());
                stat.is_some_and(|stat| !matches!(stat.state, b'Z' | b'X'))
            };
            within("the end of the one that was replaced", async {
                while alive() {
                    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
                }
            })
            .await;
        }
        assert_eq!(host.engine.list().await.len(), 1, "round {round}");
    }
    host.close().await;
}
