//! The table of processes, by slot and by key.

use crate::process::Process;
use crate::spec::{Key, OnTaken, Slot};
use crate::{Error, Result};
use std::collections::{BTreeMap, HashMap};

#[derive(Default)]
pub(crate) struct Table {
    by_slot: BTreeMap<Slot, Process>,
    by_key: HashMap<Key, Slot>,
}

impl Table {
    /// Adds a process before its start; returns an ended process that had its key. Check and insert are atomic, so of
    /// two starts with one key one is refused. With [`OnTaken::Replace`] the process claims its key after exec, so a
    /// failed exec replaces nothing.
    pub(crate) fn admit(
        &mut self,
        process: Process,
        on_taken: OnTaken,
        processes_max: usize,
    ) -> Result<Option<Process>> {
        let alive = |process: &&Process| process.status().exit().is_none();
        // Counted only when there could be too many, since most processes of a long table have ended.
        if self.len() >= processes_max && self.all().filter(alive).count() >= processes_max {
            return Err(Error::Busy);
        }
        if on_taken == OnTaken::Replace {
            self.add(process);
            return Ok(None);
        }
        // A holder with a greater slot was started while this process was being prepared, even if it has ended since.
        let taken = |holder: Process| alive(&&holder) || holder.slot() > process.slot();
        match self.by_key(process.key()).is_some_and(taken) {
            true => Err(Error::Taken { id: process.key().id.clone() }),
            false => Ok(self.insert(process)),
        }
    }

    /// Adds a process under its slot and its key.
    pub(crate) fn insert(&mut self, process: Process) -> Option<Process> {
        let slot = process.slot();
        self.add(process);
        self.claim(slot)
    }

    /// Adds a process under its slot alone.
    pub(crate) fn add(&mut self, process: Process) {
        self.by_slot.insert(process.slot(), process);
    }

    /// Gives a process its key. Of two processes with one key the younger has it, and the other is returned.
    pub(crate) fn claim(&mut self, slot: Slot) -> Option<Process> {
        let process = self.by_slot.get(&slot)?;
        let key = process.key().clone();
        match self.by_key.get(&key).copied() {
            Some(other) if other == slot => None,
            Some(other) if other > slot => Some(process.clone()),
            other => {
                self.by_key.insert(key, slot);
                other.and_then(|other| self.by_slot.get(&other).cloned())
            }
        }
    }

    pub(crate) fn remove(&mut self, slot: Slot) -> Option<Process> {
        let process = self.by_slot.remove(&slot)?;
        if self.by_key.get(process.key()) == Some(&slot) {
            self.by_key.remove(process.key());
        }
        Some(process)
    }

    pub(crate) fn by_slot(&self, slot: Slot) -> Option<Process> {
        self.by_slot.get(&slot).cloned()
    }

    pub(crate) fn by_key(&self, key: &Key) -> Option<Process> {
        self.by_slot.get(self.by_key.get(key)?).cloned()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_slot.len()
    }

    /// All, oldest first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Process> {
        self.by_slot.values()
    }
}
