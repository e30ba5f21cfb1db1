//! The keeper's loop: waits for the worker, for children and for signals, and does what each calls for.

use crate::exits::Exits;
use crate::log::{self, log};
use crate::message::{Event, What};
use crate::recruits::Recruits;
use crate::replace::Candidate;
use crate::restarts::Restarts;
use crate::state::{STATE_BYTES_MAX, State};
use crate::stopping::Stopping;
use crate::store::Storing;
use crate::supervisor::Pulse;
use crate::table::{Entry, OWN_SLOT, Table};
use crate::worker::Worker;
use outpost_sys::epoll::{self, Epoll, Interest, Ready};
use outpost_sys::pidfd::Pidfd;
use outpost_sys::signal::{Signal, SignalFd, ignore_sigpipe};
use outpost_sys::{Errno, Result, file, limits};
use std::collections::{BTreeSet, VecDeque};
use std::ffi::{CString, OsStr};
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

/// Added to a slot, the token of its child's report.
pub(crate) const REPORT: u64 = 1 << 63;

/// How long what failed for want of memory or the like is left alone before it is tried again.
pub(crate) const AGAIN_AFTER: Duration = Duration::from_millis(100);

pub struct Keeper {
    pub(crate) epoll: Epoll,
    pub(crate) signals: Option<SignalFd>,
    pub(crate) binary: Option<OwnedFd>,
    /// The binary before the last replacement, until the new one has proved itself.
    pub(crate) fallback: Option<OwnedFd>,
    pub(crate) arguments: Vec<CString>,
    pub(crate) table: Table,
    pub(crate) recruits: Recruits,
    pub(crate) exits: Exits,
    pub(crate) worker: Option<Worker>,
    pub(crate) candidate: Option<Candidate>,
    pub(crate) retire_by: Option<Instant>,
    /// When to try again to start a worker.
    pub(crate) start_by: Option<Instant>,
    pub(crate) restarts: Restarts,
    /// Since when no worker has served.
    pub(crate) unserved_since: Option<Instant>,
    /// The supervisor has been told that no worker serves.
    pub(crate) said_unserved: bool,
    /// Slots of children that could not be watched, so they are looked at again and again.
    pub(crate) unwatched: BTreeSet<u64>,
    /// Killed children that have left the table and are not reaped yet.
    pub(crate) discarded: Vec<Pidfd>,
    pub(crate) storing: Storing,
    pub(crate) events: VecDeque<Event>,
    /// Slots of entries with something untold.
    pub(crate) news: BTreeSet<u64>,
    /// The worker could not be told, and nothing will say when it can.
    pub(crate) stuck: bool,
    /// The end of the table is to be told once all entries are.
    pub(crate) table_end: bool,
    /// The worker's, where somebody wants to hear of the daemon.
    pub(crate) pulse: Option<Pulse>,
    /// A signal has asked for the end, or the worker has begun it.
    pub(crate) stopping: Option<Stopping>,
    pub(crate) end: Option<u8>,
}

/// Whether these are bytes of a state that this binary understands.
pub fn check(state: RawFd) -> bool {
    read_state(state).is_ok()
}

fn read_state(state: RawFd) -> Result<State> {
    let bytes = file::read_whole(file::inherited(state)?, STATE_BYTES_MAX)?;
    State::decode(&bytes).ok_or(Errno::PROTO)
}

impl Keeper {
    /// Begins from a state that this process inherits; becomes the parent of all orphans below it.
    pub fn from_state(state: RawFd) -> Result<Keeper> {
        let state = read_state(state)?;
        ignore_sigpipe();
        limits::become_subreaper()?;
        // A worker that was short of descriptors may have started this keeper.
        let _as_it_is = limits::raise_descriptors();
        let signals = SignalFd::new(&[Signal::CHLD, Signal::TERM, Signal::INT, Signal::HUP])?;
        let mut keeper = Keeper::empty()?;
        keeper.epoll.add(&signals, SIGNALS, Interest::Read)?;
        keeper.signals = Some(signals);
        keeper.binary = Some(file::inherited(state.binary)?);
        keeper.arguments = state.arguments;
        if let Some(file) = keeper.argument("--log-file=") {
            log::is_file(PathBuf::from(OsStr::from_bytes(file)));
        }
        for stored in &state.entries {
            keeper.insert(stored.slot, Entry::inherited(stored)?);
        }
        for stored in state.entries.iter().filter(|stored| stored.slot != OWN_SLOT) {
            keeper.expect_exit(stored.slot);
        }
        keeper.inherit_recruits();
        match &state.worker {
            Some(running) => {
                keeper.seat(Worker::inherited(running)?);
                if running.served {
                    keeper.restarts.served();
                }
            }
            None => keeper.start_worker(),
        }
        keeper.begin_pulse(state.worker.is_some());
        if state.replaced {
            keeper.tell(Event::Replaced(What::Keeper));
        }
        keeper.look_at_children();
        Ok(keeper)
    }

