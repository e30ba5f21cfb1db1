//! Blocking work of the reactor: killing process trees by /proc, removing cgroups, erasing records, and the work of
//! journals on files that are not open.
//!
//! Three threads do it. They start with the engine, so a host at its process limit does not prevent a kill. A kill
//! never waits for an erasure, and output that waits for its next segment waits for neither.

use crate::child::Child;
use crate::input::Input;
use crate::kill;
use crate::process::Process;
use crate::reactor::Command;
use crate::shared::{DESTROY_TIMEOUT, Shared};
use crate::spec::Slot;
use outpost_journal::{Chore, Writer};
use outpost_sys::Errno;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use tokio::sync::oneshot;

/// A tree to kill, and callers that wait for the number of survivors.
struct Kill {
    process: Process,
    replies: Vec<oneshot::Sender<usize>>,
}

/// The part of a slot to remove. A later variant includes the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Scope {
    /// The stdin log, and the cgroup if it is empty.
    Cgroup,
    /// The same, after killing the processes in the cgroup.
    Descendants,
    /// Also the record on disk. Processes in the cgroup live on.
    Record,
    /// Everything of a slot without a record.
    Slot,
}

struct Removal {
    /// `None` for a slot without a process.
    process: Option<Process>,
    scope: Scope,
    /// Files to close.
    files: Option<(Writer, Input)>,
}

/// Work by slot. Each slot is queued once, so the number of slots bounds the queue.
struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    work: BTreeMap<Slot, T>,
    /// The slot of the last work. The next greater one follows, so that no slot starves.
    last: Slot,
    closed: bool,
}

impl<T> Queue<T> {
    fn new() -> Queue<T> {
        Queue {
            state: Mutex::new(State { work: BTreeMap::new(), last: Slot(0), closed: false }),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds work, or merges it with queued work of the same slot.
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
            let greater = state.work.range((Bound::Excluded(state.last), Bound::Unbounded)).next();
            if let Some(slot) = greater.or_else(|| state.work.first_key_value()).map(|(slot, _)| *slot) {
                state.last = slot;
                return state.work.remove_entry(&slot);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The queues of the threads. The threads end when this is dropped.
pub(crate) struct Housekeeping {
    kills: Arc<Queue<Kill>>,
    removals: Arc<Queue<Removal>>,
    /// A journal asks for each chore once, so there are few for each slot.
    chores: Arc<Queue<Vec<Chore>>>,
}

impl Housekeeping {
    pub(crate) fn new() -> Housekeeping {
        Housekeeping {
            kills: Arc::new(Queue::new()),
            removals: Arc::new(Queue::new()),
            chores: Arc::new(Queue::new()),
        }
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
            outpost_sys::process::lower_priority();
            remove_all(&removals, &weak);
        })?;
        let (chores, weak) = (shared.housekeeping.chores.clone(), Arc::downgrade(shared));
        thread("outpost-files").spawn(move || {
            while let Some((slot, chores)) = chores.next() {
                for done in chores.into_iter().map(Chore::execute) {
                    let Some(shared) = weak.upgrade() else { return };
                    shared.command_blocking(Command::ChoreDone { slot, done });
                }
            }
        })?;
        Ok(())
    }

    /// Kills every descendant of a process. `reply` receives the number of survivors.
    pub(crate) fn kill_tree(&self, process: Process, reply: Option<oneshot::Sender<usize>>) {
        let slot = process.slot();
        let work = Kill { process, replies: reply.into_iter().collect() };
        self.kills.add(slot, work, |waiting, work| waiting.replies.extend(work.replies));
    }

    /// Queues chores of a journal, in their order. The reactor gets the results.
    pub(crate) fn work(&self, slot: Slot, chores: Vec<Chore>) {
        self.chores.add(slot, chores, |waiting, chores| waiting.extend(chores));
    }

    /// Removes the cgroup of an ended process. A cgroup with members is removed with the record. Closes the process's
    /// files, which may wait for the disk.
    pub(crate) fn clean_up(&self, child: Child) {
        let Child { process, writer, input, .. } = child;
        self.remove(process.slot(), Some(process), Scope::Cgroup, Some((writer, input)));
    }

    /// Removes the cgroup of an ended process, and kills the members.
    pub(crate) fn remove_descendants(&self, process: Process) {
        self.remove(process.slot(), Some(process), Scope::Descendants, None);
    }

    /// Erases the record of a process. No thread may write its journal any more.
    pub(crate) fn erase(&self, process: Process) {
        self.remove(process.slot(), Some(process), Scope::Record, None);
    }

    /// Removes a slot without a record.
    pub(crate) fn remove_slot(&self, slot: Slot) {
        self.remove(slot, None, Scope::Slot, None);
    }

    fn remove(&self, slot: Slot, process: Option<Process>, scope: Scope, files: Option<(Writer, Input)>) {
        self.removals.add(slot, Removal { process, scope, files }, |waiting, work| {
            waiting.scope = waiting.scope.max(work.scope);
            waiting.files = waiting.files.take().or(work.files);
        });
    }
}

impl Drop for Housekeeping {
    fn drop(&mut self) {
        self.kills.close();
        self.removals.close();
        self.chores.close();
    }
}

fn remove_all(removals: &Queue<Removal>, shared: &Weak<Shared>) {
    while let Some((slot, Removal { process, scope, files })) = removals.next() {
        drop(files);
        let Some(shared) = shared.upgrade() else { return };
        match (process, scope) {
            (None, _) | (_, Scope::Slot) => shared.remove_slot(slot),
            (Some(process), Scope::Cgroup) => {
                shared.remove_cgroup_of(&process);
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
        shared.process_dirs.empty_stdin_log(process.slot());
    }
}

fn destroy_cgroup(shared: &Shared, process: &Process) {
    let Some(cgroups) = &shared.cgroups else { return };
    let slot = process.slot();
    match cgroups.group(&slot.to_string()).destroy(DESTROY_TIMEOUT) {
        Ok(()) | Err(Errno::NOENT) => shared.remove_cgroup_of(process),
        Err(errno) => tracing::warn!(process = %slot, %errno, "cannot kill the descendants of a process"),
    }
}
