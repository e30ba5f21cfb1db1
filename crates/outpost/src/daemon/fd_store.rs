//! Restores children from systemd's file descriptor store after keeper and worker died together.

use outpost_keeper::state::SerializedEntry;
use outpost_keeper::{FdStoreName, HELD_MAX, ProcessState};
use outpost_sys::{file, procfs};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};

/// The first descriptor of `LISTEN_FDS`.
const FIRST_FD: i32 = 3;

/// A stored descriptor with its parsed name.
pub(crate) struct InheritedFd {
    slot: u64,
    name: FdStoreName,
    pub(crate) fd: OwnedFd,
}

/// Whether the supervisor has a file descriptor store.
pub(crate) fn is_offered() -> bool {
    number("FDSTORE").is_some_and(|most| most > 0)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Takes the descriptors whose names are ours. If `LISTEN_PID` names another process, the numbers have another meaning here.
pub(crate) fn take_inherited() -> Vec<InheritedFd> {
    if number("LISTEN_PID") != Some(std::process::id().into()) {
        return Vec::new();
    }
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let count = number("LISTEN_FDS").and_then(|count| usize::try_from(count).ok()).unwrap_or_default();
    let inherited = (FIRST_FD..).zip(names.split(':')).take(count).filter_map(|(number, name)| {
        let (slot, name) = FdStoreName::parse(name)?;
        Some(InheritedFd { slot, name, fd: file::inherited(number).ok()? })
    });
    inherited.collect()
}

/// Builds the keeper's table entries of the children. All count as running; the keeper learns of an exit from the pidfd.
pub(crate) fn entries(inherited: &[InheritedFd]) -> Vec<SerializedEntry> {
    let mut entries: BTreeMap<u64, SerializedEntry> = BTreeMap::new();
    for InheritedFd { slot, name, fd } in inherited {
        let none = SerializedEntry {
            slot: *slot,
            pid: 0,
            state: ProcessState::Running,
            pidfd: -1,
            held: Vec::new(),
            exec_status: -1,
        };
        let entry = entries.entry(*slot).or_insert(none);
        match name {
            FdStoreName::Pidfd => {
                entry.pidfd = fd.as_raw_fd();
                entry.pid = procfs::pid_of(fd).unwrap_or_default();
            }
            FdStoreName::Held { role } if entry.held.len() < HELD_MAX => {
                entry.held.push((*role, fd.as_raw_fd()))
            }
            FdStoreName::Held { .. } => {}
        }
    }
    entries.into_values().collect()
}
