//! The state that all handles of an engine share: the table, the queue to the reactor, the link to the keeper, the
//! records.

use crate::child::Child;
use crate::config::{Config, Lacks};
use crate::engine::Notice;
use crate::groups::ForeignGroups;
use crate::housekeeping::Housekeeping;
use crate::kill;
use crate::link::KeeperLink;
use crate::prepared_slots::PreparedSlots;
use crate::process::{Process, Status};
use crate::process_dir::{Description, ProcessDirs};
use crate::reactor::{Command, outpost_now_ms};
use crate::spec::{SLOT_CLOCK_SHIFT, Slot};
use crate::syncing::Syncing;
use crate::table::Table;
use crate::{Error, Result};
use outpost_keeper::SLOT_MIN;
use outpost_sys::epoll::Waker;
use outpost_sys::{Errno, cgroup};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// The longest wait for the end of killed processes in a cgroup.
pub(crate) const DESTROY_TIMEOUT: Duration = Duration::from_secs(2);

/// The state that all handles share.
pub(crate) struct Shared {
    pub(crate) config: Mutex<Arc<Config>>,
    pub(crate) process_dirs: ProcessDirs,
    pub(crate) waker: Waker,
    /// A name of this daemon, since two daemons can use the same slots.
    pub(crate) name: String,
    pub(crate) cgroups: Option<cgroup::Parent>,
    pub(crate) foreign_groups: ForeignGroups,
    pub(crate) prepared_slots: PreparedSlots,
    pub(crate) housekeeping: Housekeeping,
    pub(crate) syncing: Syncing,
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) link: KeeperLink,
    /// Kept descriptors of earlier workers that no face has taken yet: number, role.
    pub(crate) inherited: Mutex<Vec<(u64, u8, OwnedFd)>>,
    pub(crate) table: Mutex<Table>,
    pub(crate) last_slot: AtomicU64,
    pub(crate) notices: watch::Sender<Option<Notice>>,
    pub(crate) keeper_pid: AtomicU32,
    pub(crate) serving: AtomicBool,
    /// All processes are being stopped, and none is started any more.
    pub(crate) closing: AtomicBool,
    /// The records of ended processes were read once.
    pub(crate) loaded: watch::Sender<bool>,
    /// Every record was read. False while one cannot be read for lack of a resource.
    pub(crate) recalled: watch::Sender<bool>,
    /// Every process of the keeper's table is in ours.
    pub(crate) adopted: watch::Sender<bool>,
    pub(crate) lacks: watch::Sender<Lacks>,
    /// Changes when a process begins or ceases to wait because it cannot be recorded. The value is the last reason.
    pub(crate) stalls: watch::Sender<String>,
    pub(crate) output_bytes: AtomicU64,
    pub(crate) exits: AtomicU64,
    /// The longest turn of the reactor. All processes wait meanwhile.
    pub(crate) longest_turn_us: AtomicU64,
}

impl Shared {
    /// Never held across an await, since the guard is not `Send`.
    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current limits.
    pub(crate) fn config(&self) -> Arc<Config> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The size limit of the journal of this process.
    pub(crate) fn journal_bytes_max(&self, description: &Description) -> u64 {
        description.supervision.journal_bytes_max.unwrap_or(self.config().process_bytes_max)
    }

    pub(crate) async fn command(&self, command: Command) -> Result<()> {
        self.commands.send(command).await.map_err(|_| Error::Stopped)?;
        self.waker.wake();
        Ok(())
    }

    /// The same, blocking. Ignored if the engine has stopped.
    pub(crate) fn command_blocking(&self, command: Command) {
        let _stopped = self.commands.blocking_send(command);
        self.waker.wake();
    }

    /// Requests the start of a child without waking the reactor: the keeper's report wakes it anyway. Returns the child
    /// when a queue is full or there is no keeper.
    pub(crate) fn start_directly(&self, mut child: Box<Child>) -> std::result::Result<(), Box<Child>> {
        let Ok(permit) = self.commands.try_reserve() else { return Err(child) };
        let outbox = self.link.lock();
        let requested = child.spawn_request().and_then(|request| match request {
            Some((request, fds)) => outbox.send_now(&request, &fds),
            None => Ok(()),
        });
        match requested {
            // Before the link is unlocked: the reactor relies on that when it receives the report.
            Ok(()) => {
                permit.send(Command::Requested { child });
                Ok(())
            }
            Err(_) => Err(child),
        }
    }

    /// The last notice counts, except that an ending daemon does not reload.
    pub(crate) fn notify(&self, notice: Notice) {
        self.notices.send_if_modified(|last| {
            let is_ending = matches!(last, Some(Notice::Retire | Notice::Shutdown));
            let counts = !(is_ending && notice == Notice::Reload);
            if counts {
                *last = Some(notice);
            }
            counts
        });
    }

    /// A slot that is greater than all before, also across restarts.
    pub(crate) fn next_slot(&self) -> Slot {
        let by_clock = (outpost_now_ms() << SLOT_CLOCK_SHIFT).max(SLOT_MIN);
        let next = |last| Some(by_clock.max(last + 1));
        let before =
            self.last_slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or_default();
        Slot(by_clock.max(before + 1))
    }

    /// Removes a process from the table and ends its readers.
    pub(crate) fn unregister(&self, process: &Process) {
        self.table().remove(process.slot());
        if process.is_stalled() {
            self.stalls.send_modify(|_| ());
        }
        process.inner.progress.send_modify(|progress| progress.gone = true);
    }

    /// Erases the record of a process. No thread may write its journal any more.
    pub(crate) fn erase(&self, process: &Process) {
        self.remove_cgroup_of(process);
        self.process_dirs.remove(process.slot());
    }

    /// Removes the cgroup of a process, once, if it is empty.
    pub(crate) fn remove_cgroup_of(&self, process: &Process) {
        let removed = &process.inner.cgroup_removed;
        if !removed.load(Ordering::Relaxed) {
            removed.store(self.remove_cgroup(process.slot()), Ordering::Relaxed);
        }
    }

    /// Kills what runs in a slot without a record, and removes the slot.
    pub(crate) fn remove_slot(&self, slot: Slot) {
        self.kill_unrecorded(slot);
        self.process_dirs.remove(slot);
    }

    /// False when the cgroup has members.
    pub(crate) fn remove_cgroup(&self, slot: Slot) -> bool {
        let Some(cgroups) = &self.cgroups else { return true };
        matches!(cgroups.group(&slot.to_string()).remove(), Ok(()) | Err(Errno::NOENT))
    }

    /// Kills what runs in a slot without a record.
    pub(crate) fn kill_unrecorded(&self, slot: Slot) {
        match &self.cgroups {
            Some(cgroups) => {
                let _in_use = cgroups.group(&slot.to_string()).destroy(DESTROY_TIMEOUT);
            }
            None => {
                kill::sweep(&kill::marker(&self.name, slot), None, crate::Signal::KILL);
            }
        }
    }

    /// Ended processes, in the order of their ends.
    pub(crate) fn ended_processes(&self) -> Vec<Process> {
        let ended = |process: &&Process| matches!(process.status(), Status::Finished(_));
        let mut processes: Vec<Process> = self.table().all().filter(ended).cloned().collect();
        processes.sort_by_key(Process::ended_ms);
        processes
    }

    pub(crate) fn bytes_kept(&self) -> u64 {
        self.table().all().map(|process| process.inner.journal.bytes_kept()).sum()
    }
}