    /// A keeper inside another program, for one that wants children without a daemon. Ends when the link is closed.
    pub fn embedded(link: OwnedFd) -> Result<Keeper> {
        let mut keeper = Keeper::empty()?;
        keeper.epoll.add(&link, LINK, Interest::Read)?;
        let pid = std::process::id().cast_signed();
        keeper.worker = Some(Worker { served: true, ..Worker::new(pid, Pidfd::own()?, link) });
        Ok(keeper)
    }

    /// A worker within a keeper's own program is another part of it: there is nobody to start again.
    pub(crate) fn is_embedded(&self) -> bool {
        self.signals.is_none()
    }

    /// The value of one of the worker's arguments that concern the keeper too.
    pub(crate) fn argument(&self, flag: &str) -> Option<&[u8]> {
        self.arguments.iter().find_map(|argument| argument.to_bytes().strip_prefix(flag.as_bytes()))
    }

    fn empty() -> Result<Keeper> {
        Ok(Keeper {
            epoll: Epoll::new()?,
            signals: None,
            binary: None,
            fallback: None,
            arguments: Vec::new(),
            table: Table::from([(OWN_SLOT, Entry::own())]),
            recruits: Recruits::default(),
            exits: Exits::default(),
            worker: None,
            candidate: None,
            retire_by: None,
            start_by: None,
            restarts: Restarts::default(),
            unserved_since: None,
            said_unserved: false,
            unwatched: BTreeSet::new(),
            discarded: Vec::new(),
            storing: Storing::default(),
            events: VecDeque::new(),
            news: BTreeSet::new(),
            stuck: false,
            table_end: false,
            pulse: None,
            stopping: None,
            end: None,
        })
    }

    /// Works until told to stop; the result is the process's exit code.
    pub fn run(mut self) -> u8 {
        let mut ready = Vec::new();
        loop {
            self.catch_up();
            self.tell_news();
            self.keep_deadlines();
            // Last, and not while somebody waits to hear of something: forks take time.
            self.recruit_due(Instant::now());
            self.tell_news();
            if let Some(code) = self.end {
                return code;
            }
            if let Err(errno) = self.epoll.wait(&mut ready, self.timeout()) {
                log(format_args!("waiting for events failed ({errno}); trying again"));
            }
            for event in &ready {
                self.handle(event);
                self.tell_news();
            }
        }
    }

    fn timeout(&self) -> Option<Duration> {
        let candidate = self.candidate.as_ref().filter(|candidate| !candidate.worker.listens);
        let candidate = candidate.map(|candidate| candidate.deadline);
        let behind = self.stuck
            || !self.unwatched.is_empty()
            || !self.discarded.is_empty()
            || self.worker.as_ref().is_some_and(|worker| worker.unwatched);
        let again = behind.then(|| Instant::now() + AGAIN_AFTER);
        let (beat, store, recruit) = (self.next_beat(), self.next_store(), self.recruits.next());
        let (stop, exit) = (self.next_stop(), self.next_exit());
        let next = [candidate, self.retire_by, self.start_by, beat, store, recruit, stop, exit, again]
            .into_iter()
            .flatten()
            .min()?;
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
            child => self.look_at(child & !REPORT),
        }
    }

    /// Sees after those whom nothing tells us of.
    fn catch_up(&mut self) {
        self.end_discarded();
        self.decide_exits();
        for slot in std::mem::take(&mut self.unwatched) {
            self.look_at(slot);
            let _still_unwatched = self.watch(slot);
        }
        if self.worker.as_ref().is_some_and(|worker| worker.unwatched) {
            let _still_unwatched = self.watch_worker();
            self.handle_requests();
            if self.worker.as_ref().is_some_and(|worker| epoll::is_readable(&worker.pidfd)) {
                self.worker_ended();
            }
        }
    }

    fn handle_signals(&mut self) {
        while let Some(signal) = self.signals.as_ref().and_then(SignalFd::next) {
            match signal {
                Signal::CHLD => self.look_at_children(),
                Signal::HUP if self.worker.is_none() => {
                    self.restarts.forget();
                    self.start_worker();
                }
                Signal::HUP => self.tell(Event::Reload),
                _ => self.shut_down(),
            }
        }
    }
}
