//! Starting a program: a clone, the child's steps to exec, and a report of the step that failed.
//!
//! The clone does not wait for the exec. vfork(2) would suspend the caller while the child looks up its directory and
//! its program, and a file system that never answers would suspend it for ever. The result arrives by a pipe that
//! closes at exec ([`ExecStatusPipe`]).
//!
//! Between clone and exec the child only makes system calls: it neither allocates nor locks. `plan::Plan` holds all
//! that it reads. Where that is safe (`clone::may_share_memory`), the child shares the memory of its parent until
//! exec, so the kernel copies no page tables. Then it has a stack of its own and makes its system calls without the C
//! library, whose `errno` is the parent's.

mod clone;
mod plan;
mod raw;
mod steps;

use crate::credentials::Credentials;
use crate::pidfd::Pidfd;
use crate::signal::{Set, last_errno};
use crate::{Errno, Result, confine, fault, pidfd};
use clone::Memory;
use plan::Plan;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::pipe::PipeFlags;
use std::ffi::{CStr, CString, OsString};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;

/// The child's process group, session and terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionKind {
    /// Leader of a new process group in the parent's session.
    Group,
    /// Leader of a new session, without a terminal.
    Session,
    /// Leader of a new session. Its standard input becomes its controlling terminal.
    Terminal,
}

/// The file that the child executes.
#[derive(Clone, Copy)]
pub enum Executable<'a> {
    Path(&'a CStr),
    /// An open file. It can be executed after its name was removed.
    Open(BorrowedFd<'a>),
}

/// The child's working directory.
#[derive(Clone, Copy)]
pub enum WorkingDirectory<'a> {
    Path(&'a CStr),
    /// An open directory, which a rename does not change. Not for a confined child, which looks its directory up inside
    /// of its own mounts.
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

/// The kernel's numbers of other limits: core files, processor time, address space, file size.
pub const CORE_LIMIT: u32 = libc::RLIMIT_CORE;
pub const CPU_LIMIT: u32 = libc::RLIMIT_CPU;
pub const MEMORY_LIMIT: u32 = libc::RLIMIT_AS;
pub const FILE_SIZE_LIMIT: u32 = libc::RLIMIT_FSIZE;

/// The description of a child.
pub struct Child<'a> {
    pub program: Executable<'a>,
    pub arguments: &'a [&'a CStr],
    pub environment: &'a [&'a CStr],
    pub directory: Option<WorkingDirectory<'a>>,
    pub session: SessionKind,
    /// The parent's descriptors and their numbers in the child. They must include 0, 1 and 2. The child gets no others.
    pub descriptors: &'a [(BorrowedFd<'a>, RawFd)],
    pub limits: &'a [ResourceLimit],
    pub umask: Option<u32>,
    pub oom_score: Option<i32>,
    /// The directory of the cgroup that the child starts in.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// A pipe from which the child reads one byte directly before exec. If the pipe closes first, the child exits. So
    /// the holder of the other end can record the child before its program runs.
    pub exec_gate: Option<BorrowedFd<'a>>,
    /// The sandbox that the child enters before exec. It resolves the program and the directory inside of it, and
    /// passes no descriptors but 0, 1 and 2 to the program.
    pub confinement: Option<&'a confine::Program>,
    /// The user that the child becomes before it looks up its directory and its program. Not for a confined child.
    pub credentials: Option<&'a Credentials>,
}

