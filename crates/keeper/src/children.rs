//! Children: begun, taken over, watched, signalled, reaped.

use crate::keeper::{AGAIN_AFTER, Keeper, REPORT};
use crate::log::log;
use crate::message::{GATE_TARGET, OPENER_TARGET, Standing};
use crate::order::Order;
use crate::table::{Entry, HELD_MAX, KEPT, OWN_SLOT, SLOT_MIN, SLOTS_MAX, Untold};
use outpost_sys::pidfd::{self, Exit, Pidfd};
use outpost_sys::pipe::{self, Pipe};
use outpost_sys::signal::Signal;
use outpost_sys::spawn::{self, Failure, Step};
use outpost_sys::{Errno, Result, file, limits};
use std::os::fd::{AsFd, OwnedFd};

/// Room in the table for those that were refused, until the worker has heard of it and forgets them.
const REFUSED_MAX: usize = 1024;

/// Descriptors that children never get: a start of a worker takes some for a moment, and the keeper has some of its own.
const DESCRIPTORS_RESERVED: usize = 48;

impl Keeper {
    /// Even one that cannot be watched must be known.
    pub(crate) fn insert(&mut self, slot: u64, mut entry: Entry) {
        // Without a pidfd its end would never be seen, and it could never be forgotten.
        if slot != OWN_SLOT && entry.pidfd.is_none() && entry.lives() {
            entry.standing = Standing::Ended(Exit::UNKNOWN);
            entry.untold = entry.untold.max(Untold::Standing);
        }
        if entry.untold != Untold::Nothing {
            self.news.insert(slot);
        }
        self.table.insert(slot, entry);
        self.store_later(slot);
        if let Err(errno) = self.watch(slot) {
            log(format_args!("cannot watch slot {slot:x} ({errno}); looking at it every {AGAIN_AFTER:?}"));
        }
    }

    pub(crate) fn watch(&mut self, slot: u64) -> Result<()> {
        let Some(entry) = self.table.get(&slot).filter(|_| !self.is_undecided(slot)) else { return Ok(()) };
        let watched = entry.watch(&self.epoll, slot, slot | REPORT);
        if watched.is_err() {
            self.unwatched.insert(slot);
        }
        watched
    }

    pub(crate) fn look_at(&mut self, slot: u64) {
        if self.table.get(&slot).is_some_and(|entry| entry.ahead) {
            return self.look_at_one_ahead(slot);
        }
        self.receive_exits();
        let is_overdue = self.is_overdue(slot);
        if let Some(entry) = self.table.get_mut(&slot) {
            let seen = entry.look(&self.epoll, is_overdue);
            self.seen(slot, seen);
        }
    }

    /// Looks at every child, and reaps orphans that became ours because we are a subreaper.
    pub(crate) fn look_at_children(&mut self) {
        while let Ok(Some(pid)) = pidfd::ended_child() {
            let slot = self.table.iter().find(|(_, entry)| entry.pid == pid && entry.lives());
            match slot.map(|(slot, _)| *slot) {
                Some(slot) => {
                    self.look_at(slot);
                    // Cannot be reaped now; asking again would give the same one.
                    if self.table.get(&slot).is_some_and(Entry::lives) {
                        break;
                    }
                }
                None if self.is_worker(pid) => break,
                None => {
                    let _reaped = pidfd::reap_pid(pid);
                }
            }
        }
    }

    /// Workers are reaped where their end is dealt with.
    fn is_worker(&mut self, pid: i32) -> bool {
        if self.worker.as_ref().is_some_and(|worker| worker.pid == pid) {
            self.worker_ended();
            return self.worker.as_ref().is_some_and(|worker| worker.pid == pid);
        }
        if self.candidate.as_ref().is_some_and(|candidate| candidate.worker.pid == pid) {
            self.candidate_failed(Errno::CHILD);
        }
        false
    }

    /// Whether a slot can be used. Those below the least and above the greatest would be taken for other things that
    /// are watched.
    pub(crate) fn is_free(&mut self, slot: u64) -> bool {
        let why = if slot < SLOT_MIN || slot & (REPORT | KEPT) != 0 || self.table.contains_key(&slot) {
            "it is taken"
        } else if self.table.len() >= SLOTS_MAX + REFUSED_MAX {
            "the table is full"
        } else {
            return true;
        };
        self.complain(format_args!("the worker asked for slot {slot:x}, but {why}; ignored"));
        false
    }

