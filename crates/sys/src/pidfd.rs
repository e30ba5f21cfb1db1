//! Processes by pidfd: signalling, reaping, exit status.
//!
//! [`Pidfd`] is the only type that can be signalled. Each of its constructors proves which process it refers
//! to, so a signal never reaches a process with a recycled pid.

use crate::identity::Identity;
use crate::signal::{Signal, last_errno};
use crate::{Errno, Result, fault, retry};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags};
use std::borrow::Borrow;
use std::os::fd::{AsRawFd, RawFd};

/// ExitCause a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitCause {
    Code(i32),
    Signal(i32),
    /// The process has exited and its status is lost.
    Unknown,
}

impl ExitCause {
    /// The signal that ended it, as `SIGTERM`, or its number if it has no name.
    pub fn signal_name(self) -> Option<String> {
        let ExitCause::Signal(number) = self else { return None };
        let name = Signal::from_number(number).and_then(Signal::name);
        Some(name.map_or_else(|| number.to_string(), |name| format!("SIG{}", name.trim_start_matches("SIG"))))
    }
}

/// ExitCause a process exited and what it used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    pub cause: ExitCause,
    pub user_ms: u32,
    pub system_ms: u32,
    pub rss_max_kb: u32,
}

impl Exit {
    pub const UNKNOWN: Exit = Exit::of(ExitCause::Unknown);

    const fn of(cause: ExitCause) -> Exit {
        Exit { cause, user_ms: 0, system_ms: 0, rss_max_kb: 0 }
    }

    /// From the status word of wait(2).
    pub(crate) fn from_status(status: i32) -> Exit {
        let cause = if libc::WIFSIGNALED(status) {
            ExitCause::Signal(libc::WTERMSIG(status))
        } else {
            ExitCause::Code(libc::WEXITSTATUS(status))
        };
        Exit::of(cause)
    }
}

/// A verified pidfd. It comes from the clone that created the process, from another Outpost process that
/// passed it on, or from a verified open ([`Identity::open`],
/// [`Group::open_member`](crate::cgroup::Group::open_member)).
#[derive(Debug)]
pub struct Pidfd {
    pid: i32,
    fd: OwnedFd,
}

impl Pidfd {
    /// The pidfd that a clone returned.
    pub(crate) fn cloned(pid: i32, fd: OwnedFd) -> Pidfd {
        Pidfd { pid, fd }
    }

    /// A pidfd that was passed over a socket or an exec by a process that had it from its clone. `pid` is 0
    /// when unknown.
    pub fn received(pid: i32, fd: OwnedFd) -> Pidfd {
        Pidfd { pid, fd }
    }

    /// The pidfd of this process.
    pub fn own() -> Result<Pidfd> {
        let pid = std::process::id().cast_signed();
        Ok(open(pid)?.verified(pid))
    }

    /// The pidfd of a child of the standard library; `ECHILD` when it has been reaped. The check follows the
    /// open: the pid of an unreaped child is not recycled.
    pub fn of_child(child: &std::process::Child) -> Result<Pidfd> {
        let pid = child.id().cast_signed();
        let opened = open(pid)?;
        match is_child(&opened) {
            true => Ok(opened.verified(pid)),
            false => Err(Errno::CHILD),
        }
    }

