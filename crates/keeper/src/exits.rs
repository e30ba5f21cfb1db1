//! How children ended whose parent was an earlier keeper: by the kernel's note (Linux 6.15), by exit events before, and by
//! the zombie where there are no events.

use crate::keeper::{EXITS, Keeper};
use crate::log::log;
use crate::table::{EXITS_ROLE, Entry, OWN_SLOT, Seen, watched};
use outpost_sys::epoll::{Interest, is_readable};
use outpost_sys::exits::{self, Ended, Received};
use outpost_sys::{Errno, pidfd};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long the exit event may come after the pidfd has become readable: the kernel may be preempted in between.
const EVENT_PATIENCE: Duration = Duration::from_secs(1);

/// How long the kernel may take between the end of a zombie and its note.
const NOTE_PATIENCE: Duration = Duration::from_millis(20);

/// How long until an ended child is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The most messages received at once.
const MESSAGES_MAX: usize = 4096;

#[derive(Default)]
pub(crate) struct Exits {
    /// Slots of living children of earlier keepers, by pid.
    slots: BTreeMap<i32, u64>,
    /// Children that have ended, and until when to wait for how.
    undecided: BTreeMap<u64, Instant>,
    /// The kernel reports no exit events to this process.
    refused: bool,
}

impl Keeper {
    /// Sees to it that the exit of a child of an earlier keeper will be known.
    pub(crate) fn expect_exit(&mut self, slot: u64) {
        let Some(entry) = self.table.get(&slot).filter(|entry| entry.lives()) else { return };
        if entry.pidfd.as_ref().is_some_and(pidfd::is_child) {
            return;
        }
        self.exits.slots.insert(entry.pid, slot);
        if !self.exits.refused && !pidfd::notes_exits() {
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
                // A lack of descriptors or memory passes: the next adopted child brings another attempt.
                self.exits.refused = !outpost_sys::is_exhaustion(errno);
                return log(format_args!(
                    "the kernel reports no exit events ({errno}); how adopted children end may stay unknown"
                ));
            }
        }
        let Some(socket) = self.exit_events() else { return };
        // Without it events are received when a child ends.
        let _received_later = watched(self.epoll.add(socket, EXITS, Interest::Read));
    }

    /// The worker may have subscribed before it started this keeper, or the keeper before it was replaced.
    fn exit_events(&self) -> Option<&OwnedFd> {
        let own = self.table.get(&OWN_SLOT)?;
        own.held.iter().find(|(role, _)| *role == EXITS_ROLE).map(|(_, socket)| socket)
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
                // What is lost is looked for in /proc. The socket goes on.
                Err(Errno::NOBUFS) => log(format_args!("exit events were lost: too many at once")),
                Err(errno) => {
                    log(format_args!("receiving exit events failed ({errno}); none are received any more"));
                    self.exits.refused = true;
                    return self.unsubscribe_from_exits();
                }
            }
        }
    }

    /// An event that comes while the child lives is that of one of its threads. Of several the last counts: where the first
    /// thread has left early, another one has the code of the process.
    fn note_exit(&mut self, Ended { pid, exit }: Ended) {
        let slot = self.exits.slots.get(&pid);
        if let Some(entry) = slot.and_then(|slot| self.table.get_mut(slot))
            && entry.pidfd.as_ref().is_some_and(is_readable)
        {
            entry.reported_exit = Some(exit);
        }
    }

    /// What looking at a child has shown.
    pub(crate) fn seen(&mut self, slot: u64, seen: Seen) {
        match seen {
            Seen::Nothing => {}
            Seen::Started => {
                self.news.insert(slot);
            }
            Seen::Ended => {
                self.news.insert(slot);
                self.exits.undecided.remove(&slot);
                if let Some(pid) = self.table.get(&slot).map(|entry| entry.pid)
                    && self.exits.slots.remove(&pid).is_some()
                    && self.exits.slots.is_empty()
                {
                    self.unsubscribe_from_exits();
                }
            }
            Seen::EndedSomehow => {
                let patience = if self.exit_events().is_some() { EVENT_PATIENCE } else { NOTE_PATIENCE };
                self.exits.undecided.entry(slot).or_insert_with(|| Instant::now() + patience);
                // It stays readable: other events wake this process.
                if let Some(pidfd) = self.table.get(&slot).and_then(|entry| entry.pidfd.as_ref()) {
                    let _not_registered = self.epoll.remove(pidfd);
                }
            }
        }
    }

    /// Whether a child has ended and how is not known yet.
    pub(crate) fn is_undecided(&self, slot: u64) -> bool {
        self.exits.undecided.contains_key(&slot)
    }

    /// Whether a child has ended and nothing more will show how.
    pub(crate) fn is_overdue(&self, slot: u64) -> bool {
        self.exits.undecided.get(&slot).is_some_and(|by| *by <= Instant::now())
    }

    pub(crate) fn decide_exits(&mut self) {
        for slot in self.exits.undecided.keys().copied().collect::<Vec<_>>() {
            match self.table.get(&slot).is_some_and(Entry::lives) {
                true => self.look_at(slot),
                false => {
                    self.exits.undecided.remove(&slot);
                }
            }
        }
    }

    pub(crate) fn next_exit(&self) -> Option<Instant> {
        (!self.exits.undecided.is_empty()).then(|| Instant::now() + LOOK_AGAIN)
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
