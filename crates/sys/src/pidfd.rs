//! Processes by pidfd: how they are signalled, reaped and waited for.
//!
//! [`Pidfd`] is the only type that can be signalled. Each of its constructors proves which process it is of, so a signal never
//! reaches a process that got a recycled pid.

use crate::identity::Identity;
use crate::signal::{Signal, last_errno};
use crate::{Errno, Result, fault, retry};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags};
use std::borrow::Borrow;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Code(i32),
    Signal(i32),
    /// It is gone, and nobody who was told how still lives.
    Unknown,
}

impl How {
    /// The signal that ended it, as `SIGTERM`, or its number where it has no name.
    pub fn signal_name(self) -> Option<String> {
        let How::Signal(number) = self else { return None };
        let name = Signal::from_number(number).and_then(Signal::name);
        Some(name.map_or_else(|| number.to_string(), |name| format!("SIG{}", name.trim_start_matches("SIG"))))
    }
}

/// How a process ended and what it used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    pub how: How,
    pub user_ms: u32,
    pub system_ms: u32,
    pub rss_max_kb: u32,
}

impl Exit {
    pub const UNKNOWN: Exit = Exit::of(How::Unknown);

    const fn of(how: How) -> Exit {
        Exit { how, user_ms: 0, system_ms: 0, rss_max_kb: 0 }
    }

    /// From the status word of wait(2).
    pub(crate) fn from_status(status: i32) -> Exit {
        let how = if libc::WIFSIGNALED(status) {
            How::Signal(libc::WTERMSIG(status))
        } else {
            How::Code(libc::WEXITSTATUS(status))
        };
        Exit::of(how)
    }
}

/// One process, which it is known to be of. It comes from the clone that made the process, from another process of ours that
/// passed it on, or from an open that was verified ([`Identity::open`], [`Group::open_member`](crate::cgroup::Group::open_member)).
#[derive(Debug)]
pub struct Pidfd {
    pid: i32,
    fd: OwnedFd,
}

impl Pidfd {
    /// Of a child that was just cloned.
    pub(crate) fn cloned(pid: i32, fd: OwnedFd) -> Pidfd {
        Pidfd { pid, fd }
    }

    /// A pidfd that was passed to this process over a socket or an exec, by a process that had it from its clone. `pid` is 0
    /// when not known.
    pub fn received(pid: i32, fd: OwnedFd) -> Pidfd {
        Pidfd { pid, fd }
    }

    /// Of this process.
    pub fn own() -> Result<Pidfd> {
        let pid = std::process::id().cast_signed();
        Ok(open(pid)?.verified(pid))
    }

    /// Of a child of the standard library's; `ECHILD` when it has been reaped. Checked after the open: a pid is not recycled
    /// while its process is a child that nothing has reaped.
    pub fn of_child(child: &std::process::Child) -> Result<Pidfd> {
        let pid = child.id().cast_signed();
        let opened = open(pid)?;
        match is_child(&opened) {
            true => Ok(opened.verified(pid)),
            false => Err(Errno::CHILD),
        }
    }

    /// The kernel's number of the process; 0 when not known.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The identity of the process, for a record; `None` once it has been reaped.
    pub fn identity(&self) -> Option<Identity> {
        let stat = crate::procfs::stat(self.pid)?;
        // Not reaped after the look, so the pid was its own when it was read.
        signal_zero(self).then(|| Identity::of(&stat))
    }
}

impl AsFd for Pidfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Pidfd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl IntoRawFd for Pidfd {
    fn into_raw_fd(self) -> RawFd {
        self.fd.into_raw_fd()
    }
}

/// A pidfd of whichever process had a number. It can be waited for and cannot be signalled.
#[derive(Debug)]
pub struct Unverified(OwnedFd);

impl Unverified {
    /// For who has found out, after the open, that the number was the right process's.
    pub(crate) fn verified(self, pid: i32) -> Pidfd {
        Pidfd { pid, fd: self.0 }
    }
}

