//! The child's side of a start: everything between clone and exec, with nothing but system calls.

use super::{Child, DESCRIPTORS_MAX, Directory, Failure, Plan, Program, ResourceLimit, Standing, Step};
use crate::signal::{Set, default_dispositions};
use crate::{Errno, confine, credentials};
use std::ffi::{CStr, c_int, c_uint};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// Becomes the program, or reports why not and ends.
pub(super) fn run(plan: &Plan<'_>) -> ! {
    let mut report = plan.report;
    let Err((step, errno, operation)) = become_program(plan, &mut report);
    end(report, step, errno, operation)
}

/// Reports a failure and ends.
pub(super) fn give_up(report: RawFd, failure: &Failure) -> ! {
    end(report, failure.step, failure.errno.raw_os_error(), failure.operation)
}

fn end(report: RawFd, step: Step, errno: c_int, operation: u16) -> ! {
    let mut bytes = [0; super::Report::BYTES];
    bytes[0] = step as u8;
    bytes[2..4].copy_from_slice(&operation.to_ne_bytes());
    bytes[4..].copy_from_slice(&errno.to_ne_bytes());
    // SAFETY: the buffer is valid for its length. Nobody but the parent, who may be gone, wants to know.
    unsafe { libc::write(report, bytes.as_ptr().cast(), bytes.len()) };
    // SAFETY: ends this child only, without running any of the parent's exit handlers.
    unsafe { libc::_exit(127) }
}

/// The step, the error, and for a confinement the number of its operation.
type Stop = (Step, c_int, u16);

fn check(step: Step, result: c_int) -> std::result::Result<c_int, Stop> {
    if result < 0 { Err((step, errno(), 0)) } else { Ok(result) }
}

fn errno() -> c_int {
    // SAFETY: no arguments; it only says where.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: the location is this thread's own.
    unsafe { *location }
}

fn become_program(
    plan: &Plan<'_>,
    report: &mut RawFd,
) -> std::result::Result<std::convert::Infallible, Stop> {
    let child = plan.child;
    if plan.reset_signals {
        default_dispositions();
    }
    join_cgroup(child.cgroup.filter(|_| plan.join_cgroup))?;
    stand(child.standing)?;
    set_oom_score(child.oom_score);
    let places = place_descriptors(plan, report)?;
    if let Some(credentials) = child.credentials {
        // Limits first: a user could not raise them again.
        set_limits(child.limits)?;
        credentials::assume(credentials).map_err(|errno| (Step::Credentials, errno, 0))?;
    }
    // Only now: a file system that does not answer holds the child up, and it shall not hold our descriptors meanwhile.
    if let Some(Directory::Open(_)) = child.directory {
        // SAFETY: a plain number.
        check(Step::Directory, unsafe { libc::fchdir(places.directory) })?;
    }
    let confined = match child.confinement {
        Some(program) => Some(confine(program, child)?),
        None => {
            take_terminal(child.standing)?;
            if child.credentials.is_none() {
                set_limits(child.limits)?;
            }
            None
        }
    };
    if let Some(umask) = child.umask {
        // SAFETY: a plain call.
        unsafe { libc::umask(umask) };
    }
    if let Some(Directory::Path(directory)) = child.directory {
        // SAFETY: a valid C string.
        check(Step::Directory, unsafe { libc::chdir(directory.as_ptr()) })?;
    }
    if child.gate.is_some() {
        wait_at_gate(places.gate)?;
    }
    Set::of(&[]).install();
    execute(plan, &places, confined.as_ref())
}

/// What a recruit does at once, so that it has less to do later. It has two descriptors under these numbers, besides the
/// standard ones, and no others; `report` says where that one is now.
pub(super) fn settle_recruit(
    cgroup: Option<BorrowedFd<'_>>,
    oom_score: Option<i32>,
    orders: (RawFd, RawFd),
    report: &mut RawFd,
    report_at: RawFd,
) -> std::result::Result<(), Failure> {
    let above = orders.1.max(report_at) + 1;
    default_dispositions();
    let settled = join_cgroup(cgroup).and_then(|()| {
        set_oom_score(oom_score);
        let parked = park(orders.0, above)?;
        *report = park(*report, above)?;
        settle(Some(parked), orders.1)?;
        *report = settle(Some(*report), report_at)?;
        close_from(above)
    });
    settled.map_err(|(step, errno, _)| Failure::at(step, Errno::from_raw_os_error(errno)))
}

