//! The keeper's loop: waits for the worker, for children and for signals, and does what each calls for.

use crate::message::{Event, MESSAGE_BYTES, Request, Standing, What};
use crate::replace::{Candidate, RETIRE_PATIENCE};
use crate::spec::{SPEC_BYTES_MAX, SpecRef};
use crate::state::{STATE_BYTES_MAX, State};
use crate::table::{Entry, OWN_SLOT, SLOT_MIN, SLOTS_MAX, Table, Untold, watched};
use crate::worker::{Restarts, Worker};
use crate::{LINK_VERSION, Roles, Targets};
use outpost_sys::epoll::{self, Epoll, Interest, Ready};
use outpost_sys::pidfd::{self, Exit, How};
use outpost_sys::signal::{Signal, SignalFd, ignore_sigpipe};
use outpost_sys::spawn::{self, Child, Failure, Program, Report, Step};
use outpost_sys::{Errno, Result, file, limits, message};
use std::collections::{BTreeSet, VecDeque};
use std::ffi::CString;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

const SIGNALS: u64 = 1;
const LINK: u64 = 2;
const WORKER: u64 = 3;
pub(crate) const CANDIDATE_LINK: u64 = 4;
pub(crate) const CANDIDATE: u64 = 5;

/// Added to a slot, the token of its child's report.
const REPORT: u64 = 1 << 63;

/// Requests handled before others get their turn.
const REQUESTS_AT_ONCE: usize = 64;

/// How long what failed for want of memory or the like is left alone before it is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// The same for a worker that could not be started.
const START_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// Events other than entries that may wait for the worker.
const EVENTS_MAX: usize = 16;

