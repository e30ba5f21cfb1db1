//! Starting a program: a clone, the child's steps to exec, and a report of which of them failed and why.
//!
//! The clone does not wait for the exec. A vfork would be as fast from a small process, but it holds the parent while
//! the child looks for its directory and its program, which may be on a file system that never answers; the keeper
//! must not stand still for that. So the report comes by a pipe that closes at exec.
//!
//! Between clone and exec the child is a copy of one thread of ours and must neither allocate nor lock. All it needs is
//! prepared before.

mod recruit;
mod steps;

pub use recruit::{Ordered, enlist, has_one_thread, recruit};

use crate::credentials::Credentials;
use crate::pidfd::Pidfd;
use crate::signal::{Set, last_errno};
use crate::{Errno, Result, confine, fault, pidfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::pipe::PipeFlags;
use std::ffi::{CStr, CString, OsString, c_char, c_int};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
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

/// Where the child begins.
#[derive(Clone, Copy)]
pub enum Directory<'a> {
    Path(&'a CStr),
    /// An open directory, which is still that one when its name is another's. Not for a confined child, which looks its
    /// directory up inside.
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

/// The kernel's numbers of other limits: core files, processor time, address space, size of files.
pub const CORE_LIMIT: u32 = libc::RLIMIT_CORE;
pub const CPU_LIMIT: u32 = libc::RLIMIT_CPU;
pub const MEMORY_LIMIT: u32 = libc::RLIMIT_AS;
pub const FILE_SIZE_LIMIT: u32 = libc::RLIMIT_FSIZE;

/// Everything about a child to be.
pub struct Child<'a> {
    pub program: Program<'a>,
    pub arguments: &'a [&'a CStr],
    pub environment: &'a [&'a CStr],
    pub directory: Option<Directory<'a>>,
    pub standing: Standing,
    /// Our descriptors and the numbers the child shall have them under: 0, 1 and 2 must be among them. It gets no others.
    pub descriptors: &'a [(BorrowedFd<'a>, RawFd)],
    pub limits: &'a [ResourceLimit],
    pub umask: Option<u32>,
    pub oom_score: Option<i32>,
    /// Directory of the cgroup to be born in.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// A pipe from which the child reads a byte directly before exec. If that closes without one, it never executes: so
    /// whoever holds the other end can know of the child before it can do anything.
    pub gate: Option<BorrowedFd<'a>>,
    /// What the child does to itself before it executes. The path of the program and the directory are then looked up
    /// inside, and the program gets no descriptors but 0, 1 and 2.
    pub confinement: Option<&'a confine::Program>,
    /// The user that the child becomes before it looks for its directory and its program. Not for a confined child.
    pub credentials: Option<&'a Credentials>,
}

impl<'a> Child<'a> {
    /// One about which there is nothing else to say.
    pub fn new(
        program: Program<'a>,
        arguments: &'a [&'a CStr],
        environment: &'a [&'a CStr],
        standing: Standing,
        descriptors: &'a [(BorrowedFd<'a>, RawFd)],
    ) -> Child<'a> {
        Child {
            program,
            arguments,
            environment,
            directory: None,
            standing,
            descriptors,
            limits: &[],
            umask: None,
            oom_score: None,
            cgroup: None,
            gate: None,
            confinement: None,
            credentials: None,
        }
    }

    /// Whether the child's side can rely on it: nothing may panic there.
    fn check(&self) -> Result<()> {
        let elsewhere = matches!(self.directory, Some(Directory::Open(_))) || self.credentials.is_some();
        if self.descriptors.len() > DESCRIPTORS_MAX || (elsewhere && self.confinement.is_some()) {
            return Err(Errno::INVAL);
        }
        let has = |number| self.descriptors.iter().any(|(_, target)| *target == number);
        // Some numbers above all targets are computed with.
        let odd = |target: RawFd| target < 0 || target.checked_add(5).is_none();
        match (0..3).all(has) && !self.descriptors.iter().any(|(_, target)| odd(*target)) {
            true => Ok(()),
            false => Err(Errno::BADF),
        }
    }
}

/// A child that is on its way.
pub struct Begun {
    pub pid: i32,
    pub pidfd: Pidfd,
    pub report: Report,
}

/// Where a child that is on its way tells how that went. Readable when it has.
pub struct Report(OwnedFd);

/// What a report says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Pending,
    /// The program has been executed, or the child was killed before it could be: its exit tells.
    Executed,
    Failed(Failure),
}

/// A started child.
pub struct Started {
    pub pid: i32,
    pub pidfd: Pidfd,
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
    Gate = 9,
    Confine = 10,
    Credentials = 11,
}

