//! The two processes that stay behind a confined command: what they keep, how they wait and how they end.
//!
//! They signal pids, not pidfds: they have no descriptor but a pipe. That is safe, because each has one thread, signals only
//! its own child, and signals it only before it reaps it. The pid of an unreaped child is not recycled. Init also signals
//! every process of its own pid namespace at once.
#![allow(clippy::disallowed_methods, reason = "unreaped children of a single thread, see above")]

use super::calls::{self, Outcome};
use super::run::{Lease, Registers};
use std::ffi::{c_int, c_uint};
use std::os::fd::RawFd;
use std::ptr;

/// How long init outlives its command: until that has been told, and not until whoever clears up comes along.
const LINGER_NS: libc::c_long = 500_000;

const CAP_DAC_OVERRIDE: u32 = 1 << 1;

/// Waits for init and ends as the command ended.
pub(super) fn outer(init: c_int, status: RawFd, leases: &[Option<Lease<'_>>]) -> ! {
    let mut kept = [-1; 2 * super::LEASES_MAX + 1];
    let ours = leases.iter().flatten().flat_map(|lease| [lease.parent, lease.directory]);
    for (slot, fd) in kept.iter_mut().zip([status].into_iter().chain(ours)) {
        *slot = fd;
    }
    // Nothing that a policy says depends on it here: the command is another process.
    let _closed = close_others(&mut kept);
    // Removing a lease in somebody else's directory needs what making it needed.
    let needed = if leases.iter().any(Option::is_some) { CAP_DAC_OVERRIDE } else { 0 };
    withdraw(needed);
    // Told over a pipe: by its end init would tell only when its namespaces are taken down.
    calls::signal_when_readable(status);
    let how = loop {
        if let Some(how) = told(status) {
            break Some(how);
        }
        if wait_for_signal().is_some_and(|signal| has_ended(init, signal)) {
            break told(status);
        }
    };
    for lease in leases.iter().flatten() {
        // The daemon's own lock is the rule: it then removes the directory itself.
        if calls::lock(lease.directory, libc::LOCK_EX | libc::LOCK_NB).is_ok() {
            let _left = calls::remove_if_same(lease.parent, lease.name, lease.directory);
        }
    }
    // Without a word from init it was killed, and with it the command.
    end_as(how.unwrap_or(libc::SIGKILL))
}

/// How the command ended, if init has said so.
fn told(status: RawFd) -> Option<c_int> {
    let mut bytes = [0; 4];
    // SAFETY: the buffer is valid for its length.
    let read = unsafe { libc::read(status, bytes.as_mut_ptr().cast(), bytes.len()) };
    (read == 4).then_some(c_int::from_ne_bytes(bytes))
}

/// Lets the command go on, with what init has opened for it and alone. One that is not told ends with init.
pub(super) fn release(status: RawFd, tell: RawFd, registers: &Registers) -> Outcome {
    withdraw(0);
    close_others(&mut [status, tell])?;
    let mut opened = [0; size_of::<Registers>()];
    opened.as_chunks_mut().0.iter_mut().zip(registers).for_each(|(bytes, fd)| *bytes = fd.to_ne_bytes());
    calls::write_all(tell, &opened)?;
    calls::close(tell);
    Ok(())
}

/// Reaps everything and ends with the command.
pub(super) fn init(command: c_int, status: RawFd) -> ! {
    // Setting capabilities may have cleared it.
    let _set = calls::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0);
    loop {
        if let Some(came) = wait_for_signal() {
            forward(command, came);
        }
        loop {
            let mut how = 0;
            // SAFETY: room for the status.
            let ended = unsafe { libc::waitpid(-1, &mut how, libc::WNOHANG) };
            if ended == command {
                end_rest();
                let _told = calls::write_all(status, &how.to_ne_bytes());
                linger();
                exit(0);
            }
            if ended <= 0 {
                break;
            }
        }
    }
}

/// Ends whoever the command has left behind, before anybody hears that it has ended.
fn end_rest() {
    // SAFETY: a plain call. All but ourselves, and only in our pid namespace.
    unsafe { libc::kill(-1, libc::SIGKILL) };
}

