//! Ending processes: from a signal with a grace time to SIGKILL for the whole tree.

use crate::process::{Os, Process, WhileAlive};
use crate::spec::Slot;
use crate::{Error, Result};
use outpost_sys::epoll::wait_readable;
use outpost_sys::identity::{self, Identity};
use outpost_sys::pidfd::Pidfd;
use outpost_sys::procfs::{self, Stat};
use outpost_sys::signal::Signal;
use outpost_sys::{Errno, pidfd};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// The receivers of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The process itself.
    Leader,
    /// Its process group.
    Group,
    /// Every descendant, also those that left the group, the session and their parents.
    Tree,
}

/// The steps to end a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ladder {
    pub signal: Signal,
    pub reach: Reach,
    /// The time for the process to end after the signal.
    pub grace: Duration,
    /// Whether to kill the whole tree after that.
    pub escalate: bool,
}

/// The result of [`Process::kill_and_wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KillReport {
    /// It had ended before the signal.
    pub already_exited: bool,
    pub died: bool,
    pub escalated: bool,
    /// Descendants that are alive after a tree kill.
    pub survivors: usize,
}

/// The longest wait for the reaping of a killed process.
const REAP_TIMEOUT: Duration = Duration::from_secs(5);

/// The interval in which a tree is polled for its end.
const TREE_POLL: Duration = Duration::from_millis(10);

/// Maximum number of scans of /proc in a tree kill without a cgroup. A scan that finds none is the last.
const SCANS_MAX: usize = 64;

pub(crate) async fn escalate(process: &Process, ladder: Ladder) -> Result<KillReport> {
    let mut report = KillReport { already_exited: false, died: false, escalated: false, survivors: 0 };
    match process.signal(ladder.signal, ladder.reach).await {
        Ok(()) => {}
        Err(Error::NotRunning) if process.status().exit().is_some() => {
            return Ok(KillReport { already_exited: true, died: true, ..report });
        }
        Err(Error::NotRunning) => {}
        Err(error) => return Err(error),
    }
    let deadline = Instant::now() + ladder.grace;
    report.died = ends_within(process, ladder.grace).await;
    if !ladder.escalate {
        return Ok(report);
    }
    // A tree has ended when its last member has.
    let others_live = ladder.reach == Reach::Tree && report.died && !tree_ends_by(process, deadline).await?;
    if !report.died || others_live {
        report.escalated = true;
        report.survivors = kill_tree(process).await?;
        report.died = ends_within(process, REAP_TIMEOUT).await;
    }
    Ok(report)
}

/// Polls the tree, since no event announces the end of its last member.
async fn tree_ends_by(process: &Process, deadline: Instant) -> Result<bool> {
    loop {
        let polled = process.clone();
        let members =
            tokio::task::spawn_blocking(move || members(&polled)).await.map_err(|_| Error::Stopped)?;
        if members.is_empty() || Instant::now() >= deadline {
            return Ok(members.is_empty());
        }
        tokio::time::sleep(TREE_POLL).await;
    }
}

/// The living processes of a process's tree.
fn members(process: &Process) -> Vec<i32> {
    match &process.inner.shared.cgroups {
        Some(cgroups) => {
            let members = cgroups.group(&process.slot().to_string()).members();
            members.into_iter().filter(|pid| procfs::stat(*pid).is_some_and(|stat| stat.is_alive())).collect()
        }
        None => tree(&marker_of(process), process.leader()).iter().map(|stat| stat.pid).collect(),
    }
}

/// The same as pidfds, so that a recycled pid gets no signal.
fn open_members(process: &Process) -> Vec<Pidfd> {
    match &process.inner.shared.cgroups {
        Some(cgroups) => {
            let group = cgroups.group(&process.slot().to_string());
            members(process).into_iter().filter_map(|pid| group.open_member(pid).ok()).collect()
        }
        None => {
            let tree = tree(&marker_of(process), process.leader());
            tree.iter().filter_map(|stat| Identity::of(stat).open().ok()).collect()
        }
    }
}

/// Opens the first process of a tree by the pid that a keeper reported before it died. `ESRCH` when the pid is free or
/// another process's.
pub(crate) fn open_leader(process: &Process, pid: i32) -> outpost_sys::Result<Os> {
    let _room = pidfd::open(pid)?;
    // Without a free descriptor /proc cannot be read.
    procfs::stat(std::process::id().cast_signed()).ok_or(Errno::MFILE)?;
    let stat = procfs::stat(pid).ok_or(Errno::SRCH)?;
    let pidfd = match &process.inner.shared.cgroups {
        Some(cgroups) => cgroups.group(&process.slot().to_string()).open_member(pid)?,
        None if procfs::has_environment(pid, marker_of(process).as_bytes()) => Identity::of(&stat).open()?,
        None => return Err(Errno::SRCH),
    };
    Ok(Os { pid, pidfd: WhileAlive::new(Some(pidfd)), start_ticks: stat.start_ticks })
}

async fn ends_within(process: &Process, timeout: Duration) -> bool {
    tokio::time::timeout(timeout, process.exited()).await.is_ok_and(|exit| exit.is_ok())
}

