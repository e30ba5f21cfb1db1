//! What the supervisor keeps for us: descriptors of children, so that they outlive even both halves of the daemon dying
//! at once. systemd calls it its file descriptor store, and gives everything back by name to the next one it starts.

use crate::keeper::{AGAIN_AFTER, Keeper, REPORT};
use crate::table::{Entry, KEPT, OWN_SLOT, SLOT_MIN, SLOTS_MAX, STORE_ROLE};
use outpost_sys::{Errno, Result, message};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Most commands are over by then, and cost the supervisor nothing.
const STORED_AFTER: Duration = Duration::from_secs(1);

/// What a stored descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    Pidfd,
    Held { role: u8 },
}

impl Stored {
    /// The name that it is stored under.
    pub fn name(self, slot: u64) -> String {
        match self {
            Stored::Pidfd => format!("outpost-{slot:x}-pid"),
            Stored::Held { role } => format!("outpost-{slot:x}-{role}"),
        }
    }

    /// Whose it is, by its name; `None` for what is no child's of ours.
    pub fn parse(name: &str) -> Option<(u64, Stored)> {
        let (slot, what) = name.strip_prefix("outpost-")?.split_once('-')?;
        let slot = u64::from_str_radix(slot, 16).ok().filter(|slot| is_child(*slot))?;
        let what = match what {
            "pid" => Stored::Pidfd,
            role => Stored::Held { role: role.parse().ok()? },
        };
        Some((slot, what))
    }
}

/// Not what the daemon holds for itself: its sockets are made anew.
fn is_child(slot: u64) -> bool {
    slot >= SLOT_MIN && slot & (REPORT | KEPT) == 0
}

/// What the supervisor is to be told.
#[derive(Default)]
pub(crate) struct Storing {
    /// Children that are to be stored when they have lived for a while, the first to be first.
    waiting: VecDeque<(Instant, u64)>,
    /// Names that are to be forgotten: as long as somebody has a copy, an input that was closed has no end.
    leaving: VecDeque<String>,
    /// It was busy: when to try again.
    again: Option<Instant>,
}

/// Names that may wait. A supervisor that has heard nothing for so long is none.
const LEAVING_MAX: usize = 4 * SLOTS_MAX;

impl Keeper {
    fn store(&self) -> Option<&OwnedFd> {
        let own = self.table.get(&OWN_SLOT)?;
        own.held.iter().find(|(role, _)| *role == STORE_ROLE).map(|(_, socket)| socket)
    }

    pub(crate) fn store_later(&mut self, slot: u64) {
        if is_child(slot) && self.storing.waiting.len() < SLOTS_MAX && self.store().is_some() {
            self.storing.waiting.push_back((Instant::now() + STORED_AFTER, slot));
        }
    }

    pub(crate) fn next_store(&self) -> Option<Instant> {
        let waiting = self.storing.waiting.front().map(|(at, _)| *at);
        [waiting, self.storing.again].into_iter().flatten().min()
    }

    pub(crate) fn store_due(&mut self, now: Instant) {
        if self.storing.again.is_some_and(|at| at <= now) {
            self.tell_leaving();
        }
        while self.storing.waiting.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, slot)) = self.storing.waiting.pop_front() else { return };
            let lasts = |entry: &&Entry| entry.lives() && !entry.ahead;
            let Some(entry) = self.table.get(&slot).filter(lasts) else { continue };
            match self.store().map(|socket| store_all(socket, slot, entry)) {
                Some(Ok(())) => {
                    if let Some(entry) = self.table.get_mut(&slot) {
                        entry.stored = true;
                    }
                }
                // It is busy. What it has already it takes once.
                Some(Err(_)) => return self.storing.waiting.push_back((now + STORED_AFTER, slot)),
                None => return,
            }
        }
    }

    /// Another descriptor is held for a stored child.
    pub(crate) fn store_one(&mut self, slot: u64, role: u8) {
        let entry = self.table.get(&slot).filter(|entry| entry.stored && is_child(slot));
        let fd = entry.and_then(|entry| entry.held.iter().find(|(held, _)| *held == role));
        if let (Some(socket), Some((_, fd))) = (self.store(), fd)
            && put(socket, &Stored::Held { role }.name(slot), fd.as_fd()).is_err()
        {
            self.store_later(slot);
        }
    }

    /// One is not held any more.
    pub(crate) fn unstore_one(&mut self, slot: u64, role: u8) {
        if is_child(slot) && self.table.get(&slot).is_some_and(|entry| entry.stored) {
            self.unstore_all([Stored::Held { role }.name(slot)]);
        }
    }

    /// A child is forgotten.
    pub(crate) fn unstore(&mut self, slot: u64, entry: &Entry) {
        if entry.stored {
            let held = entry.held.iter().map(|(role, _)| Stored::Held { role: *role });
            self.unstore_all([Stored::Pidfd].into_iter().chain(held).map(|what| what.name(slot)));
        }
    }

    fn unstore_all(&mut self, names: impl IntoIterator<Item = String>) {
        if self.store().is_some() {
            self.storing.leaving.extend(names);
            let surplus = self.storing.leaving.len().saturating_sub(LEAVING_MAX);
            self.storing.leaving.drain(..surplus);
            self.tell_leaving();
        }
    }

    fn tell_leaving(&mut self) {
        self.storing.again = None;
        while let Some(name) = self.storing.leaving.front() {
            let words = format!("FDSTOREREMOVE=1\nFDNAME={name}");
            match self.store().map(|socket| message::send(socket, words.as_bytes(), &[])) {
                Some(Err(Errno::AGAIN | Errno::NOBUFS)) => {
                    self.storing.again = Some(Instant::now() + AGAIN_AFTER);
                    return;
                }
                // One that is gone keeps nothing.
                _ => self.storing.leaving.pop_front(),
            };
        }
    }
}

fn store_all(socket: &OwnedFd, slot: u64, entry: &Entry) -> Result<()> {
    if let Some(pidfd) = &entry.pidfd {
        put(socket, &Stored::Pidfd.name(slot), pidfd.as_fd())?;
    }
    entry
        .held
        .iter()
        .try_for_each(|(role, fd)| put(socket, &Stored::Held { role: *role }.name(slot), fd.as_fd()))
}

/// Without watching it: one at its end would be dropped, with what is still in it.
fn put(socket: &OwnedFd, name: &str, fd: BorrowedFd<'_>) -> Result<()> {
    message::send(socket, format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}").as_bytes(), &[fd])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for what in [Stored::Pidfd, Stored::Held { role: 0 }, Stored::Held { role: 254 }] {
            assert_eq!(Stored::parse(&what.name(0x1a1e)), Some((0x1a1e, what)));
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
            assert_eq!(Stored::parse(name), None, "{name}");
        }
    }
}
