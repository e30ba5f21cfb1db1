//! Directories by descriptor, without symbolic links: opening, creating, identity, flock.

use crate::{Errno, Result, fault};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, ResolveFlags};
use std::ffi::CStr;
use std::path::Path;

/// Opens a directory as O_PATH. No component of the path may be a symbolic link: a command may have created it after the
/// path was resolved.
pub fn open(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    crate::retry(|| {
        fault::failpoint()?;
        rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), resolve)
    })
}

/// Creates a directory with this mode, minus the umask.
pub fn create(parent: &OwnedFd, name: &CStr, mode: u32) -> Result<()> {
    fault::failpoint()?;
    rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(mode))
}

/// Whether the name in the directory still resolves to the opened file.
pub fn is_same(parent: &OwnedFd, name: &CStr, opened: &OwnedFd) -> Result<bool> {
    fault::failpoint()?;
    let opened = rustix::fs::fstat(opened)?;
    let named = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok((opened.st_dev, opened.st_ino) == (named.st_dev, named.st_ino))
}

/// Takes a shared or exclusive lock on an opened directory; `EAGAIN` when another process holds a conflicting one. Never
/// blocks: every process that can read the directory can lock it.
pub fn try_lock(fd: &OwnedFd, exclusive: bool) -> Result<()> {
    use FlockOperation::{NonBlockingLockExclusive, NonBlockingLockShared};
    fault::failpoint()?;
    let operation = if exclusive { NonBlockingLockExclusive } else { NonBlockingLockShared };
    match crate::retry(|| rustix::fs::flock(fd, operation)) {
        Err(Errno::WOULDBLOCK) => Err(Errno::AGAIN),
        outcome => outcome,
    }
}
