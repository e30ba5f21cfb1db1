//! The child's side of a start: everything between clone and exec, with system calls only.
//!
//! The child may share its parent's memory. So no code here allocates, locks, panics or calls a function of the C
//! library that sets `errno`. [`confine`] and [`credentials`] do the last; a child that uses them has memory of its
//! own.

use super::plan::{OwnFds, Plan, Privileges};
use super::{DESCRIPTORS_MAX, ExecStatusPipe, ResourceLimit, SessionKind, Step, raw};
use crate::{confine, credentials};
use std::convert::Infallible;
use std::ffi::{CStr, c_int, c_long};
use std::os::fd::RawFd;

/// The step, the error, and for a confinement the number of its operation.
type Stop = (Step, c_int, u16);
type Outcome<T = ()> = std::result::Result<T, Stop>;

/// Executes the program, or reports the failed step and exits.
pub(super) fn run(plan: &Plan, privileges: Privileges<'_>, join_cgroup: bool) -> ! {
    let mut status = plan.own.status;
    let Err((step, errno, operation)) = execute_plan(plan, privileges, join_cgroup, &mut status);
    let mut bytes = [0; ExecStatusPipe::BYTES];
    bytes[0] = step as u8;
    bytes[2..4].copy_from_slice(&operation.to_ne_bytes());
    bytes[4..].copy_from_slice(&errno.to_ne_bytes());
    // SAFETY: the buffer is valid for its length. If the parent is gone, the report has no reader.
    let _reported =
        unsafe { raw::call(libc::SYS_write, [fd(status), address(&bytes), bytes.len(), 0, 0, 0]) };
    loop {
        // SAFETY: ends this process only, without the parent's exit handlers.
        let _never_returns = unsafe { raw::call(libc::SYS_exit_group, [127, 0, 0, 0, 0, 0]) };
    }
}

fn execute_plan(
    plan: &Plan,
    privileges: Privileges<'_>,
    join_cgroup: bool,
    status: &mut RawFd,
) -> Outcome<Infallible> {
    default_dispositions();
    if let Some(cgroup) = plan.cgroup.filter(|_| join_cgroup) {
        write_once(Step::Cgroup, cgroup, c"cgroup.procs", b"0")?;
    }
    enter_session(plan.session)?;
    set_oom_score(plan.oom_score);
    let own = place_descriptors(plan, status)?;
    if let Some(credentials) = privileges.credentials {
        // Limits first: an unprivileged user could not raise them.
        set_limits(&plan.limits)?;
        credentials::assume(credentials).map_err(|errno| (Step::Credentials, errno, 0))?;
    }
    // Only now that the parent's descriptors are closed: a file system that does not answer may block the child here.
    if let Some(directory) = own.directory {
        call(Step::Directory, libc::SYS_fchdir, [fd(directory), 0, 0])?;
    }
    let confined = match privileges.confinement {
        Some(program) => Some(confine(program, plan)?),
        None => {
            take_terminal(plan.session)?;
            if privileges.credentials.is_none() {
                set_limits(&plan.limits)?;
            }
            None
        }
    };
    if let Some(umask) = plan.umask {
        call(Step::Limits, libc::SYS_umask, [umask as usize, 0, 0])?;
    }
    if !plan.directory.first().is_null() {
        call(Step::Directory, libc::SYS_chdir, [plan.directory.first() as usize, 0, 0])?;
    }
    if let Some(gate) = own.exec_gate {
        wait_at_gate(gate)?;
    }
    unblock_signals();
    execute(plan, &own, confined.as_ref())
}

/// Makes a system call with up to three arguments, which are numbers or pointers into the plan or this stack.
fn call(step: Step, number: c_long, arguments: [usize; 3]) -> Outcome<usize> {
    let [a, b, c] = arguments;
    // SAFETY: every caller passes numbers, or pointers to memory that is valid for what the call reads or writes.
    unsafe { raw::call(number, [a, b, c, 0, 0, 0]) }.map_err(|errno| (step, errno, 0))
}

fn fd(number: RawFd) -> usize {
    // The kernel takes the lower half of the register.
    number as isize as usize
}

fn address<T: ?Sized>(value: &T) -> usize {
    std::ptr::from_ref(value).cast::<u8>() as usize
}

/// The kernel's sets of signals have this size.
const SIGNAL_SET_BYTES: usize = 8;

