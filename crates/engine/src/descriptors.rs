//! The descriptors that processes leave to clients, files and a hand-over.

use outpost_sys::{file, limits};
use std::os::fd::{AsFd, AsRawFd};

/// With fewer a worker could neither accept a connection nor open a file, so no client could end a process.
const RESERVED: usize = 64;

/// How many descriptors may be open when the descriptors of another process are made or taken over.
pub(crate) fn for_processes() -> usize {
    let max = limits::descriptors().soft.and_then(|max| usize::try_from(max).ok()).unwrap_or(usize::MAX);
    max.saturating_sub(RESERVED.min(max / 4))
}

/// Whether the descriptors of another process may be made. `open` is any descriptor.
pub(crate) fn are_left(open: impl AsFd) -> bool {
    // The kernel assigns the lowest free number, so every lower one is in use.
    let number = file::duplicate(open).ok().and_then(|copy| usize::try_from(copy.as_raw_fd()).ok());
    number.is_some_and(|number| number < for_processes())
}
