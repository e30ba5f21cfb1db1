//! The events that the worker is to be sent.

use crate::message::Event;
use crate::table::Table;
use outpost_sys::{Result, message};
use std::collections::{BTreeSet, VecDeque};
use std::os::fd::OwnedFd;

/// Maximum number of queued notices. A notice is an event without an entry.
const NOTICES_MAX: usize = 16;

/// Pending events. Entries are sent first, by their current state.
#[derive(Default)]
pub(crate) struct EventQueue {
    /// Slots of entries with a pending part.
    dirty: BTreeSet<u64>,
    /// `TableEnd` follows the entries.
    table_end_due: bool,
    notices: VecDeque<Event>,
}

impl EventQueue {
    pub(crate) fn mark_dirty(&mut self, slot: u64) {
        self.dirty.insert(slot);
    }

    /// Schedules the whole table.
    pub(crate) fn mark_table(&mut self, table: &Table) {
        self.dirty = table.keys().copied().collect();
        self.table_end_due = true;
    }

    pub(crate) fn push(&mut self, notice: Event) {
        if self.notices.len() < NOTICES_MAX {
            self.notices.push_back(notice);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.dirty.is_empty() && !self.table_end_due && self.notices.is_empty()
    }

    pub(crate) fn has_notices(&self) -> bool {
        !self.notices.is_empty()
    }

    /// The worker has ended. The entries stay pending for the next one.
    pub(crate) fn clear_notices(&mut self) {
        self.table_end_due = false;
        self.notices.clear();
    }

    /// Sends events until all are sent or a send fails.
    pub(crate) fn send(&mut self, link: &OwnedFd, table: &mut Table) -> Result<()> {
        while let Some(slot) = self.dirty.first().copied() {
            // The entry may have been forgotten meanwhile.
            if let Some(entry) = table.get_mut(&slot) {
                let (event, fds) = entry.event(slot);
                message::send(link, &event.encode(), &fds)?;
                entry.mark_sent();
            }
            self.dirty.remove(&slot);
        }
        if self.table_end_due {
            message::send(link, &Event::TableEnd.encode(), &[])?;
            self.table_end_due = false;
        }
        while let Some(notice) = self.notices.front() {
            message::send(link, &notice.encode(), &[])?;
            self.notices.pop_front();
        }
        Ok(())
    }
}