fn default_dispositions() {
    // The kernel's struct sigaction, all zeroes: SIG_DFL without flags.
    let action = [0u64; 4];
    for signal in 1..=64 {
        let arguments = [signal, address(&action), 0, SIGNAL_SET_BYTES, 0, 0];
        // SAFETY: the action is at least as long as the kernel's struct; the third argument asks for no copy. The
        // kernel refuses to change SIGKILL and SIGSTOP.
        let _refused = unsafe { raw::call(libc::SYS_rt_sigaction, arguments) };
    }
}

fn unblock_signals() {
    let none = 0u64;
    let arguments = [libc::SIG_SETMASK as usize, address(&none), 0, SIGNAL_SET_BYTES, 0, 0];
    // SAFETY: the set has the kernel's size; the third argument asks for no copy.
    let _cannot_fail = unsafe { raw::call(libc::SYS_rt_sigprocmask, arguments) };
}

/// Best effort: a start never fails because of it.
fn set_oom_score(score: Option<i32>) {
    if let Some(score) = score {
        let mut text = [0u8; 12];
        let text = decimal(score, &mut text);
        let _refused = write_once(Step::Limits, libc::AT_FDCWD, c"/proc/self/oom_score_adj", text);
    }
}

/// Leads a group or a session of its own, without a terminal so far.
fn enter_session(session: SessionKind) -> Outcome {
    match session {
        SessionKind::Group => call(Step::Session, libc::SYS_setpgid, [0, 0, 0])?,
        SessionKind::Session | SessionKind::Terminal => call(Step::Session, libc::SYS_setsid, [0, 0, 0])?,
    };
    Ok(())
}

fn take_terminal(session: SessionKind) -> Outcome {
    if session == SessionKind::Terminal {
        call(Step::Session, libc::SYS_ioctl, [0, libc::TIOCSCTTY as usize, 0])?;
    }
    Ok(())
}

fn set_limits(limits: &[ResourceLimit]) -> Outcome {
    for limit in limits {
        let value = [limit.soft, limit.hard];
        let arguments = [0, limit.resource as usize, address(&value), 0, 0, 0];
        // SAFETY: the kernel's struct rlimit64 is two 64-bit numbers; the fourth argument asks for no copy.
        let set = unsafe { raw::call(libc::SYS_prlimit64, arguments) };
        set.map_err(|errno| (Step::Limits, errno, 0))?;
    }
    Ok(())
}

/// Returns confined, in another process than it was called in. That one waits. This one becomes the program, so it
/// enters the session and takes the terminal.
fn confine<'a>(program: &'a confine::Program, plan: &'a Plan) -> Outcome<confine::Run<'a>> {
    let stop = |(operation, errno)| (Step::Confine, errno, u16::try_from(operation).unwrap_or(u16::MAX));
    let run = confine::run(program, &plan.limits).map_err(stop)?;
    // Without a second process the session is entered already, and setsid would fail.
    let session = call(Step::Session, libc::SYS_getsid, [0, 0, 0])?;
    let pid = call(Step::Session, libc::SYS_getpid, [0, 0, 0])?;
    if plan.session == SessionKind::Group || session != pid {
        enter_session(plan.session)?;
    }
    take_terminal(plan.session)?;
    if plan.directory.first().is_null() {
        call(Step::Directory, libc::SYS_chdir, [c"/".as_ptr() as usize, 0, 0])?;
    }
    Ok(run)
}

/// Returns only when nothing could be executed.
fn execute(plan: &Plan, own: &OwnFds, confined: Option<&confine::Run<'_>>) -> Outcome<Infallible> {
    let (arguments, environment) = (plan.arguments.as_ptr() as usize, plan.environment.as_ptr() as usize);
    let (mut denied, mut last) = (false, libc::ENOENT);
    let candidates = confined.into_iter().flat_map(|run| run.candidates()).map(CStr::as_ptr);
    let program = plan.program.first();
    let program = (!program.is_null() && candidates.clone().next().is_none()).then_some(program);
    for path in candidates.chain(program) {
        let Err((step, errno, _)) =
            call(Step::Exec, libc::SYS_execve, [path as usize, arguments, environment])
        else {
            continue;
        };
        last = errno;
        match errno {
            libc::ENOENT | libc::ENOTDIR => {}
            // As execvp(3): the search continues, and the denial is reported at its end.
            libc::EACCES => denied = true,
            other => return Err((step, other, 0)),
        }
    }
    if let Some(program) = own.program {
        let empty = c"".as_ptr() as usize;
        let arguments = [fd(program), empty, arguments, environment, libc::AT_EMPTY_PATH as usize, 0];
        // SAFETY: null-terminated arrays of valid C strings in the plan.
        if let Err(errno) = unsafe { raw::call(libc::SYS_execveat, arguments) } {
            last = errno;
        }
    }
    Err((Step::Exec, if denied { libc::EACCES } else { last }, 0))
}

