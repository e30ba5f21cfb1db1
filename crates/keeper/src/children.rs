//! Children: cloned, adopted, watched, signalled, reaped.

use crate::keeper::{EXEC_STATUS, Keeper, RETRY_INTERVAL};
use crate::log::log;
use crate::message::ProcessState;
use crate::spawn_request::SpawnRequest;
use crate::table::{Entry, FDS_ONLY, HELD_MAX, OWN_SLOT, Pending, SLOT_MIN, SLOTS_MAX};
use outpost_sys::pidfd::{self, Exit, Pidfd};
use outpost_sys::signal::Signal;
use outpost_sys::spawn::{self, Failure, Step};
use outpost_sys::{Errno, Result, limits};
use std::os::fd::OwnedFd;

/// Entries of failed starts beyond [`SLOTS_MAX`], until the worker has them forgotten.
const FAILED_MAX: usize = 1024;

/// Descriptors that children never get. The keeper needs some itself, and some more to start a worker.
const DESCRIPTORS_RESERVED: usize = 48;

impl Keeper {
    /// Adds an entry, also one that cannot be watched.
    pub(crate) fn insert(&mut self, slot: u64, mut entry: Entry) {
        // Without a pidfd the end of the child would never be seen.
        if slot != OWN_SLOT && entry.pidfd.is_none() && entry.is_alive() {
            entry.state = ProcessState::Ended(Exit::UNKNOWN);
            entry.pending = entry.pending.max(Pending::State);
        }
        if entry.pending != Pending::Nothing {
            self.events.mark_dirty(slot);
        }
        self.table.insert(slot, entry);
        self.schedule_fdstore(slot);
        if let Err(errno) = self.watch(slot) {
            log(format_args!("cannot watch slot {slot:x} ({errno}); polling it every {RETRY_INTERVAL:?}"));
        }
    }

    pub(crate) fn watch(&mut self, slot: u64) -> Result<()> {
        let Some(entry) = self.table.get(&slot).filter(|_| !self.awaits_exit_status(slot)) else {
            return Ok(());
        };
        let watched = entry.watch(&self.epoll, slot, slot | EXEC_STATUS);
        if watched.is_err() {
            self.unwatched.insert(slot);
        }
        watched
    }

    pub(crate) fn poll_child(&mut self, slot: u64) {
        self.receive_exits();
        let is_overdue = self.is_exit_status_overdue(slot);
        if let Some(entry) = self.table.get_mut(&slot) {
            let observed = entry.poll(&self.epoll, is_overdue);
            self.on_observed(slot, observed);
        }
    }

    /// Polls every child that has exited, and reaps orphans, which a subreaper inherits.
    pub(crate) fn reap_children(&mut self) {
        while let Ok(Some(pid)) = pidfd::ended_child() {
            let slot = self.table.iter().find(|(_, entry)| entry.pid == pid && entry.is_alive());
            match slot.map(|(slot, _)| *slot) {
                Some(slot) => {
                    self.poll_child(slot);
                    // It cannot be reaped now, and the next look would find it again.
                    if self.table.get(&slot).is_some_and(Entry::is_alive) {
                        break;
                    }
                }
                None if self.handle_worker_exit(pid) => break,
                None => {
                    let _reaped = pidfd::reap_pid(pid);
                }
            }
        }
    }

    /// Whether a slot is free and not the token of another descriptor.
    pub(crate) fn is_free(&mut self, slot: u64) -> bool {
        let reason =
            if slot < SLOT_MIN || slot & (EXEC_STATUS | FDS_ONLY) != 0 || self.table.contains_key(&slot) {
                "the slot is taken"
            } else if self.table.len() >= SLOTS_MAX + FAILED_MAX {
                "the table is full"
            } else {
                return true;
            };
        self.log_limited(format_args!("ignoring the worker's request for slot {slot:x}: {reason}"));
        false
    }

    /// Clones a child. The caller adds an entry for a failure too, to report it to the worker.
    pub(crate) fn start(&self, request: Result<SpawnRequest>) -> std::result::Result<Entry, Failure> {
        let prepare = |errno| Failure::at(Step::Prepare, errno);
        if self.table.len() >= SLOTS_MAX {
            return Err(prepare(Errno::AGAIN));
        }
        if !self.has_spare_descriptors() {
            return Err(prepare(Errno::MFILE));
        }
        let request = request.map_err(prepare)?;
        let begun = request.with_child(spawn::begin).map_err(prepare)??;
        Ok(Entry::starting(begun, request.gate_write, request.held))
    }

    /// Whether enough descriptors are left to start a worker after another child.
    fn has_spare_descriptors(&self) -> bool {
        let held: usize = self.table.values().map(Entry::open_descriptors).sum();
        let max = limits::descriptors().soft.and_then(|max| usize::try_from(max).ok()).unwrap_or(usize::MAX);
        held.saturating_add(DESCRIPTORS_RESERVED + HELD_MAX) <= max
    }

    pub(crate) fn hold(&mut self, slot: u64, role: u8, fd: Option<OwnedFd>) {
        let is_new = slot & FDS_ONLY != 0 && slot & EXEC_STATUS == 0 && !self.table.contains_key(&slot);
        if is_new && self.table.len() < SLOTS_MAX {
            self.table.insert(slot, Entry::fds_only());
        }
        // The supervisor would store both under one name, and the next keeper could be given the old one.
        if self.table.get(&slot).is_some_and(|entry| entry.held.iter().any(|(held, _)| *held == role)) {
            self.remove_role_from_fdstore(slot, role);
        }
        let held = match (self.table.get_mut(&slot), fd) {
            (Some(entry), Some(fd)) => entry.hold(role, fd),
            (None, _) => Err(Errno::NOENT),
            (_, None) => Err(Errno::MFILE),
        };
        match held {
            Ok(()) => self.add_role_to_fdstore(slot, role),
            Err(errno) => {
                self.log_limited(format_args!("cannot hold descriptor {role} of slot {slot:x} ({errno})"));
            }
        }
    }

    pub(crate) fn forget(&mut self, slot: u64) {
        if slot != OWN_SLOT
            && self.table.get(&slot).is_some_and(|entry| !entry.is_alive())
            && let Some(entry) = self.table.remove(&slot)
        {
            self.remove_from_fdstore(slot, &entry);
        }
    }

    /// Signals a child that was not reaped, so that its pid cannot be another process's.
    pub(crate) fn signal(&mut self, slot: u64, signal: Signal, group: bool) {
        let Some(entry) = self.table.get(&slot).filter(|entry| entry.is_alive()) else { return };
        let Some(pidfd) = &entry.pidfd else { return };
        let (pid, sent) = match group {
            true => (entry.pid, signal_group(pidfd, signal)),
            false => (entry.pid, pidfd::signal(pidfd, signal)),
        };
        if let Some(errno) = sent.err().filter(|errno| *errno != Errno::SRCH) {
            self.log_limited(format_args!("cannot send {signal:?} to pid {pid} ({errno})"));
        }
    }
}

/// Signals the group that a child leads, and the child itself where the group signal may have missed it: a new child
/// leads no group yet. SIGKILL always goes to both, since a second SIGKILL changes nothing.
fn signal_group(pidfd: &Pidfd, signal: Signal) -> Result<()> {
    match pidfd::signal_group_of_child(pidfd, signal) {
        Ok(()) if signal != Signal::KILL => Ok(()),
        _ => pidfd::signal(pidfd, signal),
    }
}