impl<'a> Child<'a> {
    /// A child without any of the options.
    pub fn new(
        program: Executable<'a>,
        arguments: &'a [&'a CStr],
        environment: &'a [&'a CStr],
        session: SessionKind,
        descriptors: &'a [(BorrowedFd<'a>, RawFd)],
    ) -> Child<'a> {
        Child {
            program,
            arguments,
            environment,
            directory: None,
            session,
            descriptors,
            limits: &[],
            umask: None,
            oom_score: None,
            cgroup: None,
            exec_gate: None,
            confinement: None,
            credentials: None,
        }
    }

    /// Checks what the child relies on, since it must not panic.
    fn check(&self) -> Result<()> {
        let is_unconfined =
            matches!(self.directory, Some(WorkingDirectory::Open(_))) || self.credentials.is_some();
        if self.descriptors.len() > DESCRIPTORS_MAX || (is_unconfined && self.confinement.is_some()) {
            return Err(Errno::INVAL);
        }
        let has = |number| self.descriptors.iter().any(|(_, target)| *target == number);
        // The child uses a few numbers above all targets for itself.
        let is_out_of_range = |target: RawFd| target < 0 || target.checked_add(5).is_none();
        match (0..3).all(has) && !self.descriptors.iter().any(|(_, target)| is_out_of_range(*target)) {
            true => Ok(()),
            false => Err(Errno::BADF),
        }
    }
}

/// A child that was cloned and may not have executed its program yet.
pub struct Begun {
    pub pid: i32,
    pub pidfd: Pidfd,
    pub status: ExecStatusPipe,
}

/// The read end of the pipe by which a child reports a failed start. It reaches EOF at exec and at exit. Readable when
/// there is either.
pub struct ExecStatusPipe {
    pipe: OwnedFd,
    /// The memory that the child reads until EOF.
    memory: Option<Memory>,
}

/// How far a start is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecStatus {
    Pending,
    /// The child has executed its program, or was killed before. The exit status shows which.
    Executed,
    Failed(Failure),
}

/// A child that has executed its program.
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
    Session = 4,
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
        let all = [Prepare, Clone, Cgroup, Session, Descriptors, Limits, Directory, Exec, Gate, Confine];
        all.into_iter().chain([Step::Credentials]).find(|step| *step as u8 == number)
    }
}

/// The reason why a child could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    pub step: Step,
    pub errno: Errno,
    /// For [`Step::Confine`]: the operation that failed, for [`confine::Program::describe`].
    pub operation: u16,
}

impl Failure {
    pub fn at(step: Step, errno: Errno) -> Failure {
        Failure { step, errno, operation: 0 }
    }
}

/// Maximum number of descriptors that a child may be given.
pub const DESCRIPTORS_MAX: usize = 16;

/// Starts a child and waits until it has executed its program.
pub fn spawn(child: &Child<'_>) -> std::result::Result<Started, Failure> {
    let Begun { pid, pidfd, status } = begin(child)?;
    loop {
        match status.read() {
            ExecStatus::Pending => {
                let _spurious = wait_until_readable(&status);
            }
            ExecStatus::Executed => return Ok(Started { pid, pidfd }),
            ExecStatus::Failed(failure) => {
                reap_failed(&pidfd);
                return Err(failure);
            }
        }
    }
}

/// Starts a child and does not wait for its exec.
pub fn begin(child: &Child<'_>) -> std::result::Result<Begun, Failure> {
    let prepare = |errno| Failure::at(Step::Prepare, errno);
    child.check().map_err(prepare)?;
    let (read, write) = status_pipe().map_err(prepare)?;
    let plan = Plan::new(child, write.as_raw_fd());
    // No signal handler of the parent may run in the child.
    let mask = Set::full().install();
    let cloned = clone::clone(child, plan);
    mask.install();
    let (Started { pid, pidfd }, memory) = cloned.map_err(|errno| Failure::at(Step::Clone, errno))?;
    Ok(Begun { pid, pidfd, status: ExecStatusPipe { pipe: read, memory } })
}

fn status_pipe() -> Result<(OwnedFd, OwnedFd)> {
    fault::failpoint()?;
    rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
}

impl ExecStatusPipe {
    const BYTES: usize = 8;

