//! Replacing binaries: a new worker beside the old one, a new keeper in place of this one.

use crate::LINK_VERSION;
use crate::keeper::{CANDIDATE, CANDIDATE_LINK, Keeper, log};
use crate::message::{Event, MESSAGE_BYTES, Request, What};
use crate::state::{State, StoredEntry};
use crate::worker::{Worker, environment};
use outpost_sys::epoll::{Interest, wait_readable};
use outpost_sys::pidfd::{self, Exit, How};
use outpost_sys::signal::Signal;
use outpost_sys::spawn::{self, Child, Program};
use outpost_sys::{Errno, Result, file, message};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// A new worker must be ready within this time, or the old one stays.
const CANDIDATE_PATIENCE: Duration = Duration::from_secs(10);

/// A worker that was asked to leave is killed after this time: it loses nothing by that.
pub(crate) const RETIRE_PATIENCE: Duration = Duration::from_secs(1);

/// A new keeper binary must have read our state within this time, or it is not executed.
const CHECK_PATIENCE: Duration = Duration::from_secs(5);

/// A worker from a new binary that gets ready beside the old one.
pub(crate) struct Candidate {
    pub(crate) worker: Worker,
    binary: OwnedFd,
    pub(crate) deadline: Instant,
}

impl Keeper {
    pub(crate) fn start_candidate(&mut self, binary: Option<OwnedFd>) {
        let refuse = |errno| Event::NotReplaced(What::Worker, errno);
        let Some(binary) = binary else { return self.tell(refuse(Errno::BADF)) };
        if self.is_embedded() {
            return self.tell(refuse(Errno::OPNOTSUPP));
        }
        if self.candidate.is_some() {
            return self.tell(refuse(Errno::BUSY));
        }
        let worker = match Worker::start(&binary, &self.arguments) {
            Ok(worker) => worker,
            Err(failure) => return self.tell(refuse(failure.errno)),
        };
        let watched = self.epoll.add(&worker.link, CANDIDATE_LINK, Interest::Read);
        if let Err(errno) = watched.and_then(|()| self.epoll.add(&worker.pidfd, CANDIDATE, Interest::Read)) {
            let _gone_already = pidfd::signal(&worker.pidfd, Signal::KILL);
            return self.tell(refuse(errno));
        }
        self.candidate = Some(Candidate { worker, binary, deadline: Instant::now() + CANDIDATE_PATIENCE });
    }

    /// The candidate says that it is ready: the old worker may go.
    pub(crate) fn handle_candidate(&mut self) {
        let Some(candidate) = &mut self.candidate else { return };
        let mut bytes = [0; MESSAGE_BYTES];
        let hello = match message::receive(&candidate.worker.link, &mut bytes, &mut Vec::new()) {
            Ok(Some(len)) => bytes.get(..len).and_then(Request::decode),
            Err(Errno::AGAIN) => return,
            Ok(None) | Err(_) => return self.candidate_failed(Errno::PIPE),
        };
        if hello != Some(Request::Hello { version: LINK_VERSION }) {
            return self.candidate_failed(Errno::PROTO);
        }
        candidate.worker.listens = true;
        match &self.worker {
            Some(_) => {
                self.retire_by = Some(Instant::now() + RETIRE_PATIENCE);
                self.tell(Event::Retire);
            }
            None => {
                if let Some(candidate) = self.candidate.take() {
                    self.promote(candidate);
                }
            }
        }
    }

    pub(crate) fn promote(&mut self, candidate: Candidate) {
        let Candidate { worker, binary, .. } = candidate;
        let _registered = (self.epoll.remove(&worker.link), self.epoll.remove(&worker.pidfd));
        self.fallback = self.binary.replace(binary);
        self.restarts.forget();
        let listens = worker.listens;
        self.seat(worker);
        if listens {
            self.greet(LINK_VERSION);
        }
        self.tell(Event::Replaced(What::Worker));
    }

    pub(crate) fn candidate_failed(&mut self, errno: Errno) {
        let Some(Candidate { worker, .. }) = self.candidate.take() else { return };
        let _gone_already = pidfd::signal(&worker.pidfd, Signal::KILL);
        let _registered = (self.epoll.remove(&worker.link), self.epoll.remove(&worker.pidfd));
        // Not waited for: like every child that the table does not know, it is reaped when its end is signalled.
        log(format_args!("the new worker binary did not get ready ({errno}); the old one stays"));
        self.tell(Event::NotReplaced(What::Worker, errno));
    }

    pub(crate) fn keep_deadlines(&mut self) {
        let now = Instant::now();
        if self
            .candidate
            .as_ref()
            .is_some_and(|candidate| candidate.deadline <= now && !candidate.worker.listens)
        {
            self.candidate_failed(Errno::TIMEDOUT);
        }
        if self.start_by.is_some_and(|time| time <= now) {
            self.start_worker();
        }
        if self.retire_by.is_some_and(|deadline| deadline <= now) {
            self.retire_by = None;
            if let Some(worker) = &self.worker {
                let _gone_already = pidfd::signal(&worker.pidfd, Signal::KILL);
            }
        }
    }

