//! The stop of all processes with the daemon: SIGTERM, a grace time, then SIGKILL to the rest of each tree.

use crate::engine::Engine;
use crate::kill::{self, KillReport, Ladder, Reach};
use crate::process::Process;
use crate::shared::{DESTROY_TIMEOUT, Shared};
use crate::spec::{Key, Slot};
use crate::{Error, Exit, Result, Signal, prepared_slots, syncing};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinSet;

/// The longest wait for the record of the last output and the exit of a killed process.
const RECORD_TIMEOUT: Duration = Duration::from_secs(10);

/// The end of one process in a stop.
#[derive(Clone, Debug)]
pub struct Stopped {
    pub slot: Slot,
    pub key: Key,
    /// `None` when the process could not be ended, or its exit could not be recorded in time.
    pub exit: Option<Exit>,
    /// It was killed after the grace time.
    pub killed: bool,
}

impl Engine {
    /// The number of running processes.
    pub fn running(&self) -> usize {
        self.running_processes().len()
    }

    fn running_processes(&self) -> Vec<Process> {
        let table = self.shared.table();
        table.all().filter(|process| process.status().exit().is_none()).cloned().collect()
    }

    /// Stops every process. Each tree gets SIGTERM, and SIGKILL when it has not ended after `grace`, or as soon as
    /// `hurry` completes. No process is started any more.
    pub async fn stop_processes(
        &self,
        grace: Duration,
        hurry: impl Future<Output = ()>,
    ) -> Result<Vec<Stopped>> {
        self.shared.closing.store(true, Ordering::Release);
        let alive = self.running_processes();
        let mut stopping = JoinSet::new();
        for process in &alive {
            let process = process.clone();
            stopping.spawn(async move {
                let report = stop(&process, grace).await;
                stopped(&process, report).await
            });
        }
        tokio::pin!(hurry);
        let mut hurried = false;
        let mut ended = Vec::new();
        loop {
            tokio::select! {
                next = stopping.join_next() => match next {
                    Some(Ok(stopped)) => ended.push(stopped),
                    Some(Err(_panicked_or_cancelled)) => {}
                    None => break,
                },
                () = &mut hurry, if !hurried => {
                    hurried = true;
                    for process in &alive {
                        kill::begin_kill_tree(process);
                    }
                }
            }
        }
        self.clear().await?;
        Ok(ended)
    }

    /// Kills every process at once and waits until all exits are recorded, for at most `timeout`.
    pub async fn end_processes(&self, timeout: Duration) -> Result<()> {
        self.shared.closing.store(true, Ordering::Release);
        let alive = self.running_processes();
        for process in &alive {
            kill::kill_tree(process).await?;
        }
        let finished = async {
            for process in &alive {
                let _gone = process.finished().await;
            }
        };
        let _late = tokio::time::timeout(timeout, finished).await;
        self.clear().await
    }

    /// Removes prepared slots, and cgroups with their members.
    async fn clear(&self) -> Result<()> {
        let shared = self.shared.clone();
        tokio::task::spawn_blocking(move || clear(&shared)).await.map_err(|_| Error::Stopped)
    }
}

fn clear(shared: &Shared) {
    prepared_slots::clear(shared);
    if !shared.config().sync_interval.is_zero() {
        syncing::sync_all(shared);
    }
    if let Some(cgroups) = &shared.cgroups {
        for name in cgroups.names() {
            let _in_use = cgroups.group(&name).destroy(DESTROY_TIMEOUT);
        }
        let _in_use = cgroups.remove();
    }
}

async fn stop(process: &Process, grace: Duration) -> Result<KillReport> {
    if process.inner.description.terminal {
        // As the kernel does when a terminal closes, since interactive shells ignore SIGTERM.
        let _gone = process.signal(Signal::HUP, Reach::Group).await;
    }
    // A stopped process handles SIGTERM only when it continues.
    let _gone = process.signal(Signal::CONT, Reach::Group).await;
    let ladder = Ladder { signal: Signal::TERM, reach: Reach::Tree, grace, escalate: true };
    process.kill_and_wait(ladder).await
}

async fn stopped(process: &Process, report: Result<KillReport>) -> Stopped {
    let exit = tokio::time::timeout(RECORD_TIMEOUT, process.finished()).await.ok().and_then(Result::ok);
    let killed = report.is_ok_and(|report| report.escalated);
    Stopped { slot: process.slot(), key: process.key().clone(), exit, killed }
}
