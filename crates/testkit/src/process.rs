//! Processes that a test knows by number.

use outpost_sys::identity::Identity;
use outpost_sys::pidfd::Pidfd;
use outpost_sys::{Errno, Result, procfs};

/// The process that has this pid now. A test knows that it is the right one: it started the process, and nothing has reaped it.
pub fn process(pid: i32) -> Result<Pidfd> {
    let stat = procfs::stat(pid).ok_or(Errno::SRCH)?;
    Identity::of(&stat).open()
}
