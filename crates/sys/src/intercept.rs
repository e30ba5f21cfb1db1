//! Delays system calls of another process, by seccomp's user notification. Only tests use it.

use crate::signal::last_errno;
use crate::{Errno, Result, confine, retry};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::{AsRawFd, OwnedFd};

/// An intercepted call that is blocked until [`let_through`].
#[derive(Clone, Copy, Debug)]
pub struct Call {
    id: u64,
    /// The calling thread.
    pub pid: u32,
    pub number: i32,
    pub arguments: [u64; 6],
}

/// Filters the system calls of this thread and its descendants, as [`confine::filter_own_calls`] does. A call
/// for which the filter returns SECCOMP_RET_USER_NOTIF blocks until the holder of the returned listener lets
/// it through.
pub fn intercept_own_calls(instructions: &[u8]) -> Result<OwnedFd> {
    confine::intercept_own_calls(instructions)
}

/// Waits for the next call. `ENOENT` when its thread has exited meanwhile. `ENOTCONN` when no thread has the
/// filter any more: the listener then reports a hang-up, and a receive would fail with `ENOENT` at once.
pub fn receive(listener: &OwnedFd) -> Result<Call> {
    let mut entries = [PollFd::new(listener, PollFlags::IN)];
    retry(|| poll(&mut entries, None))?;
    if !entries[0].revents().contains(PollFlags::IN) {
        return Err(Errno::NOTCONN);
    }
    let mut call = libc::seccomp_notif {
        id: 0,
        pid: 0,
        flags: 0,
        data: libc::seccomp_data { nr: 0, arch: 0, instruction_pointer: 0, args: [0; 6] },
    };
    // SAFETY: the kernel writes one struct of this size, which is live and writable during the call.
    let done = unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut call) };
    match done {
        0 => Ok(Call { id: call.id, pid: call.pid, number: call.data.nr, arguments: call.data.args }),
        _ => Err(last_errno()),
    }
}

/// Makes the kernel execute the call as if there were no filter. `ENOENT` when the thread has exited or was
/// interrupted.
pub fn let_through(listener: &OwnedFd, call: &Call) -> Result<()> {
    let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
    let answer = libc::seccomp_notif_resp { id: call.id, val: 0, error: 0, flags };
    // SAFETY: the kernel reads one struct of this size, which is live during the call.
    let done =
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer) };
    if done == 0 { Ok(()) } else { Err(last_errno()) }
}
