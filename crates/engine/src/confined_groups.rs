//! The cgroups that confined processes were given: a socket keeps the cgroup of the process that made it.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Groups of ended processes are kept, since their sockets may still be open in other processes.
const GROUPS_MAX: usize = 4096;

#[derive(Default)]
pub(crate) struct ConfinedGroups(Mutex<VecDeque<u64>>);

impl ConfinedGroups {
    /// The kernel gives no cgroup the number of an earlier one.
    pub(crate) fn add(&self, id: u64) {
        let mut groups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if groups.len() == GROUPS_MAX {
            groups.pop_front();
        }
        groups.push_back(id);
    }

    pub(crate) fn contains(&self, id: u64) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_groups_are_remembered_and_no_more() {
        let groups = ConfinedGroups::default();
        for id in 0..=GROUPS_MAX as u64 {
            groups.add(id);
        }
        assert!(!groups.contains(0) && groups.contains(1) && groups.contains(GROUPS_MAX as u64));
    }
}
