//! The keeper's state and its event loop over the worker, the children and signals.

use crate::events::EventQueue;
use crate::exits::Exits;
use crate::fdstore::FdStore;
use crate::log::{self, log};
use crate::message::{Component, Event};
use crate::sd_notify::Supervisor;
use crate::state::{STATE_BYTES_MAX, State};
use crate::stopping::Stopping;
use crate::table::{Entry, OWN_SLOT, Table};
use crate::worker::{Worker, WorkerSlot};
use outpost_sys::epoll::{self, Epoll, Interest, Ready};
use outpost_sys::pidfd::Pidfd;
use outpost_sys::signal::{Signal, SignalFd, ignore_sigpipe};
use outpost_sys::{Errno, Result, file, limits};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const SIGNALS: u64 = 1;
pub(crate) const LINK: u64 = 2;
pub(crate) const WORKER: u64 = 3;
pub(crate) const CANDIDATE_LINK: u64 = 4;
pub(crate) const CANDIDATE: u64 = 5;
pub(crate) const EXITS: u64 = 6;

/// Added to a slot: the token of its child's status pipe.
pub(crate) const EXEC_STATUS: u64 = 1 << 63;

/// The pause before an operation is retried that failed for lack of memory or another resource.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// The keeper. Each part keeps its own state.
pub struct Keeper {
    pub(crate) epoll: Epoll,
    /// None in an embedded keeper.
    signals: Option<SignalFd>,
    pub(crate) table: Table,
    pub(crate) worker: WorkerSlot,
    pub(crate) events: EventQueue,
    pub(crate) exits: Exits,
    pub(crate) fdstore: FdStore,
    pub(crate) supervisor: Supervisor,
    /// A signal has requested the end, or the worker has begun it.
    pub(crate) stopping: Option<Stopping>,
    /// Slots of children that epoll does not watch, so the timer polls them.
    pub(crate) unwatched: BTreeSet<u64>,
    /// Events could not be sent, and no event announces when they can.
    pub(crate) retry_by_timer: bool,
    /// The exit code, when the keeper is to end.
    pub(crate) end: Option<u8>,
}

/// Whether this binary understands a serialized state.
pub fn check(state: RawFd) -> bool {
    read_state(state).is_ok()
}

fn read_state(state: RawFd) -> Result<State> {
    let bytes = file::read_whole(file::inherited(state)?, STATE_BYTES_MAX)?;
    State::decode(&bytes).ok_or(Errno::PROTO)
}

impl Keeper {
    /// A keeper with the state that this process inherits. The process becomes a subreaper.
    pub fn from_state(state: RawFd) -> Result<Keeper> {
        let state = read_state(state)?;
        ignore_sigpipe();
        outpost_sys::process::become_subreaper()?;
        // A worker that was short of descriptors may have started this keeper.
        let _as_it_is = limits::raise_descriptors();
        let signals = SignalFd::new(&[Signal::CHLD, Signal::TERM, Signal::INT, Signal::HUP])?;
        let mut keeper = Keeper::new(WorkerSlot::new(file::inherited(state.binary)?, state.arguments))?;
        keeper.epoll.add(&signals, SIGNALS, Interest::Read)?;
        keeper.signals = Some(signals);
        if let Some(file) = keeper.argument("--log-file=") {
            log::set_file(PathBuf::from(OsStr::from_bytes(file)));
        }
        for entry in &state.entries {
            keeper.insert(entry.slot, Entry::inherited(entry)?);
        }
        for entry in state.entries.iter().filter(|entry| entry.slot != OWN_SLOT) {
            keeper.expect_exit(entry.slot);
        }
        match &state.worker {
            Some(running) => {
                keeper.install_worker(Worker::inherited(running)?);
                if running.served {
                    keeper.worker.served();
                }
            }
            None => keeper.start_worker(),
        }
        keeper.start_watchdog(state.worker.is_some());
        if state.replaced {
            keeper.events.push(Event::Replaced(Component::Keeper));
        }
        keeper.reap_children();
        Ok(keeper)
    }