impl Step {
    pub fn from_number(number: u8) -> Option<Step> {
        use Step::*;
        let all = [Prepare, Clone, Cgroup, Standing, Descriptors, Limits, Directory, Exec, Gate, Confine];
        all.into_iter().chain([Step::Credentials]).find(|step| *step as u8 == number)
    }
}

/// Why a child could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    pub step: Step,
    pub errno: Errno,
    /// For [`Step::Confine`]: which operation, for [`confine::Program::describe`].
    pub operation: u16,
}

impl Failure {
    pub fn at(step: Step, errno: Errno) -> Failure {
        Failure { step, errno, operation: 0 }
    }
}

/// The most descriptors a child may be given.
pub const DESCRIPTORS_MAX: usize = 16;

/// What the child reads on its way.
struct Plan<'a> {
    child: &'a Child<'a>,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    /// The lowest number above all those the child is to have.
    above: RawFd,
    /// The clone itself could not put the child into its cgroup.
    join_cgroup: bool,
    /// What signals do has still to be set to what it is for others.
    reset_signals: bool,
    report: RawFd,
}

/// Starts a child and waits until the program has been executed.
pub fn spawn(child: &Child<'_>) -> std::result::Result<Started, Failure> {
    let Begun { pid, pidfd, report } = begin(child)?;
    loop {
        match report.read() {
            Progress::Pending => {
                let _spurious = wait_until_readable(&report);
            }
            Progress::Executed => return Ok(Started { pid, pidfd }),
            Progress::Failed(failure) => {
                bury(&pidfd);
                return Err(failure);
            }
        }
    }
}

/// Starts a child without waiting for it to get anywhere.
pub fn begin(child: &Child<'_>) -> std::result::Result<Begun, Failure> {
    let prepare = |errno| Failure::at(Step::Prepare, errno);
    child.check().map_err(prepare)?;
    let (report, its_end) = Report::pair().map_err(prepare)?;
    let (arguments, environment) = (null_ended(child.arguments), null_ended(child.environment));
    let plan = Plan::new(child, &arguments, &environment, its_end.as_raw_fd());
    // No handler of ours may run in the child.
    let mask = Set::full().install();
    let cloned = clone(child.cgroup);
    if let Ok(Cloned::Child { join_cgroup }) = cloned {
        steps::run(&Plan { join_cgroup, ..plan });
    }
    mask.install();
    cloned.and_then(Cloned::started).map_err(|errno| Failure::at(Step::Clone, errno)).map(|started| Begun {
        pid: started.pid,
        pidfd: started.pidfd,
        report,
    })
}

impl<'a> Plan<'a> {
    fn new(
        child: &'a Child<'a>,
        arguments: &[*const c_char],
        environment: &[*const c_char],
        report: RawFd,
    ) -> Plan<'a> {
        Plan {
            child,
            arguments: arguments.as_ptr(),
            environment: environment.as_ptr(),
            above: child.descriptors.iter().map(|(_, target)| *target).max().unwrap_or(2) + 1,
            join_cgroup: false,
            reset_signals: true,
            report,
        }
    }
}

impl Report {
    const BYTES: usize = 8;

    /// A report, and where the child that it is of writes it.
    pub fn pair() -> Result<(Report, OwnedFd)> {
        fault::gate()?;
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok((Report(read), write))
    }

    /// How far the child is.
    pub fn read(&self) -> Progress {
        let mut bytes = [0; Report::BYTES];
        match crate::retry(|| rustix::io::read(&self.0, &mut bytes)) {
            Ok(Report::BYTES) => {
                let [step, _, operation @ .., _, _, _, _] = bytes;
                let [.., a, b, c, d] = bytes;
                let errno = Errno::from_raw_os_error(i32::from_ne_bytes([a, b, c, d]));
                let step = Step::from_number(step).unwrap_or(Step::Exec);
                Progress::Failed(Failure { step, errno, operation: u16::from_ne_bytes(operation) })
            }
            Err(Errno::AGAIN) => Progress::Pending,
            Ok(_) | Err(_) => Progress::Executed,
        }
    }

    /// Goes on with a report that another program, which we have replaced, was waiting for.
    pub fn inherited(fd: OwnedFd) -> Report {
        Report(fd)
    }
}

