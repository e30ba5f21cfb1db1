//! Replacing binaries: a new worker beside the old one, a new keeper in place of this one.

use crate::LINK_VERSION;
use crate::keeper::{CANDIDATE, CANDIDATE_LINK, Keeper};
use crate::message::{Event, MESSAGE_BYTES, Request, What};
use crate::state::State;
use crate::table::Entry;
use crate::worker::Worker;
use outpost_sys::epoll::{Interest, wait_readable};
use outpost_sys::pidfd::{self, Exit, How};
use outpost_sys::signal::Signal;
use outpost_sys::{Errno, Result, file, message, spawn};
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
        match self.replaceable(binary).and_then(|binary| self.begin_candidate(binary)) {
            Ok(candidate) => self.candidate = Some(candidate),
            Err(errno) => self.tell(Event::NotReplaced(What::Worker, errno)),
        }
    }

    /// The binary, if there is one and this is the time for it.
    fn replaceable(&self, binary: Option<OwnedFd>) -> Result<OwnedFd> {
        match binary {
            // It is not our process to replace.
            Some(_) if self.is_embedded() => Err(Errno::OPNOTSUPP),
            Some(_) if self.candidate.is_some() => Err(Errno::BUSY),
            binary => binary.ok_or(Errno::BADF),
        }
    }

    fn begin_candidate(&self, binary: OwnedFd) -> Result<Candidate> {
        let worker = Worker::start(&binary, &self.arguments).map_err(|failure| failure.errno)?;
        let watched = self.epoll.add(&worker.link, CANDIDATE_LINK, Interest::Read);
        let watched = watched.and_then(|()| self.epoll.add(&worker.pidfd, CANDIDATE, Interest::Read));
        watched.inspect_err(|_| worker.kill())?;
        Ok(Candidate { worker, binary, deadline: Instant::now() + CANDIDATE_PATIENCE })
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
        self.retire_by = Some(Instant::now() + RETIRE_PATIENCE);
        self.tell(Event::Retire);
    }

    pub(crate) fn promote(&mut self, candidate: Candidate) {
        let Candidate { worker, binary, .. } = candidate;
        worker.unwatch(&self.epoll);
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
        worker.kill();
        worker.unwatch(&self.epoll);
        // Not waited for: like every child that the table does not know, it is reaped when its end is signalled.
        self.complain(format_args!("the new worker binary did not get ready ({errno}); the old one stays"));
        self.tell(Event::NotReplaced(What::Worker, errno));
    }

    pub(crate) fn keep_deadlines(&mut self) {
        let now = Instant::now();
        let is_late = |candidate: &Candidate| candidate.deadline <= now && !candidate.worker.listens;
        if self.candidate.as_ref().is_some_and(is_late) {
            self.candidate_failed(Errno::TIMEDOUT);
        }
        if self.start_by.is_some_and(|time| time <= now) {
            self.start_worker();
        }
        if self.retire_by.is_some_and(|deadline| deadline <= now) {
            self.retire_by = None;
            self.worker.iter().for_each(Worker::kill);
        }
        self.keep_stopping(now);
        self.keep_pulse(now);
        self.store_due(now);
    }

    // Replacing the keeper.

    pub(crate) fn replace_self(&mut self, binary: Option<OwnedFd>) {
        let Err(refused) = self.replaceable(binary).and_then(|binary| self.execute(&binary));
        self.complain(format_args!("the new keeper binary was not put in place ({refused}); this one stays"));
        self.tell(Event::NotReplaced(What::Keeper, refused));
    }

    /// Hands everything to the new binary and becomes it. Before anything is changed, the binary must show, as a
    /// process of its own, that it understands our state.
    fn execute(&mut self, binary: &OwnedFd) -> Result<std::convert::Infallible> {
        // What is untold would stay so: the state does not say what the worker has been told.
        self.tell_news();
        if self.has_news() {
            return Err(Errno::AGAIN);
        }
        // The state has no place for them.
        for pidfd in &self.discarded {
            let _slow = wait_readable(pidfd, RETIRE_PATIENCE);
        }
        self.end_discarded();
        if !self.discarded.is_empty() {
            return Err(Errno::AGAIN);
        }
        let state = file::sealed_memory("outpost-keeper", &self.state(binary.as_raw_fd()).encode())?;
        check_binary(binary, &state)?;
        let inherited = self.set_all_inherited(true).and_then(|()| file::set_inherited(&state, true));
        let errno = match inherited.and_then(|()| file::set_inherited(binary, true)) {
            Ok(()) => {
                let number = CString::new(state.as_raw_fd().to_string()).map_err(|_| Errno::INVAL)?;
                let arguments = [c"outpost", c"keeper", c"--state", number.as_c_str()];
                let environment = spawn::own_environment();
                let environment: Vec<&CStr> = environment.iter().map(CString::as_c_str).collect();
                spawn::replace_self(binary.as_fd(), &arguments, &environment)
            }
            Err(errno) => errno,
        };
        let _back = self.set_all_inherited(false);
        Err(errno)
    }

    fn state(&self, binary: RawFd) -> State {
        let (arguments, worker) = (self.arguments.clone(), self.worker.as_ref().map(Worker::stored));
        let entries = self.table.iter().map(|(slot, entry)| entry.stored(*slot)).collect();
        State { binary, arguments, worker, replaced: true, entries }
    }

    fn set_all_inherited(&self, inherited: bool) -> Result<()> {
        let worker = self.worker.iter().flat_map(|worker| [worker.link.as_fd(), worker.pidfd.as_fd()]);
        let mut all = self.table.values().flat_map(Entry::descriptors).chain(worker);
        all.try_for_each(|fd| file::set_inherited(fd, inherited))
    }
}

/// Whether a new binary understands our state. One that takes nothing at all for a state as well has not looked: it is none
/// of ours, whatever it exits with.
fn check_binary(binary: &OwnedFd, state: &OwnedFd) -> Result<()> {
    let nothing = file::sealed_memory("outpost-keeper", &[])?;
    match understands(binary, state)? && !understands(binary, &nothing)? {
        true => Ok(()),
        false => Err(Errno::NOEXEC),
    }
}

/// Runs `keeper --check` of a binary on a state.
fn understands(binary: &OwnedFd, state: &OwnedFd) -> Result<bool> {
    let started = spawn::start_part(
        binary.as_fd(),
        &[c"outpost", c"keeper", c"--check", c"3"],
        spawn::Standing::Group,
        &[(state.as_fd(), 3)],
    );
    let pidfd = started.map_err(|failure| failure.errno)?.pidfd;
    if !wait_readable(&pidfd, CHECK_PATIENCE)? {
        let _gone_already = pidfd::signal(&pidfd, Signal::KILL);
        let _gone = wait_readable(&pidfd, RETIRE_PATIENCE);
        let _reaped = pidfd::reap(&pidfd);
        return Err(Errno::TIMEDOUT);
    }
    Ok(matches!(pidfd::reap(&pidfd)?, Some(Exit { how: How::Code(0), .. })))
}
