//! The supervisor's file descriptor store: the descriptors of children survive there when keeper and worker die at
//! once.
//!
//! systemd returns stored descriptors by name to the next daemon that it starts.

use crate::keeper::{EXEC_STATUS, Keeper, RETRY_INTERVAL};
use crate::table::{Entry, FDS_ONLY, OWN_SLOT, SLOT_MIN, SLOTS_MAX, STORE_ROLE};
use outpost_sys::{Errno, Result, message};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Children that live this long are stored. Most commands end before and cost the supervisor nothing.
const STORED_AFTER: Duration = Duration::from_secs(1);

/// The meaning of a stored descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FdStoreName {
    Pidfd,
    Held { role: u8 },
}

impl FdStoreName {
    /// The name in the store.
    pub fn name(self, slot: u64) -> String {
        match self {
            FdStoreName::Pidfd => format!("outpost-{slot:x}-pid"),
            FdStoreName::Held { role } => format!("outpost-{slot:x}-{role}"),
        }
    }

    /// The slot and the meaning of a name; `None` for other names.
    pub fn parse(name: &str) -> Option<(u64, FdStoreName)> {
        let (slot, what) = name.strip_prefix("outpost-")?.split_once('-')?;
        let slot = u64::from_str_radix(slot, 16).ok().filter(|slot| is_child(*slot))?;
        let what = match what {
            "pid" => FdStoreName::Pidfd,
            role => FdStoreName::Held { role: role.parse().ok()? },
        };
        Some((slot, what))
    }
}

/// Whether a slot is of a child. The daemon's own descriptors are not stored.
fn is_child(slot: u64) -> bool {
    slot >= SLOT_MIN && slot & (EXEC_STATUS | FDS_ONLY) == 0
}

/// Messages that the store is to be sent.
#[derive(Default)]
pub(crate) struct FdStore {
    /// Children to store, each with the time, in the order of these.
    scheduled: VecDeque<(Instant, u64)>,
    /// Names to remove. While the store has a copy, the reader of a closed pipe sees no EOF.
    removals: VecDeque<String>,
    /// The socket was full: the time of the next attempt.
    retry_at: Option<Instant>,
}

/// Maximum number of queued removals. A supervisor that has read nothing for so long has no store.
const REMOVALS_MAX: usize = 4 * SLOTS_MAX;

impl FdStore {
    /// When [`Keeper::flush_fdstore`] is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        let scheduled = self.scheduled.front().map(|(at, _)| *at);
        [scheduled, self.retry_at].into_iter().flatten().min()
    }

    fn schedule(&mut self, slot: u64, at: Instant) {
        if self.scheduled.len() < SLOTS_MAX {
            self.scheduled.push_back((at, slot));
        }
    }

    fn remove(&mut self, socket: &OwnedFd, names: impl IntoIterator<Item = String>) {
        self.removals.extend(names);
        let surplus = self.removals.len().saturating_sub(REMOVALS_MAX);
        self.removals.drain(..surplus);
        self.send_removals(socket);
    }

    fn send_removals(&mut self, socket: &OwnedFd) {
        self.retry_at = None;
        while let Some(name) = self.removals.front() {
            let text = format!("FDSTOREREMOVE=1\nFDNAME={name}");
            match message::send(socket, text.as_bytes(), &[]) {
                Err(Errno::AGAIN | Errno::NOBUFS) => {
                    self.retry_at = Some(Instant::now() + RETRY_INTERVAL);
                    return;
                }
                // A supervisor that is gone has no store.
                Ok(()) | Err(_) => self.removals.pop_front(),
            };
        }
    }
}

impl Keeper {
    fn fdstore_socket(&self) -> Option<&OwnedFd> {
        self.table.get(&OWN_SLOT).and_then(|own| own.held(STORE_ROLE))
    }

    pub(crate) fn schedule_fdstore(&mut self, slot: u64) {
        if is_child(slot) && self.fdstore_socket().is_some() {
            self.fdstore.schedule(slot, Instant::now() + STORED_AFTER);
        }
    }

