//! The clone itself: with memory shared until exec where that is safe, as a fork elsewhere.

use super::plan::{Plan, Privileges};
use super::{Child, Started, raw, steps};
use crate::pidfd::Pidfd;
use crate::signal::last_errno;
use crate::{Errno, Result, fault, kernel};
use rustix::fd::OwnedFd;
use std::ffi::{c_int, c_void};
use std::os::fd::{FromRawFd, RawFd};
use std::ptr;
use std::sync::OnceLock;

/// From this version on a core dump kills the dumping process only. Before, it killed every process with the same
/// memory, so a signal that dumps core would take the parent along with the child.
const CORE_DUMPS_ONE_PROCESS: kernel::Version = (5, 16);

/// Whether a child may share our memory until exec. Not if it
/// - enters a confinement: processes of that never execute anything, and fork;
/// - becomes another user: the kernel would make our memory unreadable to our own user;
/// - sets its OOM score: the kernel sets that of all processes with the same memory.
///
/// Until exec the OOM killer ends the parent with such a child. Both are in one memory cgroup, or the child's has no limit
/// of its own, and they have the same score: the parent would be a victim as well.
pub(super) fn may_share_memory(child: &Child<'_>) -> bool {
    static KERNEL: OnceLock<bool> = OnceLock::new();
    let kernel = || kernel::version_in(&kernel::release()) >= CORE_DUMPS_ONE_PROCESS;
    raw::IS_SUPPORTED
        && child.confinement.is_none()
        && child.credentials.is_none()
        && child.oom_score.is_none()
        && *KERNEL.get_or_init(kernel)
}

/// What a child that shares our memory reads and runs on.
pub(super) struct Memory {
    plan: Box<Plan>,
    stack: Stack,
}

/// A stack with a guard page below.
struct Stack {
    base: *mut c_void,
    bytes: usize,
}

/// The child's functions are few and their frames small, also in a debug build.
const STACK_BYTES: usize = 64 * 1024;

// SAFETY: the value owns the mapping, and this process reads and writes it nowhere.
unsafe impl Send for Stack {}

impl Stack {
    fn new() -> Result<Stack> {
        fault::failpoint()?;
        let guard = rustix::param::page_size();
        let bytes = STACK_BYTES + guard;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base =
            unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(last_errno());
        }
        let stack = Stack { base, bytes };
        // SAFETY: the first page of the mapping, which nothing uses yet.
        match unsafe { libc::mprotect(base, guard, libc::PROT_NONE) } {
            0 => Ok(stack),
            _ => Err(last_errno()),
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: a mapping of our own. `ExecStatusPipe` drops it only when the child does not run on it any more.
        unsafe { libc::munmap(self.base, self.bytes) };
    }
}

/// Clones. Returns in the parent only.
pub(super) fn clone(child: &Child<'_>, plan: Plan) -> Result<(Started, Option<Memory>)> {
    let (plan, forked) = match may_share_memory(child) {
        true => match clone_sharing(plan)? {
            Ok((started, memory)) => return Ok((started, Some(memory))),
            Err(plan) => (*plan, Err(Errno::NOSYS)),
        },
        false => {
            let forked = fork(plan.cgroup);
            (plan, forked)
        }
    };
    let privileges = Privileges { confinement: child.confinement, credentials: child.credentials };
    let forked = match forked {
        Err(errno) if is_forbidden(errno) => fork_without_clone3(plan.cgroup.is_some()),
        forked => forked,
    };
    match forked? {
        Forked::Parent(started) => Ok((started, None)),
        Forked::Child { join_cgroup } => steps::run(&plan, privileges, join_cgroup),
    }
}

/// Container runtimes commonly forbid clone3, because their filters cannot read its arguments.
fn is_forbidden(errno: Errno) -> bool {
    matches!(errno, Errno::NOSYS | Errno::PERM)
}

