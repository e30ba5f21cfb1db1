//! Starting a program: a clone that shares memory with its parent until exec, so that it costs the same whatever
//! the parent's size, and reports why exec failed instead of a made-up exit code.
//!
//! Between clone and exec the child shares our memory and must neither allocate nor lock nor touch anything that
//! outlives it, except the report of what went wrong. All it needs is prepared before.

use crate::signal::{Set, last_errno};
use crate::{Errno, Result, fault, pidfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::ptr;

/// Where the child stands among other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Leader of a new process group in our session.
    Group,
    /// Leader of a new session, without a terminal.
    Session,
    /// Leader of a new session whose controlling terminal is the child's standard input.
    Terminal,
}

/// What is executed.
#[derive(Clone, Copy)]
pub enum Program<'a> {
    Path(&'a CStr),
    /// An open file, which is still there when its name is not.
    Open(BorrowedFd<'a>),
}

/// A resource limit for the child, by the kernel's number of the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceLimit {
    pub resource: u32,
    pub soft: u64,
    pub hard: u64,
}

/// The kernel's number of the limit on open descriptors.
pub const DESCRIPTOR_LIMIT: u32 = libc::RLIMIT_NOFILE;

/// Everything about a child to be.
pub struct Child<'a> {
    pub program: Program<'a>,
    pub arguments: &'a [&'a CStr],
    pub environment: &'a [&'a CStr],
    pub directory: Option<&'a CStr>,
    pub standing: Standing,
    /// Our descriptors and the numbers the child shall have them under: 0, 1 and 2 must be among them. It gets no others.
    pub descriptors: &'a [(BorrowedFd<'a>, RawFd)],
    pub limits: &'a [ResourceLimit],
    pub umask: Option<u32>,
    pub oom_score: Option<i32>,
    /// Directory of the cgroup to be born in.
    pub cgroup: Option<BorrowedFd<'a>>,
}

/// A started child.
pub struct Started {
    pub pid: i32,
    pub pidfd: OwnedFd,
}

/// The step at which a start failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    Prepare = 1,
    Clone = 2,
    Cgroup = 3,
    Standing = 4,
    Descriptors = 5,
    Limits = 6,
    Directory = 7,
    Exec = 8,
}

impl Step {
    pub fn from_number(number: u8) -> Option<Step> {
        use Step::*;
        [Prepare, Clone, Cgroup, Standing, Descriptors, Limits, Directory, Exec]
            .into_iter()
            .find(|step| *step as u8 == number)
    }
}

/// Why a child could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    pub step: Step,
    pub errno: Errno,
}

/// The most descriptors a child may be given.
pub const DESCRIPTORS_MAX: usize = 16;

/// What the child reads, and the one place it writes to.
struct Plan<'a> {
    child: &'a Child<'a>,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    /// The lowest number above all those the child is to have.
    above: RawFd,
    /// The clone itself could not put the child into its cgroup.
    join_cgroup: bool,
    /// Written by the child: step in the upper half, errno in the lower. 0 is success.
    failure: u32,
}

