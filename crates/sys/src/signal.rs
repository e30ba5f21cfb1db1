//! Signals: names, masks, signalfd, dispositions.

use crate::{Errno, Result, fault};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A signal by number, 1 to 64.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Signal(i32);

impl Signal {
    pub const HUP: Signal = Signal(libc::SIGHUP);
    pub const INT: Signal = Signal(libc::SIGINT);
    pub const QUIT: Signal = Signal(libc::SIGQUIT);
    pub const PIPE: Signal = Signal(libc::SIGPIPE);
    pub const KILL: Signal = Signal(libc::SIGKILL);
    pub const TERM: Signal = Signal(libc::SIGTERM);
    pub const CHLD: Signal = Signal(libc::SIGCHLD);
    pub const STOP: Signal = Signal(libc::SIGSTOP);
    pub const CONT: Signal = Signal(libc::SIGCONT);

    /// `None` outside 1 to 64.
    pub fn from_number(number: i32) -> Option<Signal> {
        (1..=64).contains(&number).then_some(Signal(number))
    }

    /// By its name, with or without `SIG`, in any case.
    pub fn from_name(name: &str) -> Option<Signal> {
        let upper = name.to_ascii_uppercase();
        let bare = upper.strip_prefix("SIG").unwrap_or(&upper);
        NAMES.iter().find(|(known, _)| *known == bare).map(|(_, number)| Signal(*number))
    }

    /// `KILL`, `TERM`, …; `None` for real-time signals.
    pub fn name(self) -> Option<&'static str> {
        NAMES.iter().find(|(_, number)| *number == self.0).map(|(name, _)| *name)
    }

    pub fn number(self) -> i32 {
        self.0
    }
}

impl std::fmt::Debug for Signal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => write!(f, "SIG{name}"),
            None => write!(f, "signal {}", self.0),
        }
    }
}

const NAMES: &[(&str, i32)] = &[
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("ILL", libc::SIGILL),
    ("TRAP", libc::SIGTRAP),
    ("ABRT", libc::SIGABRT),
    ("BUS", libc::SIGBUS),
    ("FPE", libc::SIGFPE),
    ("KILL", libc::SIGKILL),
    ("USR1", libc::SIGUSR1),
    ("SEGV", libc::SIGSEGV),
    ("USR2", libc::SIGUSR2),
    ("PIPE", libc::SIGPIPE),
    ("ALRM", libc::SIGALRM),
    ("TERM", libc::SIGTERM),
    ("STKFLT", libc::SIGSTKFLT),
    ("CHLD", libc::SIGCHLD),
    ("CONT", libc::SIGCONT),
    ("STOP", libc::SIGSTOP),
    ("TSTP", libc::SIGTSTP),
    ("TTIN", libc::SIGTTIN),
    ("TTOU", libc::SIGTTOU),
    ("URG", libc::SIGURG),
    ("XCPU", libc::SIGXCPU),
    ("XFSZ", libc::SIGXFSZ),
    ("VTALRM", libc::SIGVTALRM),
    ("PROF", libc::SIGPROF),
    ("WINCH", libc::SIGWINCH),
    ("IO", libc::SIGIO),
    ("PWR", libc::SIGPWR),
    ("SYS", libc::SIGSYS),
];

/// A set of signals.
#[derive(Clone, Copy)]
pub(crate) struct Set(libc::sigset_t);

impl Set {
    pub(crate) fn of(signals: &[Signal]) -> Set {
        let mut set = MaybeUninit::uninit();
        // SAFETY: sigemptyset initialises the whole set it is pointed to.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // SAFETY: initialised by the call above.
        let mut set = unsafe { set.assume_init() };
        for signal in signals {
            // SAFETY: the set is initialised. An invalid number is refused and changes nothing.
            unsafe { libc::sigaddset(&mut set, signal.0) };
        }
        Set(set)
    }

    pub(crate) fn full() -> Set {
        let mut set = MaybeUninit::uninit();
        // SAFETY: sigfillset initialises the whole set it is pointed to.
        unsafe { libc::sigfillset(set.as_mut_ptr()) };
        // SAFETY: initialised by the call above.
        Set(unsafe { set.assume_init() })
    }

    /// The set without one signal.
    pub(crate) fn without(mut self, signal: i32) -> Set {
        // SAFETY: the set is initialised. An invalid number is refused and changes nothing.
        unsafe { libc::sigdelset(&mut self.0, signal) };
        self
    }

    /// Makes this the calling thread's mask. Returns the previous mask.
    pub(crate) fn install(&self) -> Set {
        let mut before = Set::of(&[]);
        // SAFETY: both pointers are to initialised sets that outlive the call.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, &mut before.0) };
        before
    }
}

/// Pending signals of this process as a readable descriptor. Create it before any other thread: threads
/// inherit the blocked mask.
pub struct SignalFd {
    fd: OwnedFd,
}

impl SignalFd {
    pub fn new(signals: &[Signal]) -> Result<SignalFd> {
        fault::failpoint()?;
        let set = Set::of(signals);
        // SAFETY: the set is initialised; a null third argument asks for no copy of the old mask.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set.0, std::ptr::null_mut()) };
        // SAFETY: the set is initialised; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &set.0, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(last_errno());
        }
        // SAFETY: signalfd has just returned this descriptor, so nothing else owns it.
        Ok(SignalFd { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Unblocks the signals in this thread. A pending one is delivered.
    pub fn release(self, signals: &[Signal]) {
        let set = Set::of(signals);
        // SAFETY: the set is initialised; a null third argument asks for no copy of the old mask.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set.0, std::ptr::null_mut()) };
    }

    /// The next pending signal, if any.
    pub fn next(&self) -> Option<Signal> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer is `size` bytes and writable; the kernel writes whole records only.
        let read = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if usize::try_from(read) != Ok(size) {
            return None;
        }
        // SAFETY: plain data without invalid bit patterns, zeroed before and filled by the kernel.
        let info = unsafe { info.assume_init() };
        Signal::from_number(info.ssi_signo.cast_signed())
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Makes writes to closed pipes fail with `EPIPE` instead of killing this process.
pub fn ignore_sigpipe() {
    // SAFETY: SIG_IGN is a valid disposition and installs no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// Whether this process ignores a signal, because its parent made it so, as nohup(1) does.
pub fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    ignored >> (signal.0 - 1) & 1 == 1
}

/// Kills this process with a signal, so that its parent sees that signal as the exit cause.
pub fn exit_by_signal(signal: Signal) -> ! {
    default_dispositions();
    Set::of(&[]).install();
    // SAFETY: raise takes a number only.
    unsafe { libc::raise(signal.0) };
    // The signal does not terminate a process by default.
    std::process::exit(128 + signal.0)
}

/// Resets all signals to their default disposition. Async-signal-safe, for a child between clone and exec.
pub(crate) fn default_dispositions() {
    // The raw call, because glibc's sigaction takes a lock for SIGABRT since 2.41 and refuses the two signals
    // that glibc reserves. A zeroed struct is the default disposition without flags.
    let action = [0u64; 4];
    let before: *mut u64 = std::ptr::null_mut();
    for signal in 1..=64 {
        // SAFETY: the action is at least as long as the kernel's struct and is live during the call. A null
        // pointer requests no copy of the old action. SIGKILL and SIGSTOP are refused, which changes nothing.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, action.as_ptr(), before, size_of::<u64>()) };
    }
}

pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
