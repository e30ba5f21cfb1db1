//! What all handles share: the table, the ways to the reactor and to the keeper, what is on disk.

use crate::child::Child;
use crate::config::{Config, Lacks};
use crate::engine::Notice;
use crate::groups::ForeignGroups;
use crate::housekeeping::Housekeeping;
use crate::kill;
use crate::process::{Process, Status};
use crate::reactor::{Command, outpost_now_ms};
use crate::spares::Spares;
use crate::spec::{SLOT_CLOCK_SHIFT, Slot};
use crate::store::{Description, Store};
use crate::syncing::Syncing;
use crate::table::Table;
use crate::{Error, Result};
use outpost_keeper::{Request, SLOT_MIN};
use outpost_sys::epoll::Waker;
use outpost_sys::{Errno, cgroup, message};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// How long the processes in a stale cgroup may take to die.
pub(crate) const DESTROY_PATIENCE: Duration = Duration::from_secs(2);

/// What all handles share.
pub(crate) struct Shared {
    pub(crate) config: Mutex<Arc<Config>>,
    pub(crate) store: Store,
    pub(crate) waker: Waker,
    /// No other daemon has it, while slots of two of them can be the same.
    pub(crate) name: String,
    pub(crate) cgroups: Option<cgroup::Parent>,
    pub(crate) foreign_groups: ForeignGroups,
    pub(crate) spares: Spares,
    pub(crate) housekeeping: Housekeeping,
    pub(crate) syncing: Syncing,
    pub(crate) commands: mpsc::Sender<Command>,
    /// To ask the keeper past the reactor; none while there is no keeper. Who holds it has both asked and said so in a
    /// command before it lets go.
    pub(crate) keeper: Mutex<Option<Arc<OwnedFd>>>,
    /// Descriptors that were kept for us and nobody has asked for yet: number, role.
    pub(crate) inherited: Mutex<Vec<(u64, u8, OwnedFd)>>,
    pub(crate) table: Mutex<Table>,
    pub(crate) last_slot: AtomicU64,
    pub(crate) notices: watch::Sender<Option<Notice>>,
    pub(crate) keeper_pid: AtomicU32,
    pub(crate) serving: AtomicBool,
    /// All processes are being ended: none is started any more.
    pub(crate) closing: AtomicBool,
    /// Whether ended processes of earlier lives have been entered.
    pub(crate) loaded: watch::Sender<bool>,
    /// Every record of an earlier life has been read. False while one cannot be read for want of a resource.
    pub(crate) recalled: watch::Sender<bool>,
    /// Whether every process that the keeper has is in the table.
    pub(crate) adopted: watch::Sender<bool>,
    pub(crate) lacks: watch::Sender<Lacks>,
    /// Changes when a process begins or ceases to wait because it cannot be recorded. Why it last could not be.
    pub(crate) stalls: watch::Sender<String>,
    pub(crate) output_bytes: AtomicU64,
    pub(crate) exits: AtomicU64,
    /// The longest that one turn of the reactor took. Nothing else moves meanwhile.
    pub(crate) longest_turn_us: AtomicU64,
}

impl Shared {
    /// Never held across an await: the guard is not `Send`, and the compiler would refuse.
    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As it stands now.
    pub(crate) fn config(&self) -> Arc<Config> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the journal of this process may take on disk.
    pub(crate) fn journal_bytes_max(&self, description: &Description) -> u64 {
        description.supervision.journal_bytes_max.unwrap_or(self.config().process_bytes_max)
    }

    pub(crate) async fn command(&self, command: Command) -> Result<()> {
        self.commands.send(command).await.map_err(|_| Error::Stopped)?;
        self.waker.wake();
        Ok(())
    }

    /// The same from a thread that may wait. An engine that has stopped obeys nobody.
    pub(crate) fn command_blocking(&self, command: Command) {
        let _stopped = self.commands.blocking_send(command);
        self.waker.wake();
    }

    pub(crate) fn keeper(&self) -> MutexGuard<'_, Option<Arc<OwnedFd>>> {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a child; gives it back when that takes the reactor. That one would have to be woken, and a moment later the
    /// keeper's answer or the child's report wakes it anyway.
    pub(crate) fn start_directly(&self, mut child: Box<Child>) -> std::result::Result<(), Box<Child>> {
        let keeper = self.keeper();
        let (Some(socket), Ok(room)) = (&*keeper, self.commands.try_reserve()) else { return Err(child) };
        match child.enlist(socket) {
            Some(os) => room.send(Command::Told { child, os }),
            None if child.ask(socket) => room.send(Command::Asked { child }),
            None => return Err(child),
        }
        Ok(())
    }

    /// Whoever waited for a process to end has been told: now is the time for another child to be forked.
    pub(crate) fn muster(&self) {
        if self.spares.is_undermanned()
            && let Some(socket) = &*self.keeper()
        {
            let _busy = message::send(&**socket, &Request::Muster.encode(), &[]);
        }
    }

    /// The last one counts, but nobody needs a configuration who is about to end.
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

    /// Larger than any slot before, also across restarts.
    pub(crate) fn next_slot(&self) -> Slot {
        let by_clock = (outpost_now_ms() << SLOT_CLOCK_SHIFT).max(SLOT_MIN);
        let next = |last| Some(by_clock.max(last + 1));
        let before =
            self.last_slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or_default();
        Slot(by_clock.max(before + 1))
    }

    /// Takes a process out of the table; its readers learn that there is nothing more.
    pub(crate) fn unlist(&self, process: &Process) {
        self.table().remove(process.slot());
        if process.is_stalled() {
            self.stalls.send_modify(|_| ());
        }
        process.inner.progress.send_modify(|progress| progress.gone = true);
    }

    /// Removes what a process has on disk. Nobody may write its journal any more.
    pub(crate) fn erase(&self, process: &Process) {
        self.leave_cgroup(process);
        self.store.remove(process.slot());
    }

    /// Removes the cgroup of a process, once, if nobody is left in it.
    pub(crate) fn leave_cgroup(&self, process: &Process) {
        let left = &process.inner.cgroup_left;
        if !left.load(Ordering::Relaxed) {
            left.store(self.remove_cgroup(process.slot()), Ordering::Relaxed);
        }
    }

    /// Removes a place that no process was started in, and whoever waits there for one.
    pub(crate) fn vacate(&self, slot: Slot) {
        if let Some(socket) = &*self.keeper() {
            // Who waits is killed in its cgroup otherwise, or waits until this worker ends.
            let _busy = message::send(&**socket, &Request::Forget { slot: slot.0 }.encode(), &[]);
        }
        self.destroy_unknown(slot);
        self.store.remove(slot);
    }

    /// False when somebody is left in it.
    pub(crate) fn remove_cgroup(&self, slot: Slot) -> bool {
        let Some(cgroups) = &self.cgroups else { return true };
        matches!(cgroups.group(&slot.to_string()).remove(), Ok(()) | Err(Errno::NOENT))
    }

    /// Ends what runs under a slot that we have no record of.
    pub(crate) fn destroy_unknown(&self, slot: Slot) {
        match &self.cgroups {
            Some(cgroups) => {
                let _in_use = cgroups.group(&slot.to_string()).destroy(DESTROY_PATIENCE);
            }
            None => {
                kill::sweep(&kill::marker(&self.name, slot), None, crate::Signal::KILL);
            }
        }
    }

    /// Ended processes, those that ended first before others.
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
