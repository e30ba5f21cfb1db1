//! The exit status of children whose parent was an earlier keeper: by PIDFD_GET_INFO (Linux 6.15), by the kernel's exit
//! events before, and by the zombie where there are no events.

use crate::keeper::{EXITS, Keeper};
use crate::log::log;
use crate::table::{EXITS_ROLE, Entry, OWN_SLOT, Observed, watched};
use outpost_sys::epoll::{Interest, is_readable};
use outpost_sys::exits::{self, Ended, Received};
use outpost_sys::{Errno, pidfd};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The longest delay of an exit event after the pidfd is readable. The kernel may be preempted in between.
const EVENT_TIMEOUT: Duration = Duration::from_secs(1);

/// The longest delay of the exit status in PIDFD_GET_INFO after the process was reaped.
const INFO_TIMEOUT: Duration = Duration::from_millis(20);

/// The interval in which an ended child is polled for its exit status.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Maximum number of messages received in one turn of the loop.
const MESSAGES_MAX: usize = 4096;

#[derive(Default)]
pub(crate) struct Exits {
    /// Slots of living children of earlier keepers, by pid.
    slots: BTreeMap<i32, u64>,
    /// Children that have ended without a known exit status, each with its deadline.
    undecided: BTreeMap<u64, Instant>,
    /// The kernel sends no exit events to this process.
    refused: bool,
}

impl Keeper {
    /// Prepares for the exit of a child of an earlier keeper.
    pub(crate) fn expect_exit(&mut self, slot: u64) {
        let Some(entry) = self.table.get(&slot).filter(|entry| entry.is_alive()) else { return };
        if entry.pidfd.as_ref().is_some_and(pidfd::is_child) {
            return;
        }
        self.exits.slots.insert(entry.pid, slot);
        if !self.exits.refused && !pidfd::records_exits() {
            self.subscribe_to_exits();
        }
    }

    fn subscribe_to_exits(&mut self) {
        if self.exit_events().is_none() {
            let subscribed = exits::subscribe().and_then(|socket| match self.table.get_mut(&OWN_SLOT) {
                Some(own) => own.hold(EXITS_ROLE, socket),
                None => Err(Errno::NOENT),
            });
            if let Err(errno) = subscribed {
                // A lack of descriptors or memory passes, so the next adopted child brings another attempt.
                self.exits.refused = !outpost_sys::is_exhaustion(errno);
                return log(format_args!(
                    "cannot subscribe to exit events ({errno}); exit statuses of adopted children may stay unknown"
                ));
            }
        }
        let Some(socket) = self.exit_events() else { return };
        // If epoll does not watch it, events are received when a pidfd is readable.
        let _received_later = watched(self.epoll.add(socket, EXITS, Interest::Read));
    }

    /// The subscription. A worker may have made it before it started this keeper, or the keeper that this one replaced.
    fn exit_events(&self) -> Option<&OwnedFd> {
        self.table.get(&OWN_SLOT)?.held(EXITS_ROLE)
    }

    pub(crate) fn receive_exits(&mut self) {
        if self.exits.slots.is_empty() {
            return;
        }
        for _ in 0..MESSAGES_MAX {
            let Some(socket) = self.exit_events() else { return };
            match exits::receive(socket) {
                Ok(Received::Exit(ended)) => self.note_exit(ended),
                Ok(Received::Other) => {}
                Ok(Received::Nothing) => return,
                // The exit status of a lost event may still be in /proc. The socket stays usable.
                Err(Errno::NOBUFS) => log(format_args!("the kernel dropped exit events: too many at once")),
                Err(errno) => {
                    log(format_args!("cannot receive exit events ({errno}); unsubscribing"));
                    self.exits.refused = true;
                    return self.unsubscribe_from_exits();
                }
            }
        }
    }

    /// Ignores events while the child lives, which are of its threads. The last event counts: if the first thread has
    /// exited early, another thread's event has the exit status of the process.
    fn note_exit(&mut self, Ended { pid, exit }: Ended) {
        let slot = self.exits.slots.get(&pid);
        if let Some(entry) = slot.and_then(|slot| self.table.get_mut(slot))
            && entry.pidfd.as_ref().is_some_and(is_readable)
        {
            entry.reported_exit = Some(exit);
        }
    }

    /// Handles the result of a poll.
    pub(crate) fn on_observed(&mut self, slot: u64, observed: Observed) {
        match observed {
            Observed::Nothing => {}
            Observed::Started => {
                self.events.mark_dirty(slot);
            }
            Observed::Ended => {
                self.events.mark_dirty(slot);
                self.exits.undecided.remove(&slot);
                if let Some(pid) = self.table.get(&slot).map(|entry| entry.pid)
                    && self.exits.slots.remove(&pid).is_some()
                    && self.exits.slots.is_empty()
                {
                    self.unsubscribe_from_exits();
                }
            }
            Observed::EndedUnknown => {
                let timeout = if self.exit_events().is_some() { EVENT_TIMEOUT } else { INFO_TIMEOUT };
                self.exits.undecided.entry(slot).or_insert_with(|| Instant::now() + timeout);
                // The pidfd stays readable and would wake this process all the time. The timer polls it.
                if let Some(pidfd) = self.table.get(&slot).and_then(|entry| entry.pidfd.as_ref()) {
                    let _not_registered = self.epoll.remove(pidfd);
                }
            }
        }
    }

    /// Whether a child has ended without a known exit status.
    pub(crate) fn awaits_exit_status(&self, slot: u64) -> bool {
        self.exits.undecided.contains_key(&slot)
    }

    /// Whether the deadline for the exit status of an ended child has passed.
    pub(crate) fn is_exit_status_overdue(&self, slot: u64) -> bool {
        self.exits.undecided.get(&slot).is_some_and(|by| *by <= Instant::now())
    }

    pub(crate) fn poll_undecided_exits(&mut self) {
        for slot in self.exits.undecided.keys().copied().collect::<Vec<_>>() {
            match self.table.get(&slot).is_some_and(Entry::is_alive) {
                true => self.poll_child(slot),
                false => {
                    self.exits.undecided.remove(&slot);
                }
            }
        }
    }

    pub(crate) fn next_exit(&self) -> Option<Instant> {
        (!self.exits.undecided.is_empty()).then(|| Instant::now() + POLL_INTERVAL)
    }

    fn unsubscribe_from_exits(&mut self) {
        if let Some(socket) = self.exit_events() {
            let _not_registered = self.epoll.remove(socket);
        }
        if let Some(own) = self.table.get_mut(&OWN_SLOT) {
            own.release(EXITS_ROLE);
        }
    }
}
