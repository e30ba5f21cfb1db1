//! Termination of pipelines. A user may signal a sudo but not its command, so sudo gets SIGTERM first and forwards it.

use outpost_engine::{Process, Reach};
use outpost_sys::procfs::{self, Stat};
use outpost_sys::signal::Signal;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;
use tokio::time::Instant;

/// Time for sudo to terminate its command.
const SUDO_GRACE: Duration = Duration::from_secs(2);

/// The exit of a process of another user cannot be awaited here, so it is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Kills every stage and its descendants. Returns the pids of surviving processes, which run as another user.
pub(crate) async fn kill(stages: &[Process]) -> Vec<i32> {
    let pids: Vec<i32> = stages.iter().map(Process::pid).collect();
    let foreign = tokio::task::spawn_blocking(move || foreign_processes(&pids)).await.unwrap_or_default();
    if !foreign.is_empty() {
        for stage in stages {
            let _exited = stage.signal(Signal::TERM, Reach::Leader).await;
        }
        wait_for_exit(&foreign).await;
    }
    for stage in stages {
        let _exited = stage.kill_tree().await;
    }
    let survivors = wait_for_survivors(&foreign).await;
    if !survivors.is_empty() {
        tracing::warn!(pids = ?survivors, "cannot kill processes of another user");
    }
    survivors
}

/// The processes of these trees that run as another user. Empty for root, which may signal every process.
fn foreign_processes(pids: &[i32]) -> Vec<Stat> {
    let own = outpost_sys::process::effective_uid();
    if own == 0 {
        return Vec::new();
    }
    let all = procfs::all();
    let mut tree = procfs::descendants(&all, pids);
    tree.extend(all.into_iter().filter(|stat| pids.contains(&stat.pid)));
    let is_foreign = |stat: &Stat| {
        std::fs::metadata(format!("/proc/{}", stat.pid)).is_ok_and(|process| process.uid() != own)
    };
    tree.retain(is_foreign);
    tree
}

fn alive(processes: &[Stat]) -> Vec<i32> {
    let is_alive = |known: &&Stat| {
        procfs::stat(known.pid)
            .is_some_and(|stat| stat.start_ticks == known.start_ticks && !matches!(stat.state, b'Z' | b'X'))
    };
    processes.iter().filter(is_alive).map(|stat| stat.pid).collect()
}

async fn wait_for_exit(processes: &[Stat]) {
    let deadline = Instant::now() + SUDO_GRACE;
    while !alive(processes).is_empty() && Instant::now() < deadline {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The processes that are still alive a moment after SIGKILL.
async fn wait_for_survivors(processes: &[Stat]) -> Vec<i32> {
    const POLLS: u32 = 10;
    for _ in 0..POLLS {
        if alive(processes).is_empty() {
            break;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    alive(processes)
}