    /// Reads how far the child is.
    pub fn read(&self) -> ExecStatus {
        let mut bytes = [0; ExecStatusPipe::BYTES];
        match crate::retry(|| rustix::io::read(&self.pipe, &mut bytes)) {
            Ok(ExecStatusPipe::BYTES) => {
                let [step, _, operation @ .., _, _, _, _] = bytes;
                let [.., a, b, c, d] = bytes;
                let errno = Errno::from_raw_os_error(i32::from_ne_bytes([a, b, c, d]));
                let step = Step::from_number(step).unwrap_or(Step::Exec);
                ExecStatus::Failed(Failure { step, errno, operation: u16::from_ne_bytes(operation) })
            }
            Err(Errno::AGAIN) => ExecStatus::Pending,
            Ok(_) | Err(_) => ExecStatus::Executed,
        }
    }

    /// The pipe of a child that the program started which this one has replaced. The child shares no memory with us.
    pub fn inherited(fd: OwnedFd) -> ExecStatusPipe {
        ExecStatusPipe { pipe: fd, memory: None }
    }

    /// Whether the child has executed its program or has exited. Discards a failure that was not read.
    fn is_at_eof(&self) -> bool {
        let mut bytes = [0; ExecStatusPipe::BYTES];
        loop {
            match crate::retry(|| rustix::io::read(&self.pipe, &mut bytes)) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }
}

impl Drop for ExecStatusPipe {
    /// Frees the memory of the child at EOF. At exec and at exit the kernel detaches a process from its memory before
    /// it closes its descriptors. Before EOF the child still runs in that memory, so it is leaked.
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take()
            && !self.is_at_eof()
        {
            std::mem::forget(memory);
        }
    }
}

impl AsFd for ExecStatusPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

impl AsRawFd for ExecStatusPipe {
    fn as_raw_fd(&self) -> RawFd {
        self.pipe.as_raw_fd()
    }
}

/// Reaps a child that has reported its failure. It exits directly after the report.
fn reap_failed(pidfd: impl AsFd) {
    let _exited = wait_until_readable(&pidfd);
    let _reaped = pidfd::reap(&pidfd);
}

fn wait_until_readable(fd: impl AsFd) -> Result<()> {
    use rustix::event::{PollFd, PollFlags, poll};
    crate::retry(|| poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).map(|_| ()))
}

/// This process's environment as `NAME=value` strings.
pub fn own_environment() -> Vec<CString> {
    let entry = |(name, value): (OsString, OsString)| [name.as_bytes(), b"=", value.as_bytes()].concat();
    std::env::vars_os().filter_map(|pair| CString::new(entry(pair)).ok()).collect()
}

/// Starts another process of this program from its open binary, with our environment, our standard descriptors, and the
/// given ones.
pub fn spawn_self(
    binary: BorrowedFd<'_>,
    arguments: &[&CStr],
    session: SessionKind,
    others: &[(BorrowedFd<'_>, RawFd)],
) -> std::result::Result<Started, Failure> {
    let environment = own_environment();
    let environment: Vec<&CStr> = environment.iter().map(CString::as_c_str).collect();
    let (stdin, stdout, stderr) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    let standard = [(stdin.as_fd(), 0), (stdout.as_fd(), 1), (stderr.as_fd(), 2)];
    let descriptors: Vec<_> = standard.iter().chain(others).copied().collect();
    spawn(&Child::new(Executable::Open(binary), arguments, &environment, session, &descriptors))
}

/// Executes another program in this process, which keeps its pid and its children. Returns only on failure.
pub fn replace_self(program: BorrowedFd<'_>, arguments: &[&CStr], environment: &[&CStr]) -> Errno {
    let (arguments, environment) = (plan::Strings::new(arguments), plan::Strings::new(environment));
    let (arguments, environment) = (arguments.as_ptr().cast(), environment.as_ptr().cast());
    // SAFETY: null-terminated arrays of valid C strings that outlive the call.
    unsafe { libc::execveat(program.as_raw_fd(), c"".as_ptr(), arguments, environment, libc::AT_EMPTY_PATH) };
    last_errno()
}