    /// Begins a child. A failure is an entry too: the worker has to hear of it.
    pub(crate) fn begin(&self, order: Result<Order>) -> std::result::Result<Entry, Failure> {
        let prepare = |errno| Failure::at(Step::Prepare, errno);
        if self.table.len() >= SLOTS_MAX {
            return Err(prepare(Errno::AGAIN));
        }
        if !self.has_descriptors_to_spare() {
            return Err(prepare(Errno::MFILE));
        }
        let order = order.map_err(prepare)?;
        // A worker of an older version leaves the gate to us.
        let made = match order.given(OPENER_TARGET) {
            Some(_) => None,
            None => Some(pipe::pipe().map_err(prepare)?),
        };
        let (gate, opener) = match &made {
            Some(Pipe { read, write }) => (Some(read.as_fd()), Some(write.as_fd())),
            None => (order.given(GATE_TARGET), order.given(OPENER_TARGET)),
        };
        let opener = file::duplicate(opener.ok_or(prepare(Errno::MFILE))?).map_err(prepare)?;
        let begun = order.with_child(gate, spawn::begin).map_err(prepare)??;
        let entry = Entry::new(begun.pid, Standing::Starting, Some(begun.pidfd), order.held);
        let (report, gate) = (Some(begun.report), Some(opener));
        Ok(Entry { report, gate, untold: Untold::Start, ..entry })
    }

    /// Whether another child leaves enough descriptors to start a worker.
    pub(crate) fn has_descriptors_to_spare(&self) -> bool {
        let held: usize = self.table.values().map(|entry| 1 + entry.held.len()).sum();
        let max = limits::descriptors().soft.and_then(|max| usize::try_from(max).ok()).unwrap_or(usize::MAX);
        held.saturating_add(DESCRIPTORS_RESERVED + HELD_MAX) <= max
    }

    pub(crate) fn hold(&mut self, slot: u64, role: u8, fd: Option<OwnedFd>) {
        let is_new = slot & KEPT != 0 && slot & REPORT == 0 && !self.table.contains_key(&slot);
        if is_new && self.table.len() < SLOTS_MAX {
            self.table.insert(slot, Entry::kept());
        }
        // The supervisor would keep both under one name, and the next keeper could be given the old one.
        if self.table.get(&slot).is_some_and(|entry| entry.held.iter().any(|(held, _)| *held == role)) {
            self.unstore_one(slot, role);
        }
        let held = match (self.table.get_mut(&slot), fd) {
            (Some(entry), Some(fd)) => entry.hold(role, fd),
            (None, _) => Err(Errno::NOENT),
            (_, None) => Err(Errno::MFILE),
        };
        if held.is_ok() {
            self.store_one(slot, role);
        }
        if let Err(errno) = held {
            self.complain(format_args!("descriptor {role} of slot {slot:x} is not held ({errno})"));
        }
    }

    pub(crate) fn forget(&mut self, slot: u64) {
        self.dismiss(slot);
        if slot != OWN_SLOT
            && self.table.get(&slot).is_some_and(|entry| !entry.lives())
            && let Some(entry) = self.table.remove(&slot)
        {
            self.unstore(slot, &entry);
        }
    }

    /// Signals go to a child only while it is not reaped: its number cannot have become a stranger's.
    pub(crate) fn signal(&mut self, slot: u64, signal: Signal, group: bool) {
        let Some(entry) = self.table.get(&slot).filter(|entry| entry.lives()) else { return };
        let Some(pidfd) = &entry.pidfd else { return };
        let (pid, sent) = match group {
            true => (entry.pid, signal_group(pidfd, signal)),
            false => (entry.pid, pidfd::signal(pidfd, signal)),
        };
        if let Some(errno) = sent.err().filter(|errno| *errno != Errno::SRCH) {
            self.complain(format_args!("{signal:?} to pid {pid} failed ({errno})"));
        }
    }

    /// Kills and reaps children that left the table before they ended. One that a signal did not reach is signalled again.
    pub(crate) fn end_discarded(&mut self) {
        self.discarded.retain(|pidfd| match pidfd::reap(pidfd) {
            Ok(None) => {
                let _tried_again = pidfd::signal(pidfd, Signal::KILL);
                true
            }
            Ok(Some(_)) | Err(Errno::CHILD) => false,
            Err(_) => true,
        });
    }
}

/// Signals the group that a child leads, and the child itself where the group signal may have missed it: before exec the child
/// leads no group yet. SIGKILL always goes to both, since a second SIGKILL changes nothing.
fn signal_group(pidfd: &Pidfd, signal: Signal) -> Result<()> {
    match pidfd::signal_group_of_child(pidfd, signal) {
        Ok(()) if signal != Signal::KILL => Ok(()),
        _ => pidfd::signal(pidfd, signal),
    }
}
