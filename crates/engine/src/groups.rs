//! The confinement of the process that created a socket, by the socket's cgroup. A socket keeps the cgroup of its
//! creator, also after that has passed it on and ended.
//!
//! The cgroup of a process is named after its slot, and the description of the slot records the confinement. So the
//! next worker gives the same answers.

use crate::engine::Engine;
use crate::shared::Shared;
use crate::spec::Slot;
use outpost_sys::cgroup::Location;
use outpost_sys::confined::GroupConfinement;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// The size of the cache of foreign groups. A search for a group reads the whole hierarchy.
const FOREIGN_MAX: usize = 1024;

/// A cache of groups that are not this daemon's. The kernel neither moves groups nor reuses their ids.
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
    /// Whether the processes of a cgroup are confined ones of this daemon. Blocking.
    pub fn standing_of_group(&self, id: u64) -> GroupConfinement {
        standing_of(&self.shared, id)
    }
}

fn standing_of(shared: &Shared, id: u64) -> GroupConfinement {
    // Without cgroups of its own the daemon's processes are in groups of other programs.
    let Some(cgroups) = &shared.cgroups else { return GroupConfinement::Unconfined };
    if shared.foreign_groups.contains(id) {
        return GroupConfinement::Unconfined;
    }
    match cgroups.locate(id) {
        Ok(Location::Below(name)) => standing_of_slot(shared, &name),
        Ok(Location::Elsewhere) => {
            shared.foreign_groups.add(id);
            GroupConfinement::Unconfined
        }
        // A process of this daemon may have ended after it passed its socket on.
        Ok(Location::Missing) => GroupConfinement::Unknown("its cgroup is not there any more"),
        Err(errno) => {
            tracing::warn!(group = id, %errno, "cannot look up the cgroup of a client");
            GroupConfinement::Unknown("its cgroup cannot be looked up")
        }
    }
}

/// A process is in the table before its start. A new worker may not have adopted it yet.
fn standing_of_slot(shared: &Shared, name: &str) -> GroupConfinement {
    let process = name.parse::<Slot>().ok().and_then(|slot| shared.table().by_slot(slot));
    match process.map(|process| process.inner.description.confined) {
        Some(Some(false)) => GroupConfinement::Unconfined,
        Some(Some(true)) => GroupConfinement::Confined,
        Some(None) => GroupConfinement::Unknown("whether its process is sandboxed was not recorded"),
        None => GroupConfinement::Unknown("its cgroup is of this daemon, and no process is known there"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_keeps_the_latest_groups() {
        let groups = ForeignGroups::default();
        for id in 0..=FOREIGN_MAX as u64 {
            groups.add(id);
        }
        assert!(!groups.contains(0) && groups.contains(1) && groups.contains(FOREIGN_MAX as u64));
    }
}
