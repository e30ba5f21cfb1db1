//! The outer process and init, which stay behind a sandboxed command: what they hold, how they wait and how
//! they exit.
//!
//! They signal pids, not pidfds, because they have no descriptor but a pipe. There is no pid race: each has
//! one thread, signals only its own child, and does so only before it reaps it. The pid of an unreaped child
//! is not recycled. Init also signals every process of its own pid namespace at once.
#![allow(clippy::disallowed_methods, reason = "unreaped children of a single thread, see above")]

use super::calls::{self, Outcome};
use super::run::{Placeholder, Registers};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FlockOperation;
use rustix::process::{Pid, WaitOptions};
use rustix::thread::CapabilitySet;
use std::ffi::{c_int, c_uint};
use std::os::fd::RawFd;
use std::ptr;

/// How long init outlives its command, so that the exit report does not wait for the teardown of the
/// namespaces.
const EXIT_DELAY: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000 };

/// The outer process: waits for init and exits as the command exited.
pub(super) fn outer(init: c_int, status: RawFd, placeholders: &[Option<Placeholder<'_>>]) -> ! {
    let mut kept = [-1; 2 * super::PLACEHOLDERS_MAX + 1];
    let held = placeholders.iter().flatten().flat_map(|held| [held.parent, held.directory]);
    for (slot, fd) in kept.iter_mut().zip([status].into_iter().chain(held)) {
        *slot = fd;
    }
    // Enforcement does not depend on this close: the command is another process.
    let _closed = close_others(&mut kept);
    // Removing a placeholder in another user's directory needs the capability that its creation needed.
    let needs_override = placeholders.iter().any(Option::is_some);
    drop_privileges(if needs_override { CapabilitySet::DAC_OVERRIDE } else { CapabilitySet::empty() });
    // Init reports over a pipe: its own exit is visible only after its namespaces are torn down.
    calls::enable_sigio(status);
    let exit_status = loop {
        if let Some(exit_status) = read_exit_status(status) {
            break Some(exit_status);
        }
        if wait_for_signal().is_some_and(|info| has_exited(init, info)) {
            break read_exit_status(status);
        }
    };
    for placeholder in placeholders.iter().flatten() {
        // Usually the daemon still holds a lock. It then removes the directory itself.
        let _left = remove_unlocked(placeholder);
    }
    // EOF without a status: init was killed, and the command with it.
    exit_as(exit_status.unwrap_or(libc::SIGKILL))
}

/// Removes a placeholder if no other process holds a lock on it.
fn remove_unlocked(placeholder: &Placeholder<'_>) -> Outcome {
    calls::lock(placeholder.directory, FlockOperation::NonBlockingLockExclusive)?;
    let (parent, directory) = (calls::borrow(placeholder.parent)?, calls::borrow(placeholder.directory)?);
    calls::remove_placeholder(parent, placeholder.name, directory)
}

/// The wait(2) status of the command, if init has reported it.
fn read_exit_status(status: RawFd) -> Option<c_int> {
    let mut bytes = [0; 4];
    let read = rustix::io::read(calls::borrow(status).ok()?, &mut bytes);
    (read == Ok(4)).then_some(c_int::from_ne_bytes(bytes))
}

/// Drops init's privileges, unshares the descriptor table and sends the registers to the waiting command. If
/// this fails, the command gets EOF and exits.
pub(super) fn release_command(status: RawFd, view_ready: RawFd, registers: &Registers) -> Outcome {
    drop_privileges(CapabilitySet::empty());
    close_others(&mut [status, view_ready])?;
    let mut opened = [0; size_of::<Registers>()];
    opened.as_chunks_mut().0.iter_mut().zip(registers).for_each(|(bytes, fd)| *bytes = fd.to_ne_bytes());
    calls::write_all(view_ready, &opened)?;
    calls::close(view_ready);
    Ok(())
}

/// Init: reaps all processes of the namespace and exits after the command.
pub(super) fn init(command: c_int, status: RawFd) -> ! {
    // A change of capabilities may have cleared it.
    let _set = calls::set_killed_with_parent(true);
    loop {
        if let Some(info) = wait_for_signal() {
            forward(command, info);
        }
        while let Ok(Some((pid, exit_status))) = rustix::process::wait(WaitOptions::NOHANG) {
            if pid.as_raw_pid() == command {
                kill_remaining();
                let _reported = calls::write_all(status, &exit_status.as_raw().to_ne_bytes());
                delay_exit();
                exit(0);
            }
        }
    }
}

/// Kills the processes that the command left behind, before the outer process learns of the exit.
fn kill_remaining() {
    // SAFETY: kill takes numbers only. Pid -1 means all processes of our pid namespace but ourselves.
    unsafe { libc::kill(-1, libc::SIGKILL) };
}

/// Delays the exit of init. The teardown of the namespaces takes longer than many commands and competes for the CPU with
/// processes that react to the exit. The outer process may exit meanwhile.
fn delay_exit() {
    let _cleared = calls::set_killed_with_parent(false);
    // All signals are blocked, so nothing interrupts the sleep.
    let _slept = rustix::thread::nanosleep(&EXIT_DELAY);
}

/// Makes the kernel kill init when the outer process exits. Fails if it has exited already.
pub(super) fn die_with_outer(status: RawFd) -> Outcome {
    calls::set_killed_with_parent(true)?;
    let mut entries = [PollFd::from_borrowed_fd(calls::borrow(status)?, PollFlags::empty())];
    let _polled = rustix::event::poll(&mut entries, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    // Only the outer process has the read end.
    let [status] = entries;
    if status.revents().contains(PollFlags::ERR) { Err(libc::ECANCELED) } else { Ok(()) }
}

/// Makes this process undumpable and drops all capabilities but these.
fn drop_privileges(kept: CapabilitySet) {
    let _hidden = calls::set_undumpable();
    let _fixed = calls::set_no_new_privs();
    // An unprivileged process cannot keep even one.
    if kept.is_empty() || calls::set_capabilities(kept).is_err() {
        let _none = calls::set_capabilities(CapabilitySet::empty());
    }
}

/// Closes all descriptors but these. Other processes that share the table keep theirs.
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

/// A received signal.
struct SigInfo {
    number: c_int,
    code: c_int,
    pid: c_int,
}

/// Waits for a signal. All signals are blocked, so none is lost before the wait.
fn wait_for_signal() -> Option<SigInfo> {
    let all = u64::MAX;
    let mut fields = [0i32; 32];
    let forever: *const libc::timespec = ptr::null();
    let (set, into) = (&raw const all, fields.as_mut_ptr());
    // SAFETY: the kernel reads a set of 64 signals and writes at most the 128 bytes of `fields`.
    let number = unsafe { libc::syscall(libc::SYS_rt_sigtimedwait, set, into, forever, size_of::<u64>()) };
    let [_, _, code, _, pid, ..] = fields;
    (number > 0).then_some(SigInfo { number: number as c_int, code, pid })
}

/// Outer process: reaps init if it has exited. Forwards every other signal to init.
fn has_exited(init: c_int, info: SigInfo) -> bool {
    if info.number == libc::SIGIO && info.code > 0 {
        return false;
    }
    if info.number != libc::SIGCHLD {
        // SAFETY: kill takes numbers only. Init is our unreaped child, so the pid is still its own.
        unsafe { libc::kill(init, info.number) };
        return false;
    }
    let reaped = rustix::process::waitpid(Pid::from_raw(init), WaitOptions::NOHANG);
    reaped.is_ok_and(|exited| exited.is_some())
}

/// Init: forwards signals from outside of the namespace, whose sender has pid 0. Signals of the command are
/// ignored.
fn forward(command: c_int, info: SigInfo) {
    if info.number == libc::SIGCHLD || info.code > 0 || info.pid != 0 {
        return;
    }
    // Signals of terminals are for the group that the command leads. A sender outside cannot address that
    // group.
    let to_group = matches!(info.number, libc::SIGINT | libc::SIGQUIT | libc::SIGHUP);
    // SAFETY: kill takes numbers only. The command is our unreaped child, so both numbers are still its own.
    let sent = to_group && unsafe { libc::kill(-command, info.number) } == 0;
    if !sent {
        // SAFETY: as above.
        unsafe { libc::kill(command, info.number) };
    }
}

/// Exits with the same code or by the same signal.
fn exit_as(status: c_int) -> ! {
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        // Only this signal is unblocked: other pending signals must not become the exit cause.
        crate::signal::Set::full().without(signal).install();
        // SAFETY: kill takes numbers only. This process is not dumpable, so it leaves no core.
        unsafe { libc::kill(rustix::process::getpid().as_raw_pid(), signal) };
        exit(128 + signal);
    }
    exit(libc::WEXITSTATUS(status))
}

fn exit(code: c_int) -> ! {
    // SAFETY: terminates this process without running exit handlers.
    unsafe { libc::_exit(code) }
}