/// Starts a child. When this returns `Ok`, the program has been executed.
pub fn spawn(child: &Child<'_>) -> std::result::Result<Started, Failure> {
    let prepare = |errno| Failure { step: Step::Prepare, errno };
    fault::gate().map_err(prepare)?;
    if child.descriptors.len() > DESCRIPTORS_MAX {
        return Err(prepare(Errno::INVAL));
    }
    if !(0..3).all(|number| child.descriptors.iter().any(|(_, target)| *target == number)) {
        return Err(prepare(Errno::BADF));
    }
    // Two numbers above all targets are computed with, in the child, where nothing may panic.
    if child.descriptors.iter().any(|(_, target)| *target < 0 || target.checked_add(2).is_none()) {
        return Err(prepare(Errno::BADF));
    }
    let arguments = null_ended(child.arguments);
    let environment = null_ended(child.environment);
    let mut plan = Plan {
        child,
        arguments: arguments.as_ptr(),
        environment: environment.as_ptr(),
        above: child.descriptors.iter().map(|(_, target)| *target).max().unwrap_or(2).saturating_add(1),
        join_cgroup: false,
        failure: 0,
    };
    // No handler of ours may run in the child while it shares our memory.
    let mask = Set::full().install();
    let started = clone(&mut plan);
    mask.install();
    let started = started.map_err(|errno| Failure { step: Step::Clone, errno })?;
    match plan.failure {
        0 => Ok(started),
        code => {
            // It has ended already or is about to; waiting is for its zombie only.
            let _gone = wait_for_end(&started.pidfd);
            let _reaped = pidfd::reap(&started.pidfd);
            let step = Step::from_number((code >> 16) as u8).unwrap_or(Step::Exec);
            Err(Failure { step, errno: Errno::from_raw_os_error((code & 0xffff) as i32) })
        }
    }
}

fn null_ended(strings: &[&CStr]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

/// Waits until the process of a pidfd has ended.
pub fn wait_for_end(pidfd: impl AsFd) -> Result<()> {
    use rustix::event::{PollFd, PollFlags, poll};
    crate::retry(|| poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None).map(|_| ()))
}

/// Becomes another program: same process, same children. Only returns when that failed, with the reason.
pub fn replace_self(program: BorrowedFd<'_>, arguments: &[&CStr], environment: &[&CStr]) -> Errno {
    let (arguments, environment) = (null_ended(arguments), null_ended(environment));
    let (arguments, environment) = (arguments.as_ptr().cast(), environment.as_ptr().cast());
    // SAFETY: null-ended arrays of valid C strings that outlive the call.
    unsafe { libc::execveat(program.as_raw_fd(), c"".as_ptr(), arguments, environment, libc::AT_EMPTY_PATH) };
    last_errno()
}

const STACK_BYTES: usize = 64 * 1024;

#[repr(C, align(16))]
struct Stack([MaybeUninit<u8>; STACK_BYTES]);

const FLAGS: c_int = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD;

fn clone(plan: &mut Plan<'_>) -> Result<Started> {
    let mut stack = Box::<Stack>::new_uninit();
    let bottom = stack.as_mut_ptr().cast::<u8>();
    let outcome = match clone3(plan, bottom) {
        // Container runtimes commonly forbid clone3 because they cannot filter its arguments.
        Err(Errno::NOSYS | Errno::PERM) => {
            plan.join_cgroup = plan.child.cgroup.is_some();
            clone_plain(plan, bottom)
        }
        outcome => outcome,
    };
    drop(stack);
    outcome
}

/// The arguments of clone3(2), up to the cgroup.
#[repr(C)]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

fn clone3(plan: &mut Plan<'_>, stack: *mut u8) -> Result<Started> {
    fault::gate()?;
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    let mut pidfd: c_int = -1;
    let mut arguments = CloneArguments {
        flags: u64::from(FLAGS.cast_unsigned()),
        pidfd: &raw mut pidfd as u64,
        exit_signal: libc::SIGCHLD as u64,
        stack: stack as u64,
        stack_size: STACK_BYTES as u64,
        ..CloneArguments::default()
    };
    if let Some(cgroup) = plan.child.cgroup {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = u64::from(cgroup.as_raw_fd().cast_unsigned());
    }
    let plan: *mut Plan<'_> = plan;
    // SAFETY: the arguments and the stack are valid until the child has executed or ended, because CLONE_VFORK
    // holds this thread until then; `run` never returns and touches only the plan, which nobody else uses meanwhile.
    let pid = unsafe { raw_clone3(&arguments, run, plan.cast()) };
    if pid < 0 {
        return Err(Errno::from_raw_os_error(i32::try_from(-pid).unwrap_or(libc::EIO)));
    }
    // SAFETY: the kernel stored a new descriptor there, which nobody else owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Started { pid: i32::try_from(pid).unwrap_or(0), pidfd })
}