/// The arguments of clone3(2), up to the cgroup.
#[repr(C)]
#[derive(Default)]
pub(super) struct CloneArguments {
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

impl CloneArguments {
    fn new(pidfd: &mut c_int, cgroup: Option<RawFd>) -> CloneArguments {
        const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
        let into_cgroup = if cgroup.is_some() { CLONE_INTO_CGROUP } else { 0 };
        CloneArguments {
            flags: libc::CLONE_PIDFD as u64 | into_cgroup,
            pidfd: ptr::from_mut(pidfd) as u64,
            exit_signal: libc::SIGCHLD as u64,
            cgroup: u64::from(cgroup.unwrap_or(0).cast_unsigned()),
            ..CloneArguments::default()
        }
    }
}

/// Clones a child that shares our memory and runs on a stack of its own. Gives the plan back where a fork may still
/// succeed: without memory for the stack, and where clone3 is forbidden.
fn clone_sharing(plan: Plan) -> Result<std::result::Result<(Started, Memory), Box<Plan>>> {
    let plan = Box::new(plan);
    let Ok(stack) = Stack::new() else { return Ok(Err(plan)) };
    let memory = Memory { plan, stack };
    let mut pidfd: c_int = -1;
    let mut arguments = CloneArguments::new(&mut pidfd, memory.plan.cgroup);
    arguments.flags |= libc::CLONE_VM as u64;
    arguments.stack = memory.stack.base as u64;
    arguments.stack_size = memory.stack.bytes as u64;
    if let Err(errno) = fault::failpoint() {
        return if is_forbidden(errno) { Ok(Err(memory.plan)) } else { Err(errno) };
    }
    let entry_argument: *const Plan = &raw const *memory.plan;
    // SAFETY: the child runs `run_child` on a stack that nothing else uses. It reads the plan, which stays allocated
    // and unchanged until `ExecStatusPipe` sees that the child has left this memory. It writes nothing but its own
    // stack: `steps::run` allocates nothing, locks nothing, and makes system calls without the C library and its
    // `errno`. All signals that a handler of ours exists for are blocked in the child until it executes.
    let cloned = unsafe { raw::clone3(&arguments, run_child, entry_argument.cast()) };
    match cloned {
        Ok(pid) => Ok(Ok((started(pid, pidfd), memory))),
        Err(errno) if is_forbidden(errno) => Ok(Err(memory.plan)),
        Err(errno) => Err(errno),
    }
}

/// Where a child that shares memory begins.
extern "C" fn run_child(plan: *const c_void) -> ! {
    // SAFETY: `clone_sharing` passes a plan that outlives the child's use of this memory, and nothing changes it.
    let plan = unsafe { &*plan.cast::<Plan>() };
    steps::run(plan, Privileges::default(), false)
}

/// The two returns of a fork.
enum Forked {
    Parent(Started),
    /// `join_cgroup`: the clone did not put the child into its cgroup.
    Child {
        join_cgroup: bool,
    },
}

fn fork(cgroup: Option<RawFd>) -> Result<Forked> {
    fault::failpoint()?;
    let mut pidfd: c_int = -1;
    let arguments = CloneArguments::new(&mut pidfd, cgroup);
    // SAFETY: without CLONE_VM this is a fork. The child has a copy of all memory and only makes system calls until
    // exec, since another thread may have held a lock.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &arguments, size_of::<CloneArguments>()) };
    parent_or_child(pid, pidfd, false)
}

fn fork_without_clone3(join_cgroup: bool) -> Result<Forked> {
    let mut pidfd: c_int = -1;
    let flags = (libc::CLONE_PIDFD | libc::SIGCHLD) as libc::c_ulong;
    let none: *mut c_int = ptr::null_mut();
    // SAFETY: as in `fork`; a null stack means a copy of the parent's. The order of the last two arguments differs
    // between machines, but both are null.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, none, &raw mut pidfd, none, none) };
    parent_or_child(pid, pidfd, join_cgroup)
}

fn parent_or_child(pid: libc::c_long, pidfd: c_int, join_cgroup: bool) -> Result<Forked> {
    match i32::try_from(pid) {
        Ok(0) => Ok(Forked::Child { join_cgroup }),
        Ok(pid) if pid > 0 => Ok(Forked::Parent(started(pid, pidfd))),
        _ => Err(last_errno()),
    }
}

fn started(pid: i32, pidfd: c_int) -> Started {
    // SAFETY: the kernel stored a new descriptor there, which nothing else owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Started { pid, pidfd: Pidfd::cloned(pid, pidfd) }
}
