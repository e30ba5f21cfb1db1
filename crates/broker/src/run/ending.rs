//! Ending what runs. A user can end a sudo, but not what it runs: sudo is asked to, and what lives on is told.

use outpost_engine::{Process, Reach};
use outpost_sys::procfs::{self, Stat};
use outpost_sys::signal::Signal;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;
use tokio::time::Instant;

/// How long a sudo may take to end what it runs.
const GRACE: Duration = Duration::from_secs(2);

/// Nothing tells when somebody else's process has ended, so it is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Ends every stage and everything it has started. Returns the pids of those that live on, since they have more rights
/// than we have.
pub(crate) async fn kill(stages: &[Process]) -> Vec<i32> {
    let pids: Vec<i32> = stages.iter().map(Process::pid).collect();
    let others = tokio::task::spawn_blocking(move || of_others(&pids)).await.unwrap_or_default();
    if !others.is_empty() {
        for stage in stages {
            let _gone_already = stage.signal(Signal::TERM, Reach::Leader).await;
        }
        wait_gone(&others).await;
    }
    for stage in stages {
        let _gone_already = stage.kill_tree().await;
    }
    let left = wait_gone_shortly(&others).await;
    if !left.is_empty() {
        tracing::warn!(pids = ?left, "processes with more rights than this daemon could not be ended");
    }
    left
}

/// What runs there as somebody else. Root has nobody else.
fn of_others(pids: &[i32]) -> Vec<Stat> {
    let own = outpost_sys::limits::effective_uid();
    if own == 0 {
        return Vec::new();
    }
    let all = procfs::all();
    let mut family = procfs::descendants(&all, pids);
    family.extend(all.into_iter().filter(|stat| pids.contains(&stat.pid)));
    let is_others = |stat: &Stat| {
        std::fs::metadata(format!("/proc/{}", stat.pid)).is_ok_and(|process| process.uid() != own)
    };
    family.retain(is_others);
    family
}

fn living(others: &[Stat]) -> Vec<i32> {
    let lives = |known: &&Stat| {
        procfs::stat(known.pid)
            .is_some_and(|stat| stat.start_ticks == known.start_ticks && !matches!(stat.state, b'Z' | b'X'))
    };
    others.iter().filter(lives).map(|stat| stat.pid).collect()
}

async fn wait_gone(others: &[Stat]) {
    let deadline = Instant::now() + GRACE;
    while !living(others).is_empty() && Instant::now() < deadline {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// What was killed may take a moment to be gone.
async fn wait_gone_shortly(others: &[Stat]) -> Vec<i32> {
    const LOOKS: u32 = 10;
    for _ in 0..LOOKS {
        if living(others).is_empty() {
            break;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    living(others)
}