/// Kills every descendant; returns the number of survivors. Needs no new thread.
pub(crate) async fn kill_tree(process: &Process) -> Result<usize> {
    if kill_cgroup(process) {
        return Ok(0);
    }
    let (reply, answer) = oneshot::channel();
    process.inner.shared.housekeeping.kill_tree(process.clone(), Some(reply));
    answer.await.map_err(|_| Error::Stopped)
}

/// Kills every descendant, without waiting for the result. For the reactor.
pub(crate) fn begin_kill_tree(process: &Process) {
    if !kill_cgroup(process) {
        process.inner.shared.housekeeping.kill_tree(process.clone(), None);
    }
}

/// Kills every process in the cgroup with one write to it. False where there is no cgroup that can do that.
fn kill_cgroup(process: &Process) -> bool {
    let Some(cgroups) = &process.inner.shared.cgroups else { return false };
    // A cgroup that is gone was empty.
    matches!(cgroups.group(&process.slot().to_string()).kill(), Ok(()) | Err(Errno::NOENT))
}

/// Kills every descendant; returns the number of survivors. Blocking. Without a cgroup this takes many steps, so it is
/// recorded on disk first: if this worker dies, the next one finishes it.
pub(crate) fn kill_tree_now(process: &Process) -> usize {
    let (process_dirs, slot) = (&process.inner.shared.process_dirs, process.slot());
    let survivors = match kill_cgroup(process) {
        true => 0,
        false => {
            process_dirs.record_kill(slot);
            sweep(&marker_of(process), process.leader(), Signal::KILL)
        }
    };
    if survivors == 0 {
        process_dirs.remove_kill_record(slot);
    }
    survivors
}

/// Finishes the kill of a tree that an earlier worker has begun.
pub(crate) fn finish_kill_tree(process: &Process) {
    if process.inner.shared.process_dirs.is_kill_due(process.slot()) {
        tracing::warn!(process = %process.slot(), "an earlier worker did not finish killing this tree; finishing it");
        process.inner.shared.housekeeping.kill_tree(process.clone(), None);
    }
}

pub(crate) async fn signal_tree(process: &Process, signal: Signal) -> Result<()> {
    if signal == Signal::KILL {
        return kill_tree(process).await.map(|_| ());
    }
    let process = process.clone();
    let send = move || {
        for member in open_members(&process) {
            let _gone = pidfd::signal(&member, signal);
        }
    };
    tokio::task::spawn_blocking(send).await.map_err(|_| Error::Stopped)
}

/// The environment variable by which the engine finds descendants where there is no cgroup.
pub(crate) fn marker(daemon: &str, slot: Slot) -> String {
    format!("OUTPOST_PROCESS={slot}.{daemon}")
}

fn marker_of(process: &Process) -> String {
    marker(&process.inner.shared.name, process.slot())
}

/// Signals a tree until it is empty; returns the number of members that are left.
pub(crate) fn sweep(marker: &str, leader: Option<Identity>, signal: Signal) -> usize {
    let mut left = 0;
    for _ in 0..SCANS_MAX {
        let members = tree(marker, leader);
        left = members.len();
        if left == 0 {
            break;
        }
        for member in members {
            let Ok(pidfd) = Identity::of(&member).open() else { continue };
            if pidfd::signal(&pidfd, signal).is_ok() {
                let _slow = wait_readable(&pidfd, Duration::from_millis(20));
            }
        }
    }
    left
}

/// The living processes of a tree: the leader with its group, processes with its marker, and the descendants of all of
/// them. Every fact that was read by pid is confirmed afterwards by the start time, so that a recycled pid adds no
/// other process.
pub(crate) fn tree(marker: &str, leader: Option<Identity>) -> Vec<Stat> {
    let all = procfs::all();
    let leader = leader.filter(Identity::is_current);
    let is_root = |stat: &Stat| {
        leader.is_some_and(|leader| leader.is(stat) || is_in_group(stat, leader))
            || procfs::has_environment(stat.pid, marker.as_bytes()) && Identity::of(stat).is_current()
    };
    let roots: Vec<Stat> = all.iter().filter(|stat| is_root(stat)).copied().collect();
    let identities: Vec<Identity> = roots.iter().map(Identity::of).collect();
    let mut members = identity::descendants(&all, &identities);
    members.extend(roots.iter().filter(|stat| stat.is_alive()));
    members
}

/// Whether a process is in the group of a tree's leader. While the leader exists, the group id is not recycled.
fn is_in_group(stat: &Stat, leader: Identity) -> bool {
    let is_in = |now: Stat| Identity::of(stat).is(&now) && now.group == leader.pid();
    stat.group > 1
        && stat.group == leader.pid()
        && procfs::stat(stat.pid).is_some_and(is_in)
        && leader.is_current()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slots are numbered by the clock, so two daemons can use the same one.
    #[test]
    fn markers_of_two_daemons_with_the_same_slot_differ() {
        assert_ne!(marker("one", Slot(7)), marker("other", Slot(7)));
        assert_ne!(marker("one", Slot(7)), marker("one", Slot(8)));
    }
}
