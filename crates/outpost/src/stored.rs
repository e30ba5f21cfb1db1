//! Descriptors that a supervisor has kept for a daemon of which neither half is left, and what they say of its children.

use outpost_keeper::state::StoredEntry;
use outpost_keeper::{HELD_MAX, Standing, Stored};
use outpost_sys::{file, procfs};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};

/// Where systemd puts the first of them.
const FIRST: i32 = 3;

/// One of them, with its name read.
pub(crate) struct Kept {
    slot: u64,
    what: Stored,
    pub(crate) fd: OwnedFd,
}

/// Whether the supervisor keeps any.
pub(crate) fn is_offered() -> bool {
    number("FDSTORE").is_some_and(|most| most > 0)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Takes those that are ours. Only if they are meant for this very process: otherwise the numbers are something else's.
pub(crate) fn take() -> Vec<Kept> {
    if number("LISTEN_PID") != Some(std::process::id().into()) {
        return Vec::new();
    }
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let count = number("LISTEN_FDS").and_then(|count| usize::try_from(count).ok()).unwrap_or_default();
    let kept = (FIRST..).zip(names.split(':')).take(count).filter_map(|(number, name)| {
        let (slot, what) = Stored::parse(name)?;
        Some(Kept { slot, what, fd: file::inherited(number).ok()? })
    });
    kept.collect()
}

/// The children that they are of, as the keeper's table has them. Whether one has ended is seen by its pidfd.
pub(crate) fn entries(kept: &[Kept]) -> Vec<StoredEntry> {
    let mut entries: BTreeMap<u64, StoredEntry> = BTreeMap::new();
    for Kept { slot, what, fd } in kept {
        let none = StoredEntry {
            slot: *slot,
            pid: 0,
            standing: Standing::Running,
            pidfd: -1,
            held: Vec::new(),
            report: -1,
        };
        let entry = entries.entry(*slot).or_insert(none);
        match what {
            Stored::Pidfd => {
                entry.pidfd = fd.as_raw_fd();
                entry.pid = procfs::pid_of(fd).unwrap_or_default();
            }
            Stored::Held { role } if entry.held.len() < HELD_MAX => entry.held.push((*role, fd.as_raw_fd())),
            Stored::Held { .. } => {}
        }
    }
    entries.into_values().collect()
}
