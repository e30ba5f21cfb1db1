//! The limit on the descriptors of processes, which reserves some for clients, files and a hand-over.

use outpost_sys::{file, limits};
use std::os::fd::{AsFd, AsRawFd};

/// The reserve. With fewer free descriptors a worker could not accept a connection, so no client could end a process.
const RESERVED: usize = 64;

/// Maximum number of open descriptors before those of another process are added.
pub(crate) fn for_processes() -> usize {
    let max = limits::descriptors().soft.and_then(|max| usize::try_from(max).ok()).unwrap_or(usize::MAX);
    max.saturating_sub(RESERVED.min(max / 4))
}

/// Whether the descriptors of another process may be added. `open` is any descriptor.
pub(crate) fn are_left(open: impl AsFd) -> bool {
    // The kernel assigns the lowest free number, so every lower one is in use.
    let number = file::duplicate(open).ok().and_then(|copy| usize::try_from(copy.as_raw_fd()).ok());
    number.is_some_and(|number| number < for_processes())
}