impl AsFd for Report {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Report {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Reaps a child that has reported its failure: it ends at once.
fn bury(pidfd: impl AsFd) {
    let _gone = wait_until_readable(&pidfd);
    let _reaped = pidfd::reap(&pidfd);
}

fn wait_until_readable(fd: impl AsFd) -> Result<()> {
    use rustix::event::{PollFd, PollFlags, poll};
    crate::retry(|| poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).map(|_| ()))
}

fn null_ended(strings: &[&CStr]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

/// This process's environment, as a program that it starts is given it.
pub fn own_environment() -> Vec<CString> {
    let entry = |(name, value): (OsString, OsString)| [name.as_bytes(), b"=", value.as_bytes()].concat();
    std::env::vars_os().filter_map(|pair| CString::new(entry(pair)).ok()).collect()
}

/// Starts another part of this program from its open binary: our environment, our standard descriptors, and the others.
pub fn start_part(
    binary: BorrowedFd<'_>,
    arguments: &[&CStr],
    standing: Standing,
    others: &[(BorrowedFd<'_>, RawFd)],
) -> std::result::Result<Started, Failure> {
    let environment = own_environment();
    let environment: Vec<&CStr> = environment.iter().map(CString::as_c_str).collect();
    let (stdin, stdout, stderr) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    let standard = [(stdin.as_fd(), 0), (stdout.as_fd(), 1), (stderr.as_fd(), 2)];
    let descriptors: Vec<_> = standard.iter().chain(others).copied().collect();
    spawn(&Child::new(Program::Open(binary), arguments, &environment, standing, &descriptors))
}

/// Becomes another program: same process, same children. Only returns when that failed, with the reason.
pub fn replace_self(program: BorrowedFd<'_>, arguments: &[&CStr], environment: &[&CStr]) -> Errno {
    let (arguments, environment) = (null_ended(arguments), null_ended(environment));
    let (arguments, environment) = (arguments.as_ptr().cast(), environment.as_ptr().cast());
    // SAFETY: null-ended arrays of valid C strings that outlive the call.
    unsafe { libc::execveat(program.as_raw_fd(), c"".as_ptr(), arguments, environment, libc::AT_EMPTY_PATH) };
    last_errno()
}

/// On which side of a clone we are.
enum Cloned {
    Parent(Started),
    /// The clone itself could not put us into our cgroup, if there is one.
    Child {
        join_cgroup: bool,
    },
}

impl Cloned {
    fn started(self) -> Result<Started> {
        match self {
            Cloned::Parent(started) => Ok(started),
            Cloned::Child { .. } => Err(Errno::CANCELED),
        }
    }
}

/// Forks. Both sides return.
fn clone(cgroup: Option<BorrowedFd<'_>>) -> Result<Cloned> {
    match clone3(cgroup) {
        // Container runtimes commonly forbid clone3 because they cannot filter its arguments.
        Err(Errno::NOSYS | Errno::PERM) => clone_plain(cgroup.is_some()),
        outcome => outcome,
    }
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

fn clone3(cgroup: Option<BorrowedFd<'_>>) -> Result<Cloned> {
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    fault::gate()?;
    let mut pidfd: c_int = -1;
    let mut arguments = CloneArguments {
        flags: libc::CLONE_PIDFD as u64,
        pidfd: &raw mut pidfd as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArguments::default()
    };
    if let Some(cgroup) = cgroup {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = u64::from(cgroup.as_raw_fd().cast_unsigned());
    }
    // SAFETY: without CLONE_VM this is a fork: the child has its own copy of everything and, like every forked child of
    // a program that may have threads, does nothing but make system calls until it executes.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &arguments, size_of::<CloneArguments>()) };
    parent_or_child(pid, pidfd, false)
}

fn clone_plain(join_cgroup: bool) -> Result<Cloned> {
    let mut pidfd: c_int = -1;
    let flags = (libc::CLONE_PIDFD | libc::SIGCHLD) as libc::c_ulong;
    let none: *mut c_int = ptr::null_mut();
    // SAFETY: as for clone3; a null stack means the copy of the parent's. The order of the last two arguments differs
    // between machines, but both are null.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, none, &raw mut pidfd, none, none) };
    parent_or_child(pid, pidfd, join_cgroup)
}

fn parent_or_child(pid: libc::c_long, pidfd: c_int, join_cgroup: bool) -> Result<Cloned> {
    match i32::try_from(pid) {
        Ok(0) => Ok(Cloned::Child { join_cgroup }),
        Ok(pid) if pid > 0 => {
            // SAFETY: the kernel stored a new descriptor there, which nobody else owns.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Cloned::Parent(Started { pid, pidfd: Pidfd::cloned(pid, pidfd) }))
        }
        _ => Err(last_errno()),
    }
}