impl AsFd for Unverified {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Opens whichever process has this number now, to wait for its end.
pub fn open(pid: i32) -> Result<Unverified> {
    fault::gate()?;
    // `Pid` takes a negative number for a broken promise of its caller and panics.
    let pid = Some(pid).filter(|pid| *pid > 0).and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK).map(Unverified)
}

/// Signals the process itself; `ESRCH` when it has been reaped.
pub fn signal(process: impl Borrow<Pidfd>, signal: Signal) -> Result<()> {
    fault::gate()?;
    send(process.borrow(), signal, 0)
}

/// Signals the process group the process leads; `EINVAL` where the kernel cannot (before 6.9).
pub fn signal_group(process: impl Borrow<Pidfd>, signal: Signal) -> Result<()> {
    const PIDFD_SIGNAL_PROCESS_GROUP: libc::c_uint = 1 << 2;
    fault::gate()?;
    if fault::lacks_group_signals() {
        return Err(Errno::INVAL);
    }
    send(process.borrow(), signal, PIDFD_SIGNAL_PROCESS_GROUP)
}

fn send(pidfd: impl AsFd, signal: Signal, flags: libc::c_uint) -> Result<()> {
    let info: *const libc::siginfo_t = std::ptr::null();
    let fd = pidfd.as_fd().as_raw_fd();
    // SAFETY: a null siginfo asks the kernel to fill in its own; the other arguments are plain numbers.
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal.number(), info, flags) };
    if sent == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Signals the process group that a child leads, also before Linux 6.9. `ECHILD` unless the process is a child of ours that is