    // Replacing the keeper.

    pub(crate) fn replace_self(&mut self, binary: Option<OwnedFd>) {
        // What is untold would stay so: the state does not say what the worker has been told.
        self.tell_news();
        let refused = match binary {
            None => Errno::BADF,
            // It is not our process to replace.
            Some(_) if self.is_embedded() => Errno::OPNOTSUPP,
            Some(_) if self.candidate.is_some() => Errno::BUSY,
            Some(_) if self.has_news() => Errno::AGAIN,
            Some(binary) => match self.execute(&binary) {
                Ok(never) => match never {},
                Err(errno) => errno,
            },
        };
        log(format_args!("the new keeper binary was not put in place ({refused}); this one stays"));
        self.tell(Event::NotReplaced(What::Keeper, refused));
    }

    /// Hands everything to the new binary and becomes it. Before anything is changed, the binary must show, as a
    /// process of its own, that it understands our state.
    fn execute(&mut self, binary: &OwnedFd) -> Result<std::convert::Infallible> {
        let state = file::sealed_memory("outpost-keeper", &self.state(binary.as_raw_fd()).encode())?;
        check_binary(binary, &state)?;
        let inherited = self.set_all_inherited(true).and_then(|()| file::set_inherited(&state, true));
        let errno = match inherited.and_then(|()| file::set_inherited(binary, true)) {
            Ok(()) => {
                let number = CString::new(state.as_raw_fd().to_string()).map_err(|_| Errno::INVAL)?;
                let arguments = [c"outpost", c"keeper", c"--state", number.as_c_str()];
                let environment = environment();
                let environment: Vec<&CStr> = environment.iter().map(CString::as_c_str).collect();
                spawn::replace_self(binary.as_fd(), &arguments, &environment)
            }
            Err(errno) => errno,
        };
        let _back = self.set_all_inherited(false);
        Err(errno)
    }

    fn state(&self, binary: RawFd) -> State {
        let entries = self.table.iter().map(|(slot, entry)| StoredEntry {
            slot: *slot,
            pid: entry.pid,
            standing: entry.standing,
            pidfd: entry.pidfd.as_ref().map_or(-1, AsRawFd::as_raw_fd),
            held: entry.held.iter().map(|(role, fd)| (*role, fd.as_raw_fd())).collect(),
            report: entry.report.as_ref().map_or(-1, AsRawFd::as_raw_fd),
        });
        State {
            binary,
            arguments: self.arguments.clone(),
            worker: self.worker.as_ref().map(Worker::stored),
            replaced: true,
            entries: entries.collect(),
        }
    }

    fn set_all_inherited(&self, inherited: bool) -> Result<()> {
        for entry in self.table.values() {
            for fd in entry.pidfd.iter().chain(entry.held.iter().map(|(_, fd)| fd)) {
                file::set_inherited(fd, inherited)?;
            }
            if let Some(report) = &entry.report {
                file::set_inherited(report, inherited)?;
            }
        }
        if let Some(worker) = &self.worker {
            file::set_inherited(&worker.link, inherited)?;
            file::set_inherited(&worker.pidfd, inherited)?;
        }
        Ok(())
    }
}

/// Runs `keeper --check` of a new binary on our state.
fn check_binary(binary: &OwnedFd, state: &OwnedFd) -> Result<()> {
    let environment = environment();
    let environment: Vec<&CStr> = environment.iter().map(CString::as_c_str).collect();
    let (stdin, stdout, stderr) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    let started = spawn::spawn(&Child {
        program: Program::Open(binary.as_fd()),
        arguments: &[c"outpost", c"keeper", c"--check", c"3"],
        environment: &environment,
        directory: None,
        standing: spawn::Standing::Group,
        descriptors: &[(stdin.as_fd(), 0), (stdout.as_fd(), 1), (stderr.as_fd(), 2), (state.as_fd(), 3)],
        limits: &[],
        umask: None,
        oom_score: None,
        cgroup: None,
        gate: None,
    })
    .map_err(|failure| failure.errno)?;
    if !wait_readable(&started.pidfd, CHECK_PATIENCE)? {
        let _gone_already = pidfd::signal(&started.pidfd, Signal::KILL);
        let _gone = wait_readable(&started.pidfd, RETIRE_PATIENCE);
        let _reaped = pidfd::reap(&started.pidfd);
        return Err(Errno::TIMEDOUT);
    }
    match pidfd::reap(&started.pidfd)? {
        Some(Exit { how: How::Code(0), .. }) => Ok(()),
        _ => Err(Errno::NOEXEC),
    }
}