fn join_cgroup(cgroup: Option<BorrowedFd<'_>>) -> std::result::Result<(), Stop> {
    match cgroup {
        Some(cgroup) => write_once(Step::Cgroup, cgroup.as_raw_fd(), c"cgroup.procs", b"0"),
        None => Ok(()),
    }
}

fn set_oom_score(score: Option<i32>) {
    if let Some(score) = score {
        let mut text = [0u8; 12];
        // Raising is always allowed and lowering to what it was is too, but never fail a start over it.
        let _best_effort =
            write_once(Step::Limits, libc::AT_FDCWD, c"/proc/self/oom_score_adj", decimal(score, &mut text));
    }
}

/// Leads a group or a session of its own, without a terminal so far.
fn stand(standing: Standing) -> std::result::Result<(), Stop> {
    let stands = match standing {
        // SAFETY: a plain call on this process; no memory is touched.
        Standing::Group => unsafe { libc::setpgid(0, 0) },
        // SAFETY: as above.
        Standing::Session | Standing::Terminal => unsafe { libc::setsid() },
    };
    check(Step::Standing, stands).map(|_| ())
}

fn take_terminal(standing: Standing) -> std::result::Result<(), Stop> {
    if standing == Standing::Terminal {
        // SAFETY: descriptor 0 is the terminal by now; the argument is a number.
        check(Step::Standing, unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) })?;
    }
    Ok(())
}

fn set_limits(limits: &[ResourceLimit]) -> std::result::Result<(), Stop> {
    for limit in limits {
        let value = libc::rlimit { rlim_cur: limit.soft, rlim_max: limit.hard };
        // SAFETY: the value lives across the call.
        check(Step::Limits, unsafe { libc::setrlimit(limit.resource, &value) })?;
    }
    Ok(())
}

/// Returns confined, as another process than the one it was called in: that one waits for us. We are the one that
/// becomes the program, so we take the standing, and the terminal.
fn confine<'a>(
    program: &'a confine::Program,
    child: &'a Child<'_>,
) -> std::result::Result<confine::Run<'a>, Stop> {
    let stop = |(operation, errno)| (Step::Confine, errno, u16::try_from(operation).unwrap_or(u16::MAX));
    let run = confine::run(program, child.limits).map_err(stop)?;
    // A second time in the same process fails, where the confinement starts none.
    // SAFETY: a plain call.
    let session = unsafe { libc::getsid(0) };
    if child.standing == Standing::Group || session != rustix::process::getpid().as_raw_pid() {
        stand(child.standing)?;
    }
    take_terminal(child.standing)?;
    if child.directory.is_none() {
        // SAFETY: a valid C string.
        check(Step::Directory, unsafe { libc::chdir(c"/".as_ptr()) })?;
    }
    Ok(run)
}

/// Only returns when nothing could be executed.
fn execute(
    plan: &Plan<'_>,
    places: &Places,
    confined: Option<&confine::Run<'_>>,
) -> std::result::Result<std::convert::Infallible, Stop> {
    let mut refused = false;
    let candidates = confined.into_iter().flat_map(|run| run.candidates());
    let own = match plan.child.program {
        Program::Path(path) if candidates.clone().next().is_none() => Some(path),
        _ => None,
    };
    for path in candidates.clone().chain(own) {
        // SAFETY: null-ended arrays of valid C strings, prepared by the parent and unchanged since.
        unsafe { libc::execve(path.as_ptr(), plan.arguments, plan.environment) };
        match errno() {
            libc::ENOENT | libc::ENOTDIR => {}
            // As execvp(3): goes on, but says so at the end.
            libc::EACCES => refused = true,
            other => return Err((Step::Exec, other, 0)),
        }
    }
    if let Program::Open(_) = plan.child.program {
        let (arguments, environment) = (plan.arguments.cast(), plan.environment.cast());
        // SAFETY: as above.
        unsafe { libc::execveat(places.program, c"".as_ptr(), arguments, environment, libc::AT_EMPTY_PATH) };
    }
    Err((Step::Exec, if refused { libc::EACCES } else { errno() }, 0))
}

