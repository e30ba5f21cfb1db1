//! Shared test helpers: a child that is killed and reaped on drop, reads with a deadline, tests in a process
//! of their own.

use outpost_sys::Errno;
use outpost_sys::credentials::Credentials;
use outpost_sys::file::{self, Open};
use outpost_sys::pidfd::{self, Exit, Pidfd};
use outpost_sys::pipe::{Pipe, pipe};
use outpost_sys::signal::Signal;
use outpost_sys::spawn::{Child, Executable, Failure, ResourceLimit, SessionKind, WorkingDirectory, spawn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// The timeout of every wait. Far longer than a slow machine under load needs.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits for readability or a hang-up. Returns false on a timeout.
pub(crate) fn readable(fd: impl AsFd) -> bool {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap(),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
            Err(Errno::INTR) => {}
            Ok(count) => return count > 0,
            Err(errno) => panic!("poll: {errno}"),
        }
    }
}

fn read_some(fd: impl AsFd) -> Vec<u8> {
    assert!(readable(&fd), "nothing to read within {TIMEOUT:?}");
    let mut buffer = [0; 4096];
    match rustix::io::read(&fd, &mut buffer) {
        Ok(count) => buffer[..count].to_vec(),
        // The other side of the terminal is closed.
        Err(Errno::IO) => Vec::new(),
        Err(errno) => panic!("read: {errno}"),
    }
}

/// Reads until EOF.
pub(crate) fn read_to_end(fd: impl AsFd) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let some = read_some(&fd);
        if some.is_empty() {
            return all;
        }
        all.extend(some);
    }
}

/// Reads until `ready` accepts the text. Fails at EOF.
pub(crate) fn read_until(fd: impl AsFd, ready: impl Fn(&str) -> bool) -> String {
    let mut all = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&all).into_owned();
        if ready(&text) {
            return text;
        }
        let some = read_some(&fd);
        assert!(!some.is_empty(), "ended after {text:?}");
        all.extend(some);
    }
}

/// The first `count` lines.
pub(crate) fn read_lines(fd: impl AsFd, count: usize) -> Vec<String> {
    read_until(fd, |text| text.matches('\n').count() >= count).lines().map(str::to_owned).collect()
}

pub(crate) fn write_all(fd: impl AsFd, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let written = rustix::io::write(&fd, bytes).unwrap();
        bytes = &bytes[written..];
    }
}

pub(crate) fn null() -> OwnedFd {
    file::open("/dev/null", Open::ReadWrite).unwrap()
}

pub(crate) fn cstring(text: impl Into<Vec<u8>>) -> CString {
    CString::new(text).unwrap()
}

pub(crate) fn me() -> i32 {
    i32::try_from(std::process::id()).unwrap()
}

/// A started child. Killed and reaped on drop.
pub(crate) struct Kid {
    pub(crate) pid: i32,
    pub(crate) pidfd: Pidfd,
    reaped: bool,
}

impl Kid {
    /// Waits for its exit and reaps it.
    pub(crate) fn end(&mut self) -> Exit {
        assert!(readable(&self.pidfd), "child {} does not end", self.pid);
        let exit = pidfd::reap(&self.pidfd).unwrap().expect("ended");
        self.reaped = true;
        exit
    }
}

impl Drop for Kid {
    fn drop(&mut self) {
        if !self.reaped {
            let _gone = pidfd::signal(&self.pidfd, Signal::KILL);
            let _in_time = readable(&self.pidfd);
            let _reaped = pidfd::reap(&self.pidfd);
        }
    }
}

/// An owned child specification, with only `PATH` in its environment.
pub(crate) struct Spec {
    pub(crate) program: CString,
    pub(crate) open: Option<OwnedFd>,
    pub(crate) arguments: Vec<CString>,
    pub(crate) environment: Vec<CString>,
    pub(crate) directory: Option<CString>,
    pub(crate) session: SessionKind,
    pub(crate) limits: Vec<ResourceLimit>,
    pub(crate) umask: Option<u32>,
    pub(crate) oom_score: Option<i32>,
    pub(crate) cgroup: Option<OwnedFd>,
    pub(crate) credentials: Option<Credentials>,
}

pub(crate) fn command(program: &str, arguments: &[&str]) -> Spec {
    Spec {
        program: cstring(program),
        open: None,
        arguments: [program].iter().chain(arguments).map(|text| cstring(*text)).collect(),
        environment: vec![cstring("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")],
        directory: None,
        session: SessionKind::Group,
        limits: Vec::new(),
        umask: None,
        oom_score: None,
        cgroup: None,
        credentials: None,
    }
}

pub(crate) fn shell(script: &str) -> Spec {
    command("/bin/sh", &["-c", script])
}

