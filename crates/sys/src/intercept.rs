//! System calls of one program that wait for the answer of another, by seccomp's user notification. Tests delay calls with it.

use crate::{Errno, Result, confine, retry};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::{AsRawFd, OwnedFd};

/// A call that waits.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    id: u64,
    /// The thread that makes it.
    pub pid: u32,
    pub number: i32,
    pub arguments: [u64; 6],
}

/// Filters the system calls of this thread and of all that it starts, as [`confine::filter_own_calls`] does. Calls for
/// which the filter returns SECCOMP_RET_USER_NOTIF wait until another process lets them through, with the returned
/// descriptor.
pub fn hand_over_own_calls(instructions: &[u8]) -> Result<OwnedFd> {
    confine::hand_over_own_calls(instructions)
}

/// Waits for the next call. `ENOENT` when its thread has ended meanwhile, `ENOTCONN` when no thread has the filter any
/// more: the kernel reports a hang-up then, and a receive fails with `ENOENT` at once.
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
    // SAFETY: the kernel writes one struct of this size, which outlives the call.
    let done = unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut call) };
    match done {
        0 => Ok(Call { id: call.id, pid: call.pid, number: call.data.nr, arguments: call.data.args }),
        _ => Err(last_error()),
    }
}

/// Has the kernel carry out a call as if there were no filter. `ENOENT` when its thread has ended or was interrupted.
pub fn let_through(listener: &OwnedFd, call: &Call) -> Result<()> {
    let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
    let answer = libc::seccomp_notif_resp { id: call.id, val: 0, error: 0, flags };
    // SAFETY: the kernel reads one struct of this size, which outlives the call.
    let done =
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer) };
    if done == 0 { Ok(()) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