/// Waits until whoever started us knows of us.
fn wait_at_gate(gate: RawFd) -> std::result::Result<(), Stop> {
    let mut byte = 0u8;
    loop {
        // SAFETY: a buffer of one byte.
        let read = unsafe { libc::read(gate, (&raw mut byte).cast(), 1) };
        match read {
            1 => return Ok(()),
            0 => return Err((Step::Gate, libc::ECANCELED, 0)),
            _ if errno() == libc::EINTR => {}
            _ => return Err((Step::Gate, errno(), 0)),
        }
    }
}

/// Gives the child its descriptors under their numbers and closes all others but the report's, which exec closes.
/// Returns where the open program, the gate and the open directory are.
fn place_descriptors(plan: &Plan<'_>, report: &mut RawFd) -> std::result::Result<Places, Stop> {
    let step = Step::Descriptors;
    let child = plan.child;
    // First out of the way of all targets, since a source may stand where another is to go.
    let (report_at, program_at, gate_at) = (plan.above, plan.above + 1, plan.above + 2);
    let (directory_at, first_parked) = (plan.above + 3, plan.above + 4);
    let mut parked = [(0, 0); DESCRIPTORS_MAX];
    for (slot, (source, target)) in parked.iter_mut().zip(child.descriptors) {
        *slot = (park(source.as_raw_fd(), first_parked)?, *target);
    }
    let program = match child.program {
        Program::Open(file) => Some(park(file.as_raw_fd(), first_parked)?),
        Program::Path(_) => None,
    };
    let gate = child.gate.map(|gate| park(gate.as_raw_fd(), first_parked)).transpose()?;
    let directory = match child.directory {
        Some(Directory::Open(directory)) => Some(park(directory.as_raw_fd(), first_parked)?),
        Some(Directory::Path(_)) | None => None,
    };
    let parked_report = park(*report, first_parked)?;
    *report = settle(Some(parked_report), report_at)?;
    settle(program, program_at)?;
    settle(gate, gate_at)?;
    settle(directory, directory_at)?;
    for (copy, target) in parked.iter().take(child.descriptors.len()) {
        // SAFETY: plain numbers; dup2 clears close-on-exec on the target.
        check(step, unsafe { libc::dup2(*copy, *target) })?;
    }
    close_from(first_parked)?;
    for number in 0..plan.above {
        if !child.descriptors.iter().any(|(_, target)| *target == number) {
            // SAFETY: a plain number; not being open is fine.
            unsafe { libc::close(number) };
        }
    }
    Ok(Places { program: program_at, gate: gate_at, directory: directory_at })
}

/// Where what is needed until exec, and closed by it, has been put.
struct Places {
    program: RawFd,
    gate: RawFd,
    directory: RawFd,
}

/// Moves a parked descriptor to its place, or makes sure that nothing is there.
fn settle(parked: Option<RawFd>, place: RawFd) -> std::result::Result<RawFd, Stop> {
    match parked {
        // SAFETY: plain numbers.
        Some(parked) => check(Step::Descriptors, unsafe { libc::dup3(parked, place, libc::O_CLOEXEC) }),
        None => {
            // SAFETY: a plain number; not being open is fine.
            unsafe { libc::close(place) };
            Ok(place)
        }
    }
}

/// A copy at or above `first`.
fn park(fd: RawFd, first: RawFd) -> std::result::Result<RawFd, Stop> {
    // SAFETY: plain numbers.
    check(Step::Descriptors, unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, first) })
}

fn close_from(first: RawFd) -> std::result::Result<(), Stop> {
    // SAFETY: plain numbers; the child's table is its own.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first.cast_unsigned(), c_uint::MAX, 0) };
    check(Step::Descriptors, closed as c_int).map(|_| ())
}

/// Opens a file for writing, writes once, closes: with nothing but system calls.
fn write_once(step: Step, dir: RawFd, path: &CStr, bytes: &[u8]) -> std::result::Result<(), Stop> {
    // SAFETY: a valid C string.
    let file = check(step, unsafe { libc::openat(dir, path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC) })?;
    // SAFETY: the buffer is valid for its length.
    let written = unsafe { libc::write(file, bytes.as_ptr().cast(), bytes.len()) };
    let outcome = check(step, written as c_int);
    // SAFETY: opened above and not used afterwards.
    unsafe { libc::close(file) };
    outcome.map(|_| ())
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