    /// A keeper in a thread of another program, for children without a daemon. It ends when the link closes.
    pub fn embedded(link: OwnedFd) -> Result<Keeper> {
        let pid = std::process::id().cast_signed();
        let worker = Worker { has_served: true, ..Worker::new(pid, Pidfd::own()?, link) };
        let keeper = Keeper::new(WorkerSlot::embedded(worker))?;
        if let Some(worker) = keeper.worker.current() {
            keeper.epoll.add(&worker.link, LINK, Interest::Read)?;
        }
        Ok(keeper)
    }

    /// Whether worker and keeper are one process, so that there is no worker to restart.
    pub(crate) fn is_embedded(&self) -> bool {
        self.signals.is_none()
    }

    /// The value of one of the worker's arguments that the keeper uses too.
    pub(crate) fn argument(&self, flag: &str) -> Option<&[u8]> {
        self.worker.arguments().iter().find_map(|argument| argument.to_bytes().strip_prefix(flag.as_bytes()))
    }

    fn new(worker: WorkerSlot) -> Result<Keeper> {
        Ok(Keeper {
            epoll: Epoll::new()?,
            signals: None,
            table: Table::from([(OWN_SLOT, Entry::own())]),
            worker,
            events: EventQueue::default(),
            exits: Exits::default(),
            fdstore: FdStore::default(),
            supervisor: Supervisor::default(),
            stopping: None,
            unwatched: BTreeSet::new(),
            retry_by_timer: false,
            end: None,
        })
    }

    /// Runs until `Stop`; returns the exit code of the process.
    pub fn run(mut self) -> u8 {
        let mut ready = Vec::new();
        loop {
            self.poll_unwatched();
            self.flush_events();
            self.handle_deadlines();
            self.flush_events();
            if let Some(code) = self.end {
                return code;
            }
            if let Err(errno) = self.epoll.wait(&mut ready, self.timeout()) {
                log(format_args!("waiting for events failed ({errno}); trying again"));
            }
            for event in &ready {
                self.handle(event);
                self.flush_events();
            }
        }
    }

    fn timeout(&self) -> Option<Duration> {
        let polls = self.retry_by_timer
            || !self.unwatched.is_empty()
            || self.worker.current().is_some_and(|worker| worker.is_unwatched);
        let again = polls.then(|| Instant::now() + RETRY_INTERVAL);
        let (worker, watchdog) = (self.worker.next_deadline(), self.supervisor.next());
        let store = self.fdstore.next();
        let (stop, exit) = (self.next_stop(), self.next_exit());
        let next = [worker, watchdog, store, stop, exit, again].into_iter().flatten().min()?;
        Some(next.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    fn handle(&mut self, ready: &Ready) {
        match ready.token {
            SIGNALS => self.handle_signals(),
            LINK => self.handle_requests(),
            WORKER => self.worker_ended(),
            CANDIDATE_LINK => self.handle_candidate(),
            CANDIDATE => self.candidate_failed(Errno::CHILD),
            EXITS => self.receive_exits(),
            child => self.poll_child(child & !EXEC_STATUS),
        }
    }

    fn handle_deadlines(&mut self) {
        let now = Instant::now();
        self.handle_worker_deadlines(now);
        self.handle_stopping(now);
        self.handle_watchdog(now);
        self.flush_fdstore(now);
    }

    /// Polls what epoll does not watch.
    fn poll_unwatched(&mut self) {
        self.poll_undecided_exits();
        for slot in std::mem::take(&mut self.unwatched) {
            self.poll_child(slot);
            let _still_unwatched = self.watch(slot);
        }
        if self.worker.current().is_some_and(|worker| worker.is_unwatched) {
            let _still_unwatched = self.watch_worker();
            self.handle_requests();
            if self.worker.current().is_some_and(|worker| epoll::is_readable(&worker.pidfd)) {
                self.worker_ended();
            }
        }
    }

    fn handle_signals(&mut self) {
        while let Some(signal) = self.signals.as_ref().and_then(SignalFd::next) {
            match signal {
                Signal::CHLD => self.reap_children(),
                Signal::HUP if self.worker.current().is_none() => {
                    self.worker.forget_failures();
                    self.start_worker();
                }
                Signal::HUP => self.events.push(Event::Reload),
                _ => self.shut_down(),
            }
        }
    }
}
