//! The table of processes: by slot, and by the key their face knows them under.

use crate::process::Process;
use crate::spec::{Key, Slot};
use std::collections::{BTreeMap, HashMap};

#[derive(Default)]
pub(crate) struct Table {
    by_slot: BTreeMap<Slot, Process>,
    by_key: HashMap<Key, Slot>,
}

impl Table {
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

    /// Gives a process its key. Of two with one key, the younger has it; the one that lost it is returned.
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