/// Performs clone3 and, in the child, calls `entry(argument)` on the new stack.
///
/// # Safety
/// `arguments` must name a stack for the child; `entry` must not return; both must be valid until the child executes.
#[cfg(target_arch = "x86_64")]
unsafe fn raw_clone3(
    arguments: *const CloneArguments,
    entry: extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
) -> i64 {
    let result: i64;
    // SAFETY: by this function's contract. The parent's path clobbers only what is declared; the child starts with
    // copies of the registers on its own stack, clears the frame pointer and calls the entry, which never returns.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 => result,
            in("rdi") arguments,
            in("rsi") size_of::<CloneArguments>(),
            in("r12") argument,
            in("r13") entry,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// Elsewhere the plain form of clone serves.
///
/// # Safety
/// None needed: it does nothing.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn raw_clone3(
    _arguments: *const CloneArguments,
    _entry: extern "C" fn(*mut c_void) -> c_int,
    _argument: *mut c_void,
) -> i64 {
    -i64::from(libc::ENOSYS)
}

fn clone_plain(plan: &mut Plan<'_>, stack: *mut u8) -> Result<Started> {
    let mut pidfd: c_int = -1;
    let plan: *mut Plan<'_> = plan;
    // SAFETY: one past the end of the stack's allocation, where a stack that grows down begins.
    let top = unsafe { stack.add(STACK_BYTES) };
    // SAFETY: as for clone3: the stack and the plan outlive the child's use of them because of CLONE_VFORK.
    let pid = unsafe { libc::clone(run, top.cast(), FLAGS | libc::SIGCHLD, plan.cast(), &mut pidfd) };
    if pid < 0 {
        return Err(last_errno());
    }
    // SAFETY: the kernel stored a new descriptor there, which nobody else owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Started { pid, pidfd })
}

/// The child's life between clone and exec. Never returns.
extern "C" fn run(plan: *mut c_void) -> c_int {
    // SAFETY: the parent passed a plan that it does not touch before we have executed or ended.
    let plan = unsafe { &mut *plan.cast::<Plan<'_>>() };
    let Err((step, errno)) = become_program(plan);
    plan.failure = (step as u32) << 16 | (errno.cast_unsigned() & 0xffff);
    // SAFETY: ends this child only, without running any of the parent's exit handlers.
    unsafe { libc::_exit(127) }
}

type Stop = (Step, c_int);

fn check(step: Step, result: c_int) -> std::result::Result<c_int, Stop> {
    if result < 0 { Err((step, errno())) } else { Ok(result) }
}

fn errno() -> c_int {
    // SAFETY: no arguments; it only says where.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: the location is this thread's own, which the vforked child borrows while the thread is held.
    unsafe { *location }
}

fn become_program(plan: &mut Plan<'_>) -> std::result::Result<std::convert::Infallible, Stop> {
    let child = plan.child;
    if plan.join_cgroup
        && let Some(cgroup) = child.cgroup
    {
        write_once(Step::Cgroup, cgroup.as_raw_fd(), c"cgroup.procs", b"0")?;
    }
    let standing = match child.standing {
        // SAFETY: a plain call on this process; no memory is touched.
        Standing::Group => unsafe { libc::setpgid(0, 0) },
        // SAFETY: as above.
        Standing::Session | Standing::Terminal => unsafe { libc::setsid() },
    };
    check(Step::Standing, standing)?;
    if let Some(score) = child.oom_score {
        let mut text = [0u8; 12];
        // Raising is always allowed and lowering to what it was is too, but never fail a start over it.
        let _best_effort =
            write_once(Step::Limits, libc::AT_FDCWD, c"/proc/self/oom_score_adj", decimal(score, &mut text));
    }
    let program = place_descriptors(plan)?;
    if child.standing == Standing::Terminal {
        // SAFETY: descriptor 0 is the terminal by now; the argument is a number.
        check(Step::Standing, unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) })?;
    }
    for limit in child.limits {
        let value = libc::rlimit { rlim_cur: limit.soft, rlim_max: limit.hard };
        // SAFETY: the value lives across the call.
        check(Step::Limits, unsafe { libc::setrlimit(limit.resource, &value) })?;
    }
    if let Some(umask) = child.umask {
        // SAFETY: a plain call.
        unsafe { libc::umask(umask) };
    }
    if let Some(directory) = child.directory {
        // SAFETY: a valid C string.
        check(Step::Directory, unsafe { libc::chdir(directory.as_ptr()) })?;
    }
    reset_signals();
    match child.program {
        Program::Path(path) => {
            // SAFETY: null-ended arrays of valid C strings, prepared by the parent and unchanged since.
            unsafe { libc::execve(path.as_ptr(), plan.arguments, plan.environment) };
        }
        Program::Open(_) => {
            let (arguments, environment) = (plan.arguments.cast(), plan.environment.cast());
            // SAFETY: as above.
            unsafe { libc::execveat(program, c"".as_ptr(), arguments, environment, libc::AT_EMPTY_PATH) };
        }
    }
    Err((Step::Exec, errno()))
}

