//! Namespaces that are created once and joined by many children.

use crate::signal::last_errno;
use crate::{Result, fault};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, WaitOptions};
use std::fs::File;
use std::io;
use std::ptr;

/// An empty network namespace. `user` is the user namespace that owns it, if this process is unprivileged.
#[derive(Debug)]
pub struct Network {
    pub user: Option<OwnedFd>,
    pub network: OwnedFd,
}

/// Creates a network namespace with nothing but a loopback device that is down.
pub fn empty_network(with_user: bool) -> io::Result<Network> {
    fault::failpoint()?;
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let namespaces = libc::CLONE_NEWNET | if with_user { libc::CLONE_NEWUSER } else { 0 };
    let holder = fork_holder(namespaces, read.as_fd())?;
    let opened = open(holder, with_user);
    drop(write);
    let _reaped = crate::retry(|| rustix::process::waitpid(Pid::from_raw(holder), WaitOptions::empty()));
    opened
}

/// Forks a child into new namespaces. It exits at EOF on the pipe.
fn fork_holder(namespaces: i32, read: BorrowedFd<'_>) -> Result<i32> {
    let flags = (namespaces | libc::SIGCHLD) as libc::c_ulong;
    let none: *mut i32 = ptr::null_mut();
    // SAFETY: without CLONE_VM the child has its own copy of the memory and of the descriptor table. It makes system
    // calls only, below, and never returns.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, none, none, none, none) };
    match i32::try_from(pid) {
        Ok(0) => {
            // The child keeps no descriptor of its parent, neither a listening socket nor the write end of the pipe.
            let number = read.as_raw_fd().cast_unsigned();
            close_between(0, number);
            close_between(number + 1, u32::MAX);
            let _eof = rustix::io::read(read, &mut [0; 1]);
            // SAFETY: terminates this child without running exit handlers.
            unsafe { libc::_exit(0) }
        }
        Ok(pid) if pid > 0 => Ok(pid),
        _ => Err(last_errno()),
    }
}

/// Closes the descriptors from `first` up to but not including `end`.
fn close_between(first: u32, end: u32) {
    if first < end {
        // SAFETY: close_range takes numbers only. The caller is a forked child, which uses none of these descriptors.
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

/// The uid and gid maps of a new user namespace that maps this process's ids to themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdMaps {
    pub user: String,
    pub group: String,
}

pub fn id_maps() -> IdMaps {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    IdMaps { user: format!("{user} {user} 1"), group: format!("{group} {group} 1") }
}
