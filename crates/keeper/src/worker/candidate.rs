//! Replacing the worker: a worker of a new binary starts beside the old one and takes over when it is ready.

use super::{RETIRE_TIMEOUT, Worker};
use crate::LINK_VERSION;
use crate::keeper::{CANDIDATE, CANDIDATE_LINK, Keeper};
use crate::message::{Component, Event, MESSAGE_BYTES_MAX, Request};
use outpost_sys::epoll::Interest;
use outpost_sys::{Errno, Result, message};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// A new worker must be ready within this time, or the old one stays.
const CANDIDATE_TIMEOUT: Duration = Duration::from_secs(10);

/// A worker of a new binary, started beside the old worker.
pub(super) struct Candidate {
    pub(super) worker: Worker,
    binary: OwnedFd,
    pub(super) deadline: Instant,
}

impl Keeper {
    pub(crate) fn start_candidate(&mut self, binary: Option<OwnedFd>) {
        match self.replaceable(binary).and_then(|binary| self.begin_candidate(binary)) {
            Ok(candidate) => self.worker.candidate = Some(candidate),
            Err(errno) => self.events.push(Event::NotReplaced(Component::Worker, errno)),
        }
    }

    fn begin_candidate(&self, binary: OwnedFd) -> Result<Candidate> {
        let worker = Worker::start(&binary, &self.worker.arguments).map_err(|failure| failure.errno)?;
        let watched = self.epoll.add(&worker.link, CANDIDATE_LINK, Interest::Read);
        let watched = watched.and_then(|()| self.epoll.add(&worker.pidfd, CANDIDATE, Interest::Read));
        watched.inspect_err(|_| worker.kill())?;
        Ok(Candidate { worker, binary, deadline: Instant::now() + CANDIDATE_TIMEOUT })
    }

    /// The candidate is ready: asks the old worker to exit.
    pub(crate) fn handle_candidate(&mut self) {
        let Some(candidate) = &mut self.worker.candidate else { return };
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let hello = match message::receive(&candidate.worker.link, &mut bytes, &mut Vec::new()) {
            Ok(Some(len)) => bytes.get(..len).and_then(Request::decode),
            Err(Errno::AGAIN) => return,
            Ok(None) | Err(_) => return self.candidate_failed(Errno::PIPE),
        };
        if hello != Some(Request::Hello { version: LINK_VERSION }) {
            return self.candidate_failed(Errno::PROTO);
        }
        candidate.worker.is_subscribed = true;
        self.worker.retire_by = Some(Instant::now() + RETIRE_TIMEOUT);
        self.events.push(Event::Retire);
    }

    pub(super) fn promote(&mut self, candidate: Candidate) {
        let Candidate { worker, binary, .. } = candidate;
        worker.unwatch(&self.epoll);
        self.worker.fallback = self.worker.binary.replace(binary);
        self.worker.restarts.forget();
        let is_subscribed = worker.is_subscribed;
        self.install_worker(worker);
        if is_subscribed {
            self.on_hello(LINK_VERSION);
        }
        self.events.push(Event::Replaced(Component::Worker));
    }

    pub(crate) fn candidate_failed(&mut self, errno: Errno) {
        let Some(Candidate { worker, .. }) = self.worker.candidate.take() else { return };
        worker.kill();
        worker.unwatch(&self.epoll);
        // Not reaped here: SIGCHLD has every child reaped that is not in the table.
        self.log_limited(format_args!(
            "the new worker binary did not get ready ({errno}); the old one stays"
        ));
        self.events.push(Event::NotReplaced(Component::Worker, errno));
    }

    /// The deadlines of worker and candidate.
    pub(crate) fn handle_worker_deadlines(&mut self, now: Instant) {
        let is_late = |candidate: &Candidate| candidate.deadline <= now && !candidate.worker.is_subscribed;
        if self.worker.candidate.as_ref().is_some_and(is_late) {
            self.candidate_failed(Errno::TIMEDOUT);
        }
        if self.worker.start_by.is_some_and(|time| time <= now) {
            self.start_worker();
        }
        if self.worker.retire_by.is_some_and(|deadline| deadline <= now) {
            self.worker.retire_by = None;
            self.worker.kill();
        }
    }
}
