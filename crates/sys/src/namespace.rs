//! Namespaces that are made once and joined by many children, and what the kernel offers for confining them.

use crate::signal::last_errno;
use crate::{Errno, Result, fault};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, WaitOptions};
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::ptr;

/// An empty network, and the user namespace that owns it where we have no privilege of our own.
#[derive(Debug)]
pub struct Network {
    pub user: Option<OwnedFd>,
    pub network: OwnedFd,
}

/// Makes a network namespace with nothing in it but a loopback device that is down.
pub fn empty_network(with_user: bool) -> io::Result<Network> {
    fault::gate()?;
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let namespaces = libc::CLONE_NEWNET | if with_user { libc::CLONE_NEWUSER } else { 0 };
    let holder = hold(namespaces, read.as_raw_fd())?;
    let opened = open(holder, with_user);
    drop(write);
    let _reaped = crate::retry(|| rustix::process::waitpid(Pid::from_raw(holder), WaitOptions::empty()));
    opened
}

/// A child in new namespaces that lives until the pipe closes.
fn hold(namespaces: i32, read: RawFd) -> Result<i32> {
    let flags = (namespaces | libc::SIGCHLD) as libc::c_ulong;
    let none: *mut i32 = ptr::null_mut();
    // SAFETY: without CLONE_VM this is a fork; the child makes system calls only, below.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, none, none, none, none) };
    match i32::try_from(pid) {
        Ok(0) => {
            let mut byte = 0u8;
            // Nothing of its parent's stays with it, neither a listening socket nor the pipe's other end.
            close_between(0, read.cast_unsigned());
            close_between(read.cast_unsigned() + 1, u32::MAX);
            // SAFETY: a buffer of one byte.
            unsafe { libc::read(read, (&raw mut byte).cast(), 1) };
            // SAFETY: ends this child only.
            unsafe { libc::_exit(0) }
        }
        Ok(pid) if pid > 0 => Ok(pid),
        _ => Err(last_errno()),
    }
}

/// Closes the descriptors from `first` up to but not including `end`.
fn close_between(first: u32, end: u32) {
    if first < end {
        // SAFETY: plain numbers; the table is the calling child's own.
        unsafe { libc::syscall(libc::SYS_close_range, first, end - 1, 0) };
    }
}

fn open(holder: i32, with_user: bool) -> io::Result<Network> {
    let of = |name: &str| File::open(format!("/proc/{holder}/ns/{name}")).map(OwnedFd::from);
    if with_user {
        let ids = id_maps();
        std::fs::write(format!("/proc/{holder}/setgroups"), "deny")?;
        std::fs::write(format!("/proc/{holder}/uid_map"), ids.user)?;
        std::fs::write(format!("/proc/{holder}/gid_map"), ids.group)?;
    }
    Ok(Network { user: if with_user { Some(of("user")?) } else { None }, network: of("net")? })
}

/// What a process of ours writes into the maps of its new user namespace: itself under its own numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdMaps {
    pub user: String,
    pub group: String,
}

pub fn id_maps() -> IdMaps {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    IdMaps { user: format!("{user} {user} 1"), group: format!("{group} {group} 1") }
}

/// The version of Landlock that the kernel enforces; `None` without it.
pub fn landlock_version() -> Option<u32> {
    const CREATE_RULESET_VERSION: u32 = 1;
    let none: *const u8 = ptr::null();
    // SAFETY: with this flag the kernel wants a null pointer and no size.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0usize, CREATE_RULESET_VERSION) };
    u32::try_from(version).ok().filter(|version| *version > 0)
}

/// Whether system calls can be filtered.
pub fn has_filters() -> bool {
    const GET_ACTION_AVAIL: u32 = 2;
    let action: u32 = 0x0005_0000;
    // SAFETY: a pointer to a number that outlives the call.
    unsafe { libc::syscall(libc::SYS_seccomp, GET_ACTION_AVAIL, 0, &raw const action) == 0 }
}

/// Opens a directory, only to name things by it. No component of its path may be a symbolic link: a command may have put it
/// there since the path was looked at.
pub fn open_directory(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    crate::retry(|| {
        fault::gate()?;
        rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), resolve)
    })
}

/// Makes a directory with this mode, as far as the creation mask leaves it.
pub fn make_directory(parent: &OwnedFd, name: &CStr, mode: u32) -> Result<()> {
    fault::gate()?;
    rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(mode))
}

/// Whether the name in the directory still leads to what was opened.
pub fn is_at(parent: &OwnedFd, name: &CStr, opened: &OwnedFd) -> Result<bool> {
    fault::gate()?;
    let opened = rustix::fs::fstat(opened)?;
    let there = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok((opened.st_dev, opened.st_ino) == (there.st_dev, there.st_ino))
}

/// Tries to take a lock on an opened directory, shared or exclusive. Never waits: anybody who can read it can lock it.
pub fn lock(fd: &OwnedFd, exclusive: bool) -> Result<()> {
    use rustix::fs::FlockOperation::{NonBlockingLockExclusive, NonBlockingLockShared};
    fault::gate()?;
    let how = if exclusive { NonBlockingLockExclusive } else { NonBlockingLockShared };
    match crate::retry(|| rustix::fs::flock(fd, how)) {
        Err(Errno::WOULDBLOCK) => Err(Errno::AGAIN),
        outcome => outcome,
    }
}
