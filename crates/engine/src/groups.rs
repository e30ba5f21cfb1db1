//! What the cgroup of a socket tells about the process that made it: a socket keeps that cgroup, also after the process has
//! passed it on and ended.
//!
//! Nothing of this is kept in memory only. The group of a process has the name of its slot, and the description of the slot
//! has whether the process is confined, so the next worker gives the same answers.

use crate::engine::Engine;
use crate::shared::Shared;
use crate::spec::Slot;
use outpost_sys::cgroup::Place;
use outpost_sys::confined::GroupStanding;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// How many groups of other programs are remembered. A search for one reads the whole tree.
const FOREIGN_MAX: usize = 1024;

/// Groups that are known not to be below this daemon's directory. The kernel moves no group and uses no id twice.
#[derive(Default)]
pub(crate) struct ForeignGroups(Mutex<VecDeque<u64>>);

impl ForeignGroups {
    fn add(&self, id: u64) {
        let mut groups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if groups.len() == FOREIGN_MAX {
            groups.pop_front();
        }
        groups.push_back(id);
    }

    fn contains(&self, id: u64) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&id)
    }
}

impl Engine {
    /// Whether processes of a cgroup may be confined ones of this daemon. What is not known for certain is
    /// [`GroupStanding::Unknown`]. Blocking.
    pub fn standing_of_group(&self, id: u64) -> GroupStanding {
        standing_of(&self.shared, id)
    }
}

fn standing_of(shared: &Shared, id: u64) -> GroupStanding {
    // Without groups of its own the daemon's processes are in groups of other programs, which tell nothing.
    let Some(cgroups) = &shared.cgroups else { return GroupStanding::Free };
    if shared.foreign_groups.contains(id) {
        return GroupStanding::Free;
    }
    match cgroups.place_of(id) {
        Ok(Place::Below(name)) => standing_of_slot(shared, &name),
        Ok(Place::Elsewhere) => {
            shared.foreign_groups.add(id);
            GroupStanding::Free
        }
        // A process of this daemon may have ended, and left its socket to another one.
        Ok(Place::Missing) => GroupStanding::Unknown("its cgroup is not there any more"),
        Err(errno) => {
            tracing::warn!(group = id, %errno, "the cgroup of a client cannot be looked up");
            GroupStanding::Unknown("its cgroup cannot be looked up")
        }
    }
}

/// A process is in the table before it is started. A worker that has begun lately may not have adopted it yet.
fn standing_of_slot(shared: &Shared, name: &str) -> GroupStanding {
    let process = name.parse::<Slot>().ok().and_then(|slot| shared.table().by_slot(slot));
    match process.map(|process| process.inner.description.confined) {
        Some(Some(false)) => GroupStanding::Free,
        Some(Some(true)) => GroupStanding::Confined,
        Some(None) => GroupStanding::Unknown("whether its process is sandboxed was not recorded"),
        None => GroupStanding::Unknown("its cgroup is of this daemon, and no process is known there"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_groups_are_remembered_and_no_more() {
        let groups = ForeignGroups::default();
        for id in 0..=FOREIGN_MAX as u64 {
            groups.add(id);
        }
        assert!(!groups.contains(0) && groups.contains(1) && groups.contains(FOREIGN_MAX as u64));
    }
}
