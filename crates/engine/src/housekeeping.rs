//! Work of the reactor that may block: killing process trees by /proc, removing cgroups, erasing records.
//!
//! Two threads do it. They start with the engine, so a host at its process limit cannot keep a kill from being carried
//! out. A kill never waits for an erasure.

use crate::kill;
use crate::process::Process;
use crate::shared::{DESTROY_PATIENCE, Shared};
use crate::spec::Slot;
use outpost_sys::{Errno, limits};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use tokio::sync::oneshot;

/// Trees to kill, and callers that wait for the number of survivors.
struct Kill {
    process: Process,
    replies: Vec<oneshot::Sender<usize>>,
}

/// What is to be removed of a slot. A later variant includes the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Scope {
    /// What only a running process needs: its stdin log, and its cgroup if no process is left in it.
    Cgroup,
    /// The same, with the processes in the cgroup.
    Descendants,
    /// Also its record on disk. Processes in the cgroup live on.
    Record,
    /// Everything of a slot in which no process was started.
    Slot,
}

struct Removal {
    /// `None` for a slot without a process.
    process: Option<Process>,
    scope: Scope,
}

/// Work by slot. Each slot is in it once, so the queue is never longer than the number of slots.
struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    work: BTreeMap<Slot, T>,
    closed: bool,
}

impl<T> Queue<T> {
    fn new() -> Queue<T> {
        Queue { state: Mutex::new(State { work: BTreeMap::new(), closed: false }), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds work, or merges it into what waits for the same slot.
    fn add(&self, slot: Slot, work: T, merge: impl FnOnce(&mut T, T)) {
        let mut state = self.lock();
        match state.work.get_mut(&slot) {
            Some(waiting) => merge(waiting, work),
            None => {
                state.work.insert(slot, work);
            }
        }
        self.changed.notify_one();
    }

    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// The next work; `None` when the queue is closed.
    fn next(&self) -> Option<(Slot, T)> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(work) = state.work.pop_first() {
                return Some(work);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The queues of both threads. The threads end when this is dropped.
pub(crate) struct Housekeeping {
    kills: Arc<Queue<Kill>>,
    removals: Arc<Queue<Removal>>,
}

impl Housekeeping {
    pub(crate) fn new() -> Housekeeping {
        Housekeeping { kills: Arc::new(Queue::new()), removals: Arc::new(Queue::new()) }
    }

    /// Starts the threads.
    pub(crate) fn start(shared: &Arc<Shared>) -> std::io::Result<()> {
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let kills = shared.housekeeping.kills.clone();
        thread("outpost-killer").spawn(move || {
            while let Some((_, Kill { process, replies })) = kills.next() {
                let survivors = kill::kill_tree_now(&process);
                for reply in replies {
                    let _gone = reply.send(survivors);
                }
            }
        })?;
        let (removals, weak) = (shared.housekeeping.removals.clone(), Arc::downgrade(shared));
        thread("outpost-eraser").spawn(move || {
            limits::lower_priority();
            remove_all(&removals, &weak);
        })?;
        Ok(())
    }

    /// Kills every descendant of a process. `reply` receives the number of survivors.
    pub(crate) fn kill_tree(&self, process: Process, reply: Option<oneshot::Sender<usize>>) {
        let slot = process.slot();
        let work = Kill { process, replies: reply.into_iter().collect() };
        self.kills.add(slot, work, |waiting, work| waiting.replies.extend(work.replies));
    }

    /// Removes the cgroup of a process that has ended. A cgroup with members stays, and goes with the record.
    pub(crate) fn remove_cgroup(&self, process: Process) {
        self.remove(process.slot(), Some(process), Scope::Cgroup);
    }

    /// Removes the cgroup of a process that has ended, and kills the members.
    pub(crate) fn remove_descendants(&self, process: Process) {
        self.remove(process.slot(), Some(process), Scope::Descendants);
    }

    /// Erases the record of a process. No thread may write its journal any more.
    pub(crate) fn erase(&self, process: Process) {
        self.remove(process.slot(), Some(process), Scope::Record);
    }

    /// Removes a slot in which no process was started.
    pub(crate) fn remove_slot(&self, slot: Slot) {
        self.remove(slot, None, Scope::Slot);
    }

    fn remove(&self, slot: Slot, process: Option<Process>, scope: Scope) {
        self.removals.add(slot, Removal { process, scope }, |waiting, work| {
            waiting.scope = waiting.scope.max(work.scope);
        });
    }
}

impl Drop for Housekeeping {
    fn drop(&mut self) {
        self.kills.close();
        self.removals.close();
    }
}

fn remove_all(removals: &Queue<Removal>, shared: &Weak<Shared>) {
    while let Some((slot, Removal { process, scope })) = removals.next() {
        let Some(shared) = shared.upgrade() else { return };
        match (process, scope) {
            (None, _) | (_, Scope::Slot) => shared.vacate(slot),
            (Some(process), Scope::Cgroup) => {
                shared.leave_cgroup(&process);
                empty_stdin_log(&shared, &process);
            }
            (Some(process), Scope::Descendants) => {
                destroy_cgroup(&shared, &process);
                empty_stdin_log(&shared, &process);
            }
            (Some(process), Scope::Record) => shared.erase(&process),
        }
    }
}

fn empty_stdin_log(shared: &Shared, process: &Process) {
    if process.stdin_accepted() > 0 {
        shared.store.empty_stdin_log(process.slot());
    }
}

fn destroy_cgroup(shared: &Shared, process: &Process) {
    let Some(cgroups) = &shared.cgroups else { return };
    let slot = process.slot();
    match cgroups.group(&slot.to_string()).destroy(DESTROY_PATIENCE) {
        Ok(()) | Err(Errno::NOENT) => shared.leave_cgroup(process),
        Err(errno) => tracing::warn!(process = %slot, %errno, "descendants of a process cannot be ended"),
    }
}