/// Waits until the holder of the other end knows this child.
fn wait_at_gate(gate: RawFd) -> Outcome {
    let mut byte = 0u8;
    loop {
        match call(Step::Gate, libc::SYS_read, [fd(gate), &raw mut byte as usize, 1]) {
            Ok(1) => return Ok(()),
            Ok(_) => return Err((Step::Gate, libc::ECANCELED, 0)),
            Err((_, libc::EINTR, _)) => {}
            Err(stop) => return Err(stop),
        }
    }
}

/// Gives the child its descriptors under their numbers and closes all others but those that exec closes. Returns where
/// these are; `status` is updated as soon as it moves.
fn place_descriptors(plan: &Plan, status: &mut RawFd) -> Outcome<OwnFds> {
    // First out of the way of all targets, since a source may have the number of another target.
    let first_copy = plan.above + 4;
    let mut copies = [(0, 0); DESCRIPTORS_MAX];
    for (copy, (source, target)) in copies.iter_mut().zip(&plan.descriptors) {
        *copy = (dup_above(*source, first_copy)?, *target);
    }
    let copy = |source: Option<RawFd>| source.map(|source| dup_above(source, first_copy)).transpose();
    let (program, gate) = (copy(plan.own.program)?, copy(plan.own.exec_gate)?);
    let directory = copy(plan.own.directory)?;
    let status_copy = dup_above(*status, first_copy)?;
    dup_to(Some(status_copy), plan.above)?;
    *status = plan.above;
    let program = dup_to(program, plan.above + 1)?;
    let exec_gate = dup_to(gate, plan.above + 2)?;
    let directory = dup_to(directory, plan.above + 3)?;
    for (copy, target) in copies.iter().take(plan.descriptors.len()) {
        // dup3 without flags clears close-on-exec on the target. The copies are above all targets, so they differ.
        call(Step::Descriptors, libc::SYS_dup3, [fd(*copy), fd(*target), 0])?;
    }
    call(Step::Descriptors, libc::SYS_close_range, [fd(first_copy), u32::MAX as usize, 0])?;
    for number in 0..plan.above {
        if !plan.descriptors.iter().any(|(_, target)| *target == number) {
            close(number);
        }
    }
    Ok(OwnFds { status: *status, program, exec_gate, directory })
}

/// Moves a copy to its number, to be closed by exec, or makes sure that nothing is open there.
fn dup_to(copy: Option<RawFd>, number: RawFd) -> Outcome<Option<RawFd>> {
    match copy {
        Some(copy) => {
            call(Step::Descriptors, libc::SYS_dup3, [fd(copy), fd(number), libc::O_CLOEXEC as usize])?;
            Ok(Some(number))
        }
        None => {
            close(number);
            Ok(None)
        }
    }
}

/// A copy at or above `first`, closed by exec.
fn dup_above(source: RawFd, first: RawFd) -> Outcome<RawFd> {
    let command = libc::F_DUPFD_CLOEXEC as usize;
    let copy = call(Step::Descriptors, libc::SYS_fcntl, [fd(source), command, fd(first)])?;
    RawFd::try_from(copy).map_err(|_| (Step::Descriptors, libc::EBADF, 0))
}

fn close(number: RawFd) {
    let _not_open = call(Step::Descriptors, libc::SYS_close, [fd(number), 0, 0]);
}

/// Opens a file for writing, writes once, closes.
fn write_once(step: Step, dir: RawFd, path: &CStr, bytes: &[u8]) -> Outcome {
    let flags = (libc::O_WRONLY | libc::O_CLOEXEC) as usize;
    let file = call(step, libc::SYS_openat, [fd(dir), path.as_ptr() as usize, flags])?;
    let written = call(step, libc::SYS_write, [file, address(bytes), bytes.len()]);
    let _closed = call(step, libc::SYS_close, [file, 0, 0]);
    written.map(|_| ())
}

/// The number in decimal digits, without allocating.
fn decimal(number: i32, text: &mut [u8; 12]) -> &[u8] {
    let mut rest = number.unsigned_abs();
    let mut at = text.len();
    loop {
        at -= 1;
        text[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        at -= 1;
        text[at] = b'-';
    }
    &text[at..]
}