    /// Stores the children that are due, and repeats removals that did not fit.
    pub(crate) fn flush_fdstore(&mut self, now: Instant) {
        let socket = self.table.get(&OWN_SLOT).and_then(|own| own.held(STORE_ROLE));
        if self.fdstore.retry_at.is_some_and(|at| at <= now) {
            match socket {
                Some(socket) => self.fdstore.send_removals(socket),
                None => self.fdstore.retry_at = None,
            }
        }
        while self.fdstore.scheduled.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, slot)) = self.fdstore.scheduled.pop_front() else { return };
            let Some(entry) = self.table.get(&slot).filter(|entry| entry.is_alive()) else { continue };
            match self.fdstore_socket().map(|socket| store_entry(socket, slot, entry)) {
                Some(Ok(())) => {
                    if let Some(entry) = self.table.get_mut(&slot) {
                        entry.in_fdstore = true;
                    }
                }
                // The socket is full. The store ignores what it has already.
                Some(Err(_)) => return self.fdstore.schedule(slot, now + STORED_AFTER),
                None => return,
            }
        }
    }

    /// A stored child holds another descriptor.
    pub(crate) fn add_role_to_fdstore(&mut self, slot: u64, role: u8) {
        let entry = self.table.get(&slot).filter(|entry| entry.in_fdstore && is_child(slot));
        if let (Some(socket), Some(fd)) = (self.fdstore_socket(), entry.and_then(|entry| entry.held(role)))
            && store(socket, &FdStoreName::Held { role }.name(slot), fd.as_fd()).is_err()
        {
            self.schedule_fdstore(slot);
        }
    }

    /// A stored child does not hold a descriptor any more.
    pub(crate) fn remove_role_from_fdstore(&mut self, slot: u64, role: u8) {
        if is_child(slot) && self.table.get(&slot).is_some_and(|entry| entry.in_fdstore) {
            self.remove_names([FdStoreName::Held { role }.name(slot)]);
        }
    }

    /// A child was forgotten.
    pub(crate) fn remove_from_fdstore(&mut self, slot: u64, entry: &Entry) {
        if entry.in_fdstore {
            let held = entry.held.iter().map(|(role, _)| FdStoreName::Held { role: *role });
            self.remove_names([FdStoreName::Pidfd].into_iter().chain(held).map(|what| what.name(slot)));
        }
    }

    fn remove_names(&mut self, names: impl IntoIterator<Item = String>) {
        if let Some(socket) = self.table.get(&OWN_SLOT).and_then(|own| own.held(STORE_ROLE)) {
            self.fdstore.remove(socket, names);
        }
    }
}

fn store_entry(socket: &OwnedFd, slot: u64, entry: &Entry) -> Result<()> {
    if let Some(pidfd) = &entry.pidfd {
        store(socket, &FdStoreName::Pidfd.name(slot), pidfd.as_fd())?;
    }
    entry
        .held
        .iter()
        .try_for_each(|(role, fd)| store(socket, &FdStoreName::Held { role: *role }.name(slot), fd.as_fd()))
}

/// With `FDPOLL=0`: the supervisor would drop a pipe at EOF, with the data in it.
fn store(socket: &OwnedFd, name: &str, fd: BorrowedFd<'_>) -> Result<()> {
    message::send(socket, format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}").as_bytes(), &[fd])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_to_themselves_and_other_names_are_refused() {
        for what in [FdStoreName::Pidfd, FdStoreName::Held { role: 0 }, FdStoreName::Held { role: 254 }] {
            assert_eq!(FdStoreName::parse(&what.name(0x1a1e)), Some((0x1a1e, what)));
        }
        for name in [
            "",
            "stored",
            "outpost-0-1",
            "outpost-4000000000000020-1",
            "outpost",
            "outpost-1",
            "outpost-x-1",
            "outpost-1-256",
            "outpost-1-x",
        ] {
            assert_eq!(FdStoreName::parse(name), None, "{name}");
        }
    }
}