/// Taking down the namespaces takes longer than many a command, and nobody waits for it: so those go first whom somebody
/// waits for. Whoever has no time for that kills us.
fn linger() {
    let _alone = calls::prctl(libc::PR_SET_PDEATHSIG, 0, 0);
    let time = libc::timespec { tv_sec: 0, tv_nsec: LINGER_NS };
    // SAFETY: a valid time, and nothing is asked about the rest of it. Signals are blocked.
    unsafe { libc::nanosleep(&time, ptr::null_mut()) };
}

/// Has the kernel kill us when the outer process ends, also if it has already.
pub(super) fn die_with_outer(status: RawFd) -> Outcome {
    calls::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0)?;
    let mut poll = libc::pollfd { fd: status, events: 0, revents: 0 };
    // SAFETY: one initialised struct.
    unsafe { libc::poll(&mut poll, 1, 0) };
    // Only the outer process has the other end.
    if poll.revents & libc::POLLERR == 0 { Ok(()) } else { Err(libc::ECANCELED) }
}

/// Nothing of ours is to be read or driven by anybody, and nothing more than needed can be done by us.
fn withdraw(capabilities: u32) {
    let _hidden = calls::prctl(libc::PR_SET_DUMPABLE, 0, 0);
    let _fixed = calls::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0);
    // Without any (an ordinary user) even one cannot be asked for.
    if capabilities == 0 || calls::set_capabilities(capabilities).is_err() {
        let _none = calls::set_capabilities(0);
    }
}

/// Closes all descriptors but these.
fn close_others(kept: &mut [RawFd]) -> Outcome {
    kept.sort_unstable();
    let mut first = 0;
    for fd in kept.iter().copied().filter(|fd| *fd >= 0) {
        if fd > first {
            calls::close_range(first, (fd - 1).cast_unsigned())?;
        }
        first = fd + 1;
    }
    calls::close_range(first, c_uint::MAX)
}

/// A signal that has come.
struct Came {
    number: c_int,
    code: c_int,
    pid: c_int,
}

/// All signals are blocked, so that none is lost between looking and waiting.
fn wait_for_signal() -> Option<Came> {
    let all = u64::MAX;
    let mut info = [0i32; 32];
    let forever: *const libc::timespec = ptr::null();
    let (set, into) = (&raw const all, info.as_mut_ptr());
    // SAFETY: the kernel's set of 64 signals and room for its 128 bytes of information.
    let number = unsafe { libc::syscall(libc::SYS_rt_sigtimedwait, set, into, forever, size_of::<u64>()) };
    let [_, _, code, _, pid, ..] = info;
    (number > 0).then_some(Came { number: number as c_int, code, pid })
}

/// Outer: whether init has ended; other signals are meant for the command.
fn has_ended(init: c_int, came: Came) -> bool {
    if came.number == libc::SIGIO && came.code > 0 {
        return false;
    }
    if came.number != libc::SIGCHLD {
        // SAFETY: plain numbers; init is our child and not reaped.
        unsafe { libc::kill(init, came.number) };
        return false;
    }
    // SAFETY: a null pointer asks for no status: its own end says nothing.
    unsafe { libc::waitpid(init, ptr::null_mut(), libc::WNOHANG) == init }
}

/// Init: passes on what comes from outside, which has no number here. The command gains nothing by signalling us.
fn forward(command: c_int, came: Came) {
    if came.number == libc::SIGCHLD || came.code > 0 || came.pid != 0 {
        return;
    }
    // What terminals send is for the group, which the command leads: nobody outside can name that one without naming us.
    let to_group = matches!(came.number, libc::SIGINT | libc::SIGQUIT | libc::SIGHUP);
    // SAFETY: plain numbers; the command is our child and not reaped, so both are still its own.
    let sent = to_group && unsafe { libc::kill(-command, came.number) } == 0;
    if !sent {
        // SAFETY: as above.
        unsafe { libc::kill(command, came.number) };
    }
}

/// Ends with the same exit code or by the same signal.
fn end_as(how: c_int) -> ! {
    if libc::WIFSIGNALED(how) {
        let signal = libc::WTERMSIG(how);
        // No other: what else may have come meanwhile does not say how the command ended.
        crate::signal::Set::full().without(signal).install();
        // SAFETY: a plain call on this process, which is not dumpable: no core is left.
        unsafe { libc::kill(rustix::process::getpid().as_raw_pid(), signal) };
        exit(128 + signal);
    }
    exit(libc::WEXITSTATUS(how))
}

fn exit(code: c_int) -> ! {
    // SAFETY: ends this process only, without running any exit handlers.
    unsafe { libc::_exit(code) }
}