/// Gives the child its descriptors under their numbers and closes all others. Returns the number of the open program.
fn place_descriptors(plan: &Plan<'_>) -> std::result::Result<RawFd, Stop> {
    let step = Step::Descriptors;
    let child = plan.child;
    // First out of the way of all targets, since a source may stand where another is to go. `above` itself stays
    // free for the program.
    let mut parked = [(0, 0); DESCRIPTORS_MAX];
    let first_parked = plan.above + 1;
    for (slot, (source, target)) in parked.iter_mut().zip(child.descriptors) {
        // SAFETY: plain numbers.
        let copy = unsafe { libc::fcntl(source.as_raw_fd(), libc::F_DUPFD_CLOEXEC, first_parked) };
        *slot = (check(step, copy)?, *target);
    }
    if let Program::Open(file) = child.program {
        // SAFETY: plain numbers.
        let copy = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, first_parked) };
        let copy = check(step, copy)?;
        // SAFETY: plain numbers.
        check(step, unsafe { libc::dup3(copy, plan.above, libc::O_CLOEXEC) })?;
    }
    for (copy, target) in parked.iter().take(child.descriptors.len()) {
        // SAFETY: plain numbers; dup2 clears close-on-exec on the target.
        check(step, unsafe { libc::dup2(*copy, *target) })?;
    }
    let last_kept = if matches!(child.program, Program::Open(_)) { plan.above } else { plan.above - 1 };
    close_from(last_kept + 1)?;
    for number in 0..plan.above {
        if !child.descriptors.iter().any(|(_, target)| *target == number) {
            // SAFETY: a plain number; not being open is fine.
            unsafe { libc::close(number) };
        }
    }
    Ok(plan.above)
}

fn close_from(first: RawFd) -> std::result::Result<(), Stop> {
    // SAFETY: plain numbers; the child's table is its own.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first.cast_unsigned(), c_uint::MAX, 0) };
    check(Step::Descriptors, closed as c_int).map(|_| ())
}

/// Default dispositions and an empty mask, whatever ours are.
fn reset_signals() {
    // The kernel's own struct and call: the C library's takes a lock for SIGABRT (since glibc 2.41), which the parent
    // shares, and refuses the two signals it keeps for itself. All zeroes is the default disposition with no flags.
    let action = [0u64; 4];
    let before: *mut u64 = ptr::null_mut();
    for signal in 1..=64 {
        // SAFETY: the action is as long as the kernel's struct or longer and outlives the call; a null pointer asks for
        // no copy of the one before. Numbers that cannot be changed are refused, which is what we want.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, action.as_ptr(), before, size_of::<u64>()) };
    }
    Set::of(&[]).install();
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