/// not reaped: only then is the number of the group still the child's. The caller must be the one that reaps it.
pub fn signal_group_of_child(child: impl Borrow<Pidfd>, signal: Signal) -> Result<()> {
    let child = child.borrow();
    match signal_group(child, signal) {
        Err(Errno::INVAL) => {}
        sent => return sent,
    }
    // 0, 1 and negative numbers would mean other things than one group.
    if child.pid <= 1 || !is_child(child) {
        return Err(Errno::CHILD);
    }
    fault::gate()?;
    #[allow(clippy::disallowed_methods, reason = "the group of an unreaped child")]
    // SAFETY: plain numbers.
    if unsafe { libc::kill(-child.pid, signal.number()) } == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Whose children to reap.
#[derive(Clone, Copy)]
enum Whom {
    Any,
    Pid(i32),
    Pidfd(i32),
}

fn wait(whom: Whom, options: libc::c_int) -> Result<Option<(i32, Exit)>> {
    let (kind, id) = match whom {
        Whom::Any => (libc::P_ALL, 0),
        Whom::Pid(pid) => (libc::P_PID, pid),
        Whom::Pidfd(fd) => (libc::P_PIDFD, fd),
    };
    retry(|| {
        fault::gate()?;
        // SAFETY: plain data for which all zeroes is valid.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: plain data for which all zeroes is valid.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        let options = options | libc::WEXITED | libc::WNOHANG;
        // SAFETY: both pointers are to writable values of the types the kernel fills; the rest are numbers.
        let result = unsafe { libc::syscall(libc::SYS_waitid, kind, id, &mut info, options, &mut usage) };
        if result < 0 {
            return Err(last_errno());
        }
        // SAFETY: waitid filled the child part of the union, or left it zero when nobody has ended.
        let pid = unsafe { info.si_pid() };
        if pid == 0 {
            return Ok(None);
        }
        // SAFETY: as above.
        let status = unsafe { info.si_status() };
        let how = if info.si_code == libc::CLD_EXITED { How::Code(status) } else { How::Signal(status) };
        let exit = Exit {
            how,
            user_ms: milliseconds(usage.ru_utime),
            system_ms: milliseconds(usage.ru_stime),
            rss_max_kb: u32::try_from(usage.ru_maxrss).unwrap_or(u32::MAX),
        };
        Ok(Some((pid, exit)))
    })
}

fn milliseconds(time: libc::timeval) -> u32 {
    u32::try_from(time.tv_sec.saturating_mul(1000).saturating_add(time.tv_usec / 1000)).unwrap_or(u32::MAX)
}

/// Reaps this child if it has ended. `ECHILD` when it is not ours.
pub fn reap(pidfd: impl AsFd) -> Result<Option<Exit>> {
    Ok(wait(Whom::Pidfd(pidfd.as_fd().as_raw_fd()), 0)?.map(|(_, exit)| exit))
}

/// Whether the process is a child of ours that we have not reaped.
pub fn is_child(pidfd: impl AsFd) -> bool {
    wait(Whom::Pidfd(pidfd.as_fd().as_raw_fd()), libc::WNOWAIT).is_ok()
}

/// Reaps the child of this number if it has ended.
pub fn reap_pid(pid: i32) -> Result<Option<Exit>> {
    Ok(wait(Whom::Pid(pid), 0)?.map(|(_, exit)| exit))
}

/// The number of a child that has ended and waits to be reaped, if any.
pub fn ended_child() -> Result<Option<i32>> {
    match wait(Whom::Any, libc::WNOWAIT) {
        Ok(child) => Ok(child.map(|(pid, _)| pid)),
        Err(Errno::CHILD) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// How a process ended that is not our child. The pidfd must be readable, that is, the process must have ended.
pub fn exit_of_stranger(pidfd: &Pidfd) -> Exit {
    // While it is being reaped it is no zombie any more and the note is not written yet: a matter of microseconds.
    const LOOKS_MAX: u32 = 20;
    for _ in 0..LOOKS_MAX {
        if let Some(exit) = exit_note(pidfd).or_else(|| exit_of_zombie(pidfd)) {
            return exit;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Exit::UNKNOWN
}

#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup_id: u64,
    ids: [u32; 11],
    exit_code: i32,
}

const PIDFD_INFO_EXIT: u64 = 1 << 3;

fn info(pidfd: impl AsFd) -> Option<PidfdInfo> {
    const PIDFD_GET_INFO: libc::c_ulong = 0xC040_FF0B;
    let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..PidfdInfo::default() };
    // SAFETY: the request number encodes the size of the struct, which is 64 bytes, writable and plain data.
    let result = unsafe { libc::ioctl(pidfd.as_fd().as_raw_fd(), PIDFD_GET_INFO, &mut info) };
    (result == 0).then_some(info)
}

/// Whether the kernel notes exits of processes for holders of their pidfds (Linux 6.15).
pub fn notes_exits() -> bool {
    let version = crate::kernel::version_in(&crate::kernel::release());
    // The ioctl came two versions before the note.
    version >= (6, 15) && open(std::process::id().cast_signed()).is_ok_and(|own| info(own).is_some())
}

/// How a process ended that is not our child, from the kernel's note. The note is written when the process is reaped.
pub fn exit_note(pidfd: impl AsFd) -> Option<Exit> {
    let info = info(pidfd).filter(|info| info.mask & PIDFD_INFO_EXIT != 0)?;
    Some(Exit::from_status(info.exit_code))
}

/// How a process ended that is not our child and that its parent has not reaped yet.
pub fn exit_of_zombie(pidfd: &Pidfd) -> Option<Exit> {
    let stat = crate::procfs::stat(pidfd.pid)?;
    // Still unreaped after the look, so the number was its own all the while.
    (stat.state == b'Z' && signal_zero(pidfd)).then(|| Exit::from_status(stat.exit_code))
}

/// Whether the process exists, be it as a zombie.
fn signal_zero(pidfd: impl AsFd) -> bool {
    let info: *const libc::siginfo_t = std::ptr::null();
    let fd = pidfd.as_fd().as_raw_fd();
    // SAFETY: as in `send`; signal 0 only checks.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, 0, info, 0) == 0 }
}