pub struct Keeper {
    pub(crate) epoll: Epoll,
    pub(crate) signals: Option<SignalFd>,
    pub(crate) binary: Option<OwnedFd>,
    /// The binary before the last replacement, until the new one has proved itself.
    pub(crate) fallback: Option<OwnedFd>,
    pub(crate) arguments: Vec<CString>,
    pub(crate) table: Table,
    pub(crate) worker: Option<Worker>,
    pub(crate) candidate: Option<Candidate>,
    pub(crate) retire_by: Option<Instant>,
    /// When to try again to start a worker.
    pub(crate) start_by: Option<Instant>,
    pub(crate) restarts: Restarts,
    /// Slots of children that could not be watched, so they are looked at again and again.
    unwatched: BTreeSet<u64>,
    events: VecDeque<Event>,
    /// Some entry has something untold.
    news: bool,
    /// The worker could not be told, and nothing will say when it can.
    stuck: bool,
    /// The end of the table is to be told once all entries are.
    table_end: bool,
    end: Option<u8>,
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
        let signals = SignalFd::new(&[Signal::CHLD, Signal::TERM, Signal::INT, Signal::HUP])?;
        let mut keeper = Keeper::empty()?;
        keeper.epoll.add(&signals, SIGNALS, Interest::Read)?;
        keeper.signals = Some(signals);
        keeper.binary = Some(file::inherited(state.binary)?);
        keeper.arguments = state.arguments;
        for stored in &state.entries {
            let pidfd = (stored.pidfd >= 0).then(|| file::inherited(stored.pidfd)).transpose()?;
            let held = stored.held.iter().map(|(role, fd)| Ok((*role, file::inherited(*fd)?)));
            let held = held.collect::<Result<Vec<_>>>()?;
            let report = (stored.report >= 0).then(|| file::inherited(stored.report)).transpose()?;
            let entry = Entry {
                pid: stored.pid,
                standing: stored.standing,
                pidfd,
                held,
                report: report.map(Report::inherited),
                untold: Untold::Nothing,
            };
            keeper.insert(stored.slot, entry);
        }
        match &state.worker {
            Some(running) => keeper.seat(Worker::inherited(running)?),
            None => keeper.start_worker(),
        }
        if state.replaced {
            keeper.tell(Event::Replaced(What::Keeper));
        }
        keeper.look_at_children();
        Ok(keeper)
    }

    /// A keeper inside another program, for one that wants children without a daemon. Ends when the link is closed.
    pub fn embedded(link: OwnedFd) -> Result<Keeper> {
        let mut keeper = Keeper::empty()?;
        let pidfd = pidfd::open(std::process::id().cast_signed())?;
        keeper.epoll.add(&link, LINK, Interest::Read)?;
        let pid = std::process::id().cast_signed();
        keeper.worker = Some(Worker {
            pid,
            pidfd,
            link,
            listens: false,
            served: true,
            unlinked: false,
            choked: false,
            unwatched: false,
        });
        Ok(keeper)
    }

    fn empty() -> Result<Keeper> {
        Ok(Keeper {
            epoll: Epoll::new()?,
            signals: None,
            binary: None,
            fallback: None,
            arguments: Vec::new(),
            table: Table::from([(OWN_SLOT, Entry::own())]),
            worker: None,
            candidate: None,
            retire_by: None,
            start_by: None,
            restarts: Restarts::default(),
            unwatched: BTreeSet::new(),
            events: VecDeque::new(),
            news: false,
            stuck: false,
            table_end: false,
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
            if let Some(code) = self.end {
                return code;
            }
            if let Err(errno) = self.epoll.wait(&mut ready, self.timeout()) {
                log(format_args!("waiting for events failed ({errno}); trying again"));
            }
            for event in &ready {
                self.handle(event);
            }
        }
    }

    fn timeout(&self) -> Option<Duration> {
        let candidate = self.candidate.as_ref().filter(|candidate| !candidate.worker.listens);
        let candidate = candidate.map(|candidate| candidate.deadline);
        let behind = self.stuck
            || !self.unwatched.is_empty()
            || self.worker.as_ref().is_some_and(|worker| worker.unwatched);
        let again = behind.then(|| Instant::now() + AGAIN_AFTER);
        let next = [candidate, self.retire_by, self.start_by, again].into_iter().flatten().min()?;
        Some(next.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    fn handle(&mut self, ready: &Ready) {
        match ready.token {
            SIGNALS => self.handle_signals(),
            LINK => self.handle_requests(),
            WORKER => self.worker_ended(),
            CANDIDATE_LINK => self.handle_candidate(),
            CANDIDATE => self.candidate_failed(Errno::CHILD),
            token if token & REPORT != 0 => self.look_at_report(token & !REPORT),
            slot => self.look_at(slot),
        }
    }

    /// Sees after those whom nothing tells us of.
    fn catch_up(&mut self) {
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

    // Children.

    /// Even one that cannot be watched must be known.
    fn insert(&mut self, slot: u64, entry: Entry) {
        self.table.insert(slot, entry);
        if let Err(errno) = self.watch(slot) {
            log(format_args!(
                "cannot watch the child of slot {slot:x} ({errno}); looking at it every {AGAIN_AFTER:?}"
            ));
        }
    }

    fn watch(&mut self, slot: u64) -> Result<()> {
        let Some(entry) = self.table.get(&slot) else { return Ok(()) };
        let watched = entry.watch(&self.epoll, slot, slot | REPORT);
        if watched.is_err() {
            self.unwatched.insert(slot);
        }
        watched
    }

    fn look_at_report(&mut self, slot: u64) {
        if let Some(entry) = self.table.get_mut(&slot) {
            self.news |= entry.look_at_report(&self.epoll);
        }
    }

    fn look_at(&mut self, slot: u64) {
        if let Some(entry) = self.table.get_mut(&slot) {
            self.news |= entry.look(&self.epoll);
        }
    }

    /// Looks at every child, and reaps orphans that became ours because we are a subreaper.
    fn look_at_children(&mut self) {
        while let Ok(Some(pid)) = pidfd::ended_child() {
            let slot = self.table.iter().find(|(_, entry)| entry.pid == pid && entry.lives());
            match slot.map(|(slot, _)| *slot) {
                Some(slot) => {
                    self.look_at(slot);
                    // Cannot be reaped now; asking again would give the same one.
                    if self.table.get(&slot).is_some_and(Entry::lives) {
                        break;
                    }
                }
                None if self.is_worker(pid) => break,
                None => {
                    let _reaped = pidfd::reap_pid(pid);
                }
            }
        }
    }

    /// Workers are reaped where their end is dealt with.
    fn is_worker(&mut self, pid: i32) -> bool {
        if self.worker.as_ref().is_some_and(|worker| worker.pid == pid) {
            self.worker_ended();
            return self.worker.as_ref().is_some_and(|worker| worker.pid == pid);
        }
        if self.candidate.as_ref().is_some_and(|candidate| candidate.worker.pid == pid) {
            self.candidate_failed(Errno::CHILD);
        }
        false
    }

    // Requests.

    fn handle_requests(&mut self) {
        if let Some(worker) = &mut self.worker
            && worker.choked
        {
            worker.choked = self.epoll.modify(&worker.link, LINK, Interest::Read).is_err();
        }
        for _ in 0..REQUESTS_AT_ONCE {
            if !self.handle_request() {
                break;
            }
        }
    }

    /// Takes one request from the worker; false when there is none.
    fn handle_request(&mut self) -> bool {
        let Some(worker) = self.worker.as_ref().filter(|worker| !worker.unlinked) else { return false };
        let mut bytes = [0; MESSAGE_BYTES];
        let mut fds = Vec::new();
        match message::receive(&worker.link, &mut bytes, &mut fds) {
            Ok(Some(len)) => {
                match bytes.get(..len).and_then(Request::decode) {
                    Some(request) => self.act(request, fds),
                    None => log(format_args!("the worker sent a message that is none; ignored")),
                }
                true
            }
            Err(Errno::MSGSIZE) => {
                log(format_args!("the worker sent a message that is too long; ignored"));
                true
            }
            Err(Errno::AGAIN | Errno::NOMEM | Errno::NOBUFS) => false,
            Ok(None) | Err(_) => {
                self.worker_unlinked();
                false
            }
        }
    }

    fn act(&mut self, request: Request, mut fds: Vec<OwnedFd>) {
        match request {
            Request::Hello { version } => self.greet(version),
            Request::Serving => {
                self.fallback = None;
                if let Some(worker) = &mut self.worker {
                    worker.served = true;
                }
            }
            Request::Spawn { slot, cgroup, held, targets } => self.spawn(slot, cgroup, held, targets, fds),
            Request::Adopt { slot, pid, standing, held } => self.adopt(slot, pid, standing, held, fds),
            Request::Hold { slot, role } => {
                let held = match (self.table.get_mut(&slot), fds.pop()) {
                    (Some(entry), Some(fd)) => entry.hold(role, fd),
                    (None, _) => Err(Errno::NOENT),
                    (_, None) => Err(Errno::MFILE),
                };
                if let Err(errno) = held {
                    log(format_args!("descriptor {role} of slot {slot:x} is not held ({errno})"));
                }
            }
            Request::Release { slot, role } => {
                if let Some(entry) = self.table.get_mut(&slot) {
                    entry.release(role);
                }
            }
            Request::Signal { slot, signal, group } => self.signal(slot, signal, group),
            Request::Forget { slot } => {
                if slot != OWN_SLOT && self.table.get(&slot).is_some_and(|entry| !entry.lives()) {
                    self.table.remove(&slot);
                }
            }
            Request::Replace(What::Worker) => self.start_candidate(fds.pop()),
            Request::Replace(What::Keeper) => self.replace_self(fds.pop()),
            Request::Stop => self.end = Some(0),
        }
    }

    pub(crate) fn greet(&mut self, version: u32) {
        if version != LINK_VERSION {
            log(format_args!(
                "the worker speaks version {version}, not {LINK_VERSION}; it is not given the table"
            ));
            return;
        }
        if let Some(worker) = &mut self.worker {
            worker.listens = true;
        }
        for entry in self.table.values_mut() {
            entry.untold = Untold::All;
        }
        self.news = true;
        self.table_end = true;
    }

    fn spawn(&mut self, slot: u64, cgroup: bool, held: Roles, targets: Targets, fds: Vec<OwnedFd>) {
        if self.is_taken(slot) {
            return;
        }
        let entry = self.try_spawn(cgroup, held, targets, fds).unwrap_or_else(Entry::failed);
        self.news |= entry.untold != Untold::Nothing;
        self.insert(slot, entry);
    }

    /// Slots below the least and above the greatest would be taken for other things that are watched.
    fn is_taken(&self, slot: u64) -> bool {
        let taken = slot < SLOT_MIN || slot & REPORT != 0 || self.table.contains_key(&slot);
        if taken {
            log(format_args!("the worker asked for slot {slot:x}, which is taken; ignored"));
        }
        taken
    }

    fn try_spawn(
        &mut self,
        cgroup: bool,
        held: Roles,
        targets: Targets,
        fds: Vec<OwnedFd>,
    ) -> std::result::Result<Entry, Failure> {
        let prepare = |errno| Failure { step: Step::Prepare, errno };
        if self.table.len() >= SLOTS_MAX {
            return Err(prepare(Errno::AGAIN));
        }
        if fds.len() != 2 + usize::from(cgroup) + held.len() + targets.len() {
            return Err(prepare(Errno::MFILE));
        }
        let mut fds = fds.into_iter();
        let spec = fds.next().ok_or(prepare(Errno::MFILE))?;
        let gate = fds.next().ok_or(prepare(Errno::MFILE))?;
        let cgroup = if cgroup { fds.next() } else { None };
        let held: Vec<(u8, OwnedFd)> = held.iter().zip(fds.by_ref()).collect();
        let theirs: Vec<OwnedFd> = fds.collect();
        let descriptors: Vec<_> = theirs.iter().map(AsFd::as_fd).zip(targets.iter().map(i32::from)).collect();
        let spec = file::read_whole(&spec, SPEC_BYTES_MAX).map_err(prepare)?;
        let spec = SpecRef::decode(&spec).ok_or(prepare(Errno::INVAL))?;
        let begun = spawn::begin(&Child {
            program: Program::Path(spec.program),
            arguments: &spec.arguments,
            environment: &spec.environment,
            directory: spec.directory,
            standing: spec.standing,
            descriptors: &descriptors,
            limits: &spec.limits,
            umask: spec.umask,
            oom_score: spec.oom_score,
            cgroup: cgroup.as_ref().map(AsFd::as_fd),
            gate: Some(gate.as_fd()),
        })?;
        Ok(Entry {
            pid: begun.pid,
            standing: Standing::Starting,
            pidfd: Some(begun.pidfd),
            held,
            report: Some(begun.report),
            untold: Untold::Start,
        })
    }

    fn adopt(&mut self, slot: u64, pid: i32, standing: Standing, held: Roles, fds: Vec<OwnedFd>) {
        if self.is_taken(slot) {
            return;
        }
        let mut fds = fds.into_iter();
        let pidfd = if matches!(standing, Standing::Failed(_)) { None } else { fds.next() };
        let held = held.iter().zip(fds).collect();
        self.insert(slot, Entry { pid, standing, pidfd, held, report: None, untold: Untold::Nothing });
    }

    /// Signals go to a child only while it is not reaped: its number cannot have become a stranger's.
    fn signal(&mut self, slot: u64, signal: Signal, group: bool) {
        let Some(entry) = self.table.get(&slot).filter(|entry| entry.lives()) else { return };
        let Some(pidfd) = &entry.pidfd else { return };
        let sent = match group.then(|| pidfd::signal_group(pidfd, signal)) {
            // Before Linux 6.9. Only a parent knows that a group's number is still its child's.
            Some(Err(Errno::INVAL)) if pidfd::is_child(pidfd) => {
                pidfd::signal_group_of_unreaped(entry.pid, signal)
            }
            // On its way to exec it may not lead its group yet.
            Some(Err(Errno::SRCH)) if entry.standing == Standing::Starting => pidfd::signal(pidfd, signal),
            Some(Err(Errno::INVAL)) | None => pidfd::signal(pidfd, signal),
            Some(sent) => sent,
        };
        match sent {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(errno) => log(format_args!("{signal:?} to pid {} failed ({errno})", entry.pid)),
        }
    }

    // The worker.

    /// A worker within a keeper's own program is another part of it: there is nobody to start again.
    pub(crate) fn is_embedded(&self) -> bool {
        self.signals.is_none()
    }

    pub(crate) fn seat(&mut self, worker: Worker) {
        self.worker = Some(worker);
        if let Err(errno) = self.watch_worker() {
            log(format_args!("cannot watch the worker ({errno}); looking at it every {AGAIN_AFTER:?}"));
        }
    }

    fn watch_worker(&mut self) -> Result<()> {
        let Some(worker) = &mut self.worker else { return Ok(()) };
        let link = if worker.unlinked {
            Ok(())
        } else {
            watched(self.epoll.add(&worker.link, LINK, Interest::Read))
        };
        let both = link.and_then(|()| watched(self.epoll.add(&worker.pidfd, WORKER, Interest::Read)));
        worker.unwatched = both.is_err();
        both
    }

    pub(crate) fn start_worker(&mut self) {
        self.start_by = None;
        let Some(binary) = &self.binary else { return };
        match Worker::start(binary, &self.arguments) {
            Ok(worker) => self.seat(worker),
            Err(Failure { step, errno }) => {
                log(format_args!(
                    "cannot start a worker ({step:?}: {errno}); children live on; trying again"
                ));
                self.start_by = Some(Instant::now() + START_AGAIN_AFTER);
            }
        }
    }

    /// A worker that cannot be talked to is of no use. Mostly it is on its way out; how it ends shall be its own doing.
    fn worker_unlinked(&mut self) {
        let embedded = self.is_embedded();
        let Some(worker) = &mut self.worker else { return };
        worker.unlinked = true;
        let _not_registered = self.epoll.remove(&worker.link);
        match embedded {
            true => self.end = Some(0),
            false => self.retire_by = Some(Instant::now() + RETIRE_PATIENCE),
        }
    }

    fn worker_ended(&mut self) {
        // What it asked for before it died counts.
        while self.handle_request() {}
        let Some(worker) = self.worker.take() else { return };
        let exit = match pidfd::reap(&worker.pidfd) {
            Ok(Some(exit)) => exit,
            Err(Errno::CHILD) => pidfd::exit_of_stranger(&worker.pidfd, worker.pid),
            Ok(None) | Err(_) => {
                self.worker = Some(worker);
                return;
            }
        };
        let _not_registered = self.epoll.remove(&worker.pidfd);
        let _closed_already = self.epoll.remove(&worker.link);
        self.retire_by = None;
        self.table_end = false;
        self.events.clear();
        if self.end.is_some() {
            return;
        }
        if let Some(candidate) = self.candidate.take() {
            return self.promote(candidate);
        }
        // A new binary that never served gives way to the one before it.
        if !worker.served
            && let Some(before) = self.fallback.take()
        {
            log(format_args!(
                "the new worker binary failed ({}); going back to the one before",
                describe(exit)
            ));
            self.binary = Some(before);
            self.restarts.forget();
        }
        if self.restarts.another(worker.served, exit) {
            log(format_args!("worker {} ended ({}); starting another", worker.pid, describe(exit)));
            self.start_worker();
        } else {
            log(format_args!(
                "worker {} ended ({}), the fifth in a row before it served anything; children live on; send SIGHUP to try again",
                worker.pid,
                describe(exit)
            ));
        }
    }

    // Telling the worker.

    pub(crate) fn tell(&mut self, event: Event) {
        if self.events.len() < EVENTS_MAX {
            self.events.push_back(event);
        }
    }

    pub(crate) fn has_news(&self) -> bool {
        self.news || !self.events.is_empty()
    }

    /// Sends what is untold until all is, or the worker's queue is full.
    pub(crate) fn tell_news(&mut self) {
        self.stuck = false;
        let has_news = self.has_news();
        let Some(worker) =
            self.worker.as_mut().filter(|worker| worker.listens && !worker.unlinked && !worker.choked)
        else {
            return;
        };
        if !has_news {
            return;
        }
        match tell_all(&mut self.table, &mut self.events, &mut self.table_end, worker) {
            Ok(()) => self.news = false,
            Err(Errno::AGAIN) => {
                worker.choked = self.epoll.modify(&worker.link, LINK, Interest::ReadWrite).is_ok();
                self.stuck = !worker.choked;
            }
            // No memory, or too many descriptors under way. Its death is told by its pidfd.
            Err(_) => self.stuck = true,
        }
    }

    // Signals to the keeper itself.

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

    /// With a worker, everything ends in order. Without one, children are killed rather than left without an owner.
    fn shut_down(&mut self) {
        if self.worker.as_ref().is_some_and(|worker| worker.listens) {
            return self.tell(Event::Shutdown);
        }
        let slots: Vec<u64> = self.table.keys().copied().filter(|slot| *slot != OWN_SLOT).collect();
        for slot in slots {
            self.signal(slot, Signal::KILL, true);
        }
        if let Some(worker) = &self.worker {
            let _gone_already = pidfd::signal(&worker.pidfd, Signal::KILL);
        }
        self.end = Some(1);
    }
}

fn tell_all(
    table: &mut Table,
    events: &mut VecDeque<Event>,
    table_end: &mut bool,
    worker: &Worker,
) -> Result<()> {
    for (slot, entry) in table.iter_mut().filter(|(_, entry)| entry.untold != Untold::Nothing) {
        let with_pidfd = entry.pidfd.is_some() && matches!(entry.untold, Untold::Start | Untold::All);
        let held = if entry.untold == Untold::All { entry.roles() } else { Roles::EMPTY };
        let event =
            Event::Entry { slot: *slot, pid: entry.pid, standing: entry.told(), pidfd: with_pidfd, held };
        message::send(&worker.link, &event.encode(), &entry.descriptors())?;
        entry.untold = Untold::Nothing;
    }
    if *table_end {
        message::send(&worker.link, &Event::TableEnd.encode(), &[])?;
        *table_end = false;
    }
    while let Some(event) = events.front() {
        message::send(&worker.link, &event.encode(), &[])?;
        events.pop_front();
    }
    Ok(())
}

pub(crate) fn describe(exit: Exit) -> String {
    match exit.how {
        How::Code(code) => format!("exit code {code}"),
        How::Signal(number) => {
            Signal::from_number(number).map_or(format!("signal {number}"), |signal| format!("{signal:?}"))
        }
        How::Unknown => "unknown how".to_owned(),
    }
}

/// One line to standard error. If that cannot be written, there is nobody to tell.
pub(crate) fn log(line: std::fmt::Arguments<'_>) {
    let _unheard = writeln!(std::io::stderr(), "outpost keeper: {line}");
}