impl Spec {
    pub(crate) fn start(&self, descriptors: &[(BorrowedFd<'_>, RawFd)]) -> Result<Kid, Failure> {
        let arguments: Vec<&CStr> = self.arguments.iter().map(CString::as_c_str).collect();
        let environment: Vec<&CStr> = self.environment.iter().map(CString::as_c_str).collect();
        let started = spawn(&Child {
            program: self
                .open
                .as_ref()
                .map_or(Executable::Path(&self.program), |file| Executable::Open(file.as_fd())),
            arguments: &arguments,
            environment: &environment,
            directory: self.directory.as_deref().map(WorkingDirectory::Path),
            session: self.session,
            descriptors,
            limits: &self.limits,
            umask: self.umask,
            oom_score: self.oom_score,
            cgroup: self.cgroup.as_ref().map(AsFd::as_fd),
            exec_gate: None,
            confinement: None,
            credentials: self.credentials.as_ref(),
        })?;
        Ok(Kid { pid: started.pid, pidfd: started.pidfd, reaped: false })
    }

    /// Starts it with these descriptors as 0 and 1, and our own 2.
    pub(crate) fn start_on(&self, input: impl AsFd, output: impl AsFd) -> Result<Kid, Failure> {
        let errors = std::io::stderr();
        self.start(&[(input.as_fd(), 0), (output.as_fd(), 1), (errors.as_fd(), 2)])
    }

    /// Starts it on /dev/null.
    pub(crate) fn start_quiet(&self) -> Result<Kid, Failure> {
        self.start_on(null(), null())
    }

    /// Starts it with a pipe as output. Returns the read end.
    pub(crate) fn start_piped(&self) -> (Kid, OwnedFd) {
        let Pipe { read, write } = pipe().unwrap();
        (self.start_on(null(), write).unwrap(), read)
    }

    /// Starts it with two pipes as input and output. EOF on the input ends all descendants that read it. They
    /// are not our children, so a failed test could not clean them up otherwise.
    pub(crate) fn start_gated(&self) -> (Kid, OwnedFd, OwnedFd) {
        let (gate, output): (Pipe, Pipe) = (pipe().unwrap(), pipe().unwrap());
        (self.start_on(gate.read, output.write).unwrap(), gate.write, output.read)
    }

    /// Everything it writes, and how it exits.
    pub(crate) fn output(&self) -> (Vec<u8>, Exit) {
        let (mut kid, output) = self.start_piped();
        (read_to_end(output), kid.end())
    }

    /// What it writes. The program must succeed.
    pub(crate) fn text(&self) -> String {
        let (output, exit) = self.output();
        let text = String::from_utf8(output).unwrap();
        assert_eq!(exit.cause, pidfd::ExitCause::Code(0), "{text}");
        text
    }

    pub(crate) fn failure(&self) -> Failure {
        self.start_quiet().err().expect("must not start")
    }
}

const ALONE: &str = "OUTPOST_SYS_TEST_ALONE";

/// Runs `body` in a process without other tests, for state of the whole process (descriptors, children,
/// limits). `test` is the full name of the calling test, `before` a command line to run it under.
pub(crate) fn alone(test: &str, before: &[&str], body: impl FnOnce()) {
    if std::env::var(ALONE).is_ok_and(|name| name == test) {
        return body();
    }
    let exe = std::env::current_exe().unwrap();
    let mut line: Vec<&str> = before.to_vec();
    line.extend([exe.to_str().unwrap(), test, "--exact", "--nocapture", "--test-threads=1"]);
    let text = rerun(&line, &[(ALONE, test)]);
    assert!(text.contains("1 passed"), "{test} is not the name of a test:\n{text}");
}

/// Runs a test binary with our environment and these variables. Returns its output. The binary must succeed.
pub(crate) fn rerun(line: &[&str], variables: &[(&str, &str)]) -> String {
    let mut spec = command(line[0], &line[1..]);
    spec.environment = std::env::vars()
        .filter(|(name, _)| variables.iter().all(|(other, _)| other != name))
        .chain(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
        .map(|(name, value)| cstring(format!("{name}={value}")))
        .collect();
    let Pipe { read, write } = pipe().unwrap();
    let nothing = null();
    let mut kid = spec.start(&[(nothing.as_fd(), 0), (write.as_fd(), 1), (write.as_fd(), 2)]).unwrap();
    drop(write);
    let text = String::from_utf8_lossy(&read_to_end(read)).into_owned();
    let exit = kid.end();
    assert_eq!(exit.cause, pidfd::ExitCause::Code(0), "{line:?}:\n{text}");
    text
}

pub(crate) fn root() -> bool {
    outpost_sys::process::effective_uid() == 0
}