    /// The pid; 0 when unknown.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The identity of the process, to be recorded; `None` once it has been reaped.
    pub fn identity(&self) -> Option<Identity> {
        let stat = crate::procfs::stat(self.pid)?;
        // Still unreaped after the read, so the pid was its own during the read.
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

impl From<Pidfd> for OwnedFd {
    fn from(pidfd: Pidfd) -> OwnedFd {
        pidfd.fd
    }
}

/// A pidfd of whichever process had a pid. It can be waited for but not signalled.
#[derive(Debug)]
pub struct Unverified(OwnedFd);

impl Unverified {
    /// For a caller that has verified, after the open, that the pid belonged to the right process.
    pub(crate) fn verified(self, pid: i32) -> Pidfd {
        Pidfd { pid, fd: self.0 }
    }
}

impl AsFd for Unverified {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Opens whichever process has this pid now, to wait for its exit.
pub fn open(pid: i32) -> Result<Unverified> {
    fault::failpoint()?;
    // `Pid` panics on a negative number.
    let pid = Some(pid).filter(|pid| *pid > 0).and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK).map(Unverified)
}

/// Signals the process itself; `ESRCH` when it has been reaped.
pub fn signal(process: impl Borrow<Pidfd>, signal: Signal) -> Result<()> {
    fault::failpoint()?;
    send(process.borrow(), signal, 0)
}

/// Signals the process group that the process leads; `EINVAL` before Linux 6.9.
pub fn signal_group(process: impl Borrow<Pidfd>, signal: Signal) -> Result<()> {
    const PIDFD_SIGNAL_PROCESS_GROUP: libc::c_uint = 1 << 2;
    fault::failpoint()?;
    if fault::lacks_group_signals() {
        return Err(Errno::INVAL);
    }
    send(process.borrow(), signal, PIDFD_SIGNAL_PROCESS_GROUP)
}

fn send(pidfd: impl AsFd, signal: Signal, flags: libc::c_uint) -> Result<()> {
    let info: *const libc::siginfo_t = std::ptr::null();
    let fd = pidfd.as_fd().as_raw_fd();
    // SAFETY: a null siginfo makes the kernel fill in its own. The other arguments are numbers.
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal.number(), info, flags) };
    if sent == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Signals the process group that a child leads, also before Linux 6.9. `ECHILD` unless the process is an
/// unreaped child: only then is the group id still the child's. The caller must be the thread that reaps it.
pub fn signal_group_of_child(child: impl Borrow<Pidfd>, signal: Signal) -> Result<()> {
    let child = child.borrow();
    match signal_group(child, signal) {
        Err(Errno::INVAL) => {}
        sent => return sent,
    }
    // 0, 1 and negative numbers address other processes than one group.
    if child.pid <= 1 || !is_child(child) {
        return Err(Errno::CHILD);
    }
    fault::failpoint()?;
    #[allow(clippy::disallowed_methods, reason = "the group of an unreaped child")]
    // SAFETY: kill takes numbers only.
    if unsafe { libc::kill(-child.pid, signal.number()) } == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Which children to wait for.
#[derive(Clone, Copy)]
enum Selector {
    Any,
    Pid(i32),
    Pidfd(i32),
}

fn wait(selector: Selector, options: libc::c_int) -> Result<Option<(i32, Exit)>> {
    let (kind, id) = match selector {
        Selector::Any => (libc::P_ALL, 0),
        Selector::Pid(pid) => (libc::P_PID, pid),
        Selector::Pidfd(fd) => (libc::P_PIDFD, fd),
    };
    retry(|| {
        fault::failpoint()?;
        // SAFETY: plain data for which all zeroes is valid.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: plain data for which all zeroes is valid.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        let options = options | libc::WEXITED | libc::WNOHANG;
        // SAFETY: both pointers are to writable values of the types that the kernel fills. The rest are
        // numbers.
        let result = unsafe { libc::syscall(libc::SYS_waitid, kind, id, &mut info, options, &mut usage) };
        if result < 0 {
            return Err(last_errno());
        }
        // SAFETY: waitid has filled the SIGCHLD fields of the union, or left them zero when no child has
        // exited.
        let pid = unsafe { info.si_pid() };
        if pid == 0 {
            return Ok(None);
        }
        // SAFETY: as above.
        let status = unsafe { info.si_status() };
        let cause = if info.si_code == libc::CLD_EXITED {
            ExitCause::Code(status)
        } else {
            ExitCause::Signal(status)
        };
        let exit = Exit {
            cause,
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

/// Reaps this child if it has exited. `ECHILD` when it is not a child of this process.
pub fn reap(pidfd: impl AsFd) -> Result<Option<Exit>> {
    Ok(wait(Selector::Pidfd(pidfd.as_fd().as_raw_fd()), 0)?.map(|(_, exit)| exit))
}

/// Whether the process is an unreaped child of this process.
pub fn is_child(pidfd: impl AsFd) -> bool {
    wait(Selector::Pidfd(pidfd.as_fd().as_raw_fd()), libc::WNOWAIT).is_ok()
}

/// Reaps the child with this pid if it has exited.
pub fn reap_pid(pid: i32) -> Result<Option<Exit>> {
    Ok(wait(Selector::Pid(pid), 0)?.map(|(_, exit)| exit))
}

/// The pid of a zombie child, if any.
pub fn ended_child() -> Result<Option<i32>> {
    match wait(Selector::Any, libc::WNOWAIT) {
        Ok(child) => Ok(child.map(|(pid, _)| pid)),
        Err(Errno::CHILD) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// ExitCause a process exited that is not a child of this process. Its pidfd must be readable, that is, it must
/// have exited.
pub fn exit_of_non_child(pidfd: &Pidfd) -> Exit {
    // Between reaping and the kernel's exit record lie microseconds in which neither is available.
    const ATTEMPTS_MAX: u32 = 20;
    for _ in 0..ATTEMPTS_MAX {
        if let Some(exit) = recorded_exit(pidfd).or_else(|| exit_of_zombie(pidfd)) {
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

/// Whether the kernel keeps the exit status for holders of a pidfd (Linux 6.15).
pub fn records_exits() -> bool {
    let version = crate::kernel::version_in(&crate::kernel::release());
    // The ioctl is older than the exit status in it.
    version >= (6, 15) && open(std::process::id().cast_signed()).is_ok_and(|own| info(own).is_some())
}

/// The exit status that the kernel keeps for holders of a pidfd. It is available once the process is reaped.
pub fn recorded_exit(pidfd: impl AsFd) -> Option<Exit> {
    let info = info(pidfd).filter(|info| info.mask & PIDFD_INFO_EXIT != 0)?;
    Some(Exit::from_status(info.exit_code))
}

/// ExitCause a process exited that is not a child of this process and not reaped yet.
pub fn exit_of_zombie(pidfd: &Pidfd) -> Option<Exit> {
    let stat = crate::procfs::stat(pidfd.pid)?;
    // Still unreaped after the read, so the pid was its own during the read.
    (stat.state == b'Z' && signal_zero(pidfd)).then(|| Exit::from_status(stat.exit_code))
}

/// Whether the process exists, possibly as a zombie.
fn signal_zero(pidfd: impl AsFd) -> bool {
    let info: *const libc::siginfo_t = std::ptr::null();
    let fd = pidfd.as_fd().as_raw_fd();
    // SAFETY: a null siginfo makes the kernel fill in its own. Signal 0 only checks for existence.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, 0, info, 0) == 0 }
}
