//! The worker process: its start, its end, and the next one.

mod candidate;

use candidate::Candidate;

use crate::keeper::{Keeper, LINK, RETRY_INTERVAL, WORKER};
use crate::link::REFUSALS_LOGGED_MAX;
use crate::log::log;
use crate::restarts::{Next, Restarts};
use crate::table::{CGROUPS_ROLE, OWN_SLOT, watched};
use crate::{LINK_FD, state};
use outpost_sys::epoll::{self, Epoll, Interest};
use outpost_sys::identity::{self, Identity};
use outpost_sys::pidfd::{self, Exit, Pidfd};
use outpost_sys::signal::Signal;
use outpost_sys::spawn::{self, Failure, SessionKind, Step};
use outpost_sys::{Errno, cgroup, file, message, procfs};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// A worker that was asked to exit is killed after this time. It loses nothing by that.
const RETIRE_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum number of scans for processes to kill. A scan that finds none is the last.
const SCANS_MAX: usize = 64;

/// The time for the first process of a confined command to remove its placeholders on the host.
const CLEANUP_TIMEOUT: Duration = Duration::from_millis(500);

/// A worker that has sent `Stop` is killed after this time.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest wait for a killed process before the next one is killed.
const KILL_TIMEOUT: Duration = Duration::from_millis(20);

pub(crate) struct Worker {
    pub(crate) pid: i32,
    pub(crate) pidfd: Pidfd,
    pub(crate) link: OwnedFd,
    /// It has sent `Hello`, so it gets events.
    pub(crate) is_subscribed: bool,
    pub(crate) has_served: bool,
    /// Its end of the link is closed.
    pub(crate) is_link_closed: bool,
    /// The link was full. Epoll reports when it is writable again.
    pub(crate) is_backpressured: bool,
    /// Epoll does not watch its link and its pidfd, so the timer polls them.
    pub(crate) is_unwatched: bool,
    /// How many of its requests were refused.
    pub(crate) refusals: u64,
}

impl Worker {
    pub(crate) fn new(pid: i32, pidfd: Pidfd, link: OwnedFd) -> Worker {
        Worker {
            pid,
            pidfd,
            link,
            is_subscribed: false,
            has_served: false,
            is_link_closed: false,
            is_backpressured: false,
            is_unwatched: false,
            refusals: 0,
        }
    }

    /// Starts a worker from an open binary.
    pub(crate) fn start(binary: &OwnedFd, arguments: &[CString]) -> Result<Worker, Failure> {
        let prepare = |errno| Failure::at(Step::Prepare, errno);
        let (link, its_end) = message::pair().map_err(prepare)?;
        let arguments: Vec<&CStr> = arguments.iter().map(CString::as_c_str).collect();
        // In a group of its own: the keeper passes on the signals of a terminal.
        let others = [(its_end.as_fd(), LINK_FD)];
        let started = spawn::spawn_self(binary.as_fd(), &arguments, SessionKind::Group, &others)?;
        Ok(Worker::new(started.pid, started.pidfd, link))
    }

    /// The worker that runs already when this keeper starts.
    pub(crate) fn inherited(running: &state::Running) -> Result<Worker, Errno> {
        let pidfd = Pidfd::received(running.pid, file::inherited(running.pidfd)?);
        let link = file::inherited(running.link)?;
        let worker = Worker::new(running.pid, pidfd, link);
        Ok(Worker { is_subscribed: true, has_served: running.served, ..worker })
    }

    pub(crate) fn serialize(&self) -> state::Running {
        let (pidfd, link) = (self.pidfd.as_raw_fd(), self.link.as_raw_fd());
        state::Running { pid: self.pid, pidfd, link, served: self.has_served }
    }

    pub(crate) fn kill(&self) {
        let _gone_already = pidfd::signal(&self.pidfd, Signal::KILL);
    }

    pub(crate) fn unwatch(&self, epoll: &Epoll) {
        let _not_registered = (epoll.remove(&self.link), epoll.remove(&self.pidfd));
    }
}

/// The worker of a keeper, and all that starting the next one needs.
#[derive(Default)]
pub(crate) struct WorkerSlot {
    current: Option<Worker>,
    candidate: Option<Candidate>,
    /// The binary that workers are started from.
    binary: Option<OwnedFd>,
    /// The binary before the last replacement, until a worker of the new one has served.
    fallback: Option<OwnedFd>,
    /// The command line of workers. Empty if there is none to start.
    arguments: Vec<CString>,
    restarts: Restarts,
    /// When to kill a worker that was asked to exit.
    retire_by: Option<Instant>,
    /// The next attempt to start a worker.
    start_by: Option<Instant>,
}

impl WorkerSlot {
    pub(crate) fn new(binary: OwnedFd, arguments: Vec<CString>) -> WorkerSlot {
        WorkerSlot { binary: Some(binary), arguments, ..WorkerSlot::default() }
    }

    /// The slot of an embedded keeper, whose worker is never restarted.
    pub(crate) fn embedded(worker: Worker) -> WorkerSlot {
        WorkerSlot { current: Some(worker), ..WorkerSlot::default() }
    }

    pub(crate) fn current(&self) -> Option<&Worker> {
        self.current.as_ref()
    }

    pub(crate) fn current_mut(&mut self) -> Option<&mut Worker> {
        self.current.as_mut()
    }

    pub(crate) fn has_candidate(&self) -> bool {
        self.candidate.is_some()
    }

    pub(crate) fn arguments(&self) -> &[CString] {
        &self.arguments
    }

    /// Kills the worker, if there is one.
    pub(crate) fn kill(&self) {
        self.current.iter().for_each(Worker::kill);
    }

    /// The worker has served a client.
    pub(crate) fn served(&mut self) {
        self.fallback = None;
        if let Some(worker) = &mut self.current {
            worker.has_served = true;
        }
        self.restarts.served();
    }

    /// Restarts at once again, on request.
    pub(crate) fn forget_failures(&mut self) {
        self.restarts.forget();
    }

    /// The next deadline of worker and candidate.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let candidate = self.candidate.as_ref().filter(|candidate| !candidate.worker.is_subscribed);
        let candidate = candidate.map(|candidate| candidate.deadline);
        [candidate, self.retire_by, self.start_by].into_iter().flatten().min()
    }
}

impl Keeper {
    /// Whether a child is the worker or the candidate. Handles its end.
    pub(crate) fn handle_worker_exit(&mut self, pid: i32) -> bool {
        let is_worker = |slot: &WorkerSlot| slot.current.as_ref().is_some_and(|worker| worker.pid == pid);
        if is_worker(&self.worker) {
            self.worker_ended();
            return is_worker(&self.worker);
        }
        if self.worker.candidate.as_ref().is_some_and(|candidate| candidate.worker.pid == pid) {
            self.candidate_failed(Errno::CHILD);
        }
        false
    }

    pub(crate) fn install_worker(&mut self, worker: Worker) {
        self.worker.start_by = None;
        self.reset_heartbeat();
        self.worker.current = Some(worker);
        self.repeat_shutdown();
        if let Err(errno) = self.watch_worker() {
            log(format_args!("cannot watch the worker ({errno}); polling it every {RETRY_INTERVAL:?}"));
        }
    }

    pub(crate) fn watch_worker(&mut self) -> Result<(), Errno> {
        let Some(worker) = &mut self.worker.current else { return Ok(()) };
        let link = match worker.is_link_closed {
            true => Ok(()),
            false => watched(self.epoll.add(&worker.link, LINK, Interest::Read)),
        };
        let both = link.and_then(|()| watched(self.epoll.add(&worker.pidfd, WORKER, Interest::Read)));
        worker.is_unwatched = both.is_err();
        both
    }

    pub(crate) fn start_worker(&mut self) {
        self.worker.start_by = None;
        self.supervisor.note_unserved();
        let Some(binary) = &self.worker.binary else { return };
        match Worker::start(binary, &self.worker.arguments) {
            Ok(worker) => {
                self.worker.restarts.started();
                self.install_worker(worker);
            }
            Err(Failure { step, errno, .. }) => {
                let pause = self.worker.restarts.next_start();
                log(format_args!("cannot start a worker ({step:?}: {errno}); trying again in {pause:?}"));
                self.worker.start_by = Some(Instant::now() + pause);
                self.notify_unserved(format_args!("cannot start a worker ({errno})"), pause);
            }
        }
    }

    /// The worker has closed its link. Mostly it is about to exit, so it is not killed at once.
    pub(crate) fn worker_closed_link(&mut self) {
        let embedded = self.is_embedded();
        let Some(worker) = &mut self.worker.current else { return };
        worker.is_link_closed = true;
        let _not_registered = self.epoll.remove(&worker.link);
        match embedded {
            true => self.end = Some(0),
            false => self.worker.retire_by = Some(Instant::now() + RETIRE_TIMEOUT),
        }
    }

    pub(crate) fn worker_ended(&mut self) {
        // Requests that it sent before its death count.
        while self.handle_request() {}
        let Some(worker) = self.worker.current.take() else { return };
        let exit = match pidfd::reap(&worker.pidfd) {
            Ok(Some(exit)) => exit,
            Err(Errno::CHILD) => pidfd::exit_of_non_child(&worker.pidfd),
            Ok(None) | Err(_) => {
                self.worker.current = Some(worker);
                return;
            }
        };
        worker.unwatch(&self.epoll);
        self.worker.retire_by = None;
        self.events.clear_notices();
        if worker.refusals > REFUSALS_LOGGED_MAX {
            log(format_args!("worker {}: {} requests were refused", worker.pid, worker.refusals));
        }
        if self.end.is_some() {
            return;
        }
        if self.worker.arguments.is_empty() {
            self.kill_all_and_end();
            return;
        }
        if let Some(candidate) = self.worker.candidate.take() {
            return self.promote(candidate);
        }
        if self.worker_ended_in_stop(&worker) {
            return;
        }
        // A new binary whose worker never served is replaced by the one before.
        if !worker.has_served
            && let Some(before) = self.worker.fallback.take()
        {
            log(format_args!("the new worker binary failed; going back to the one before"));
            self.worker.binary = Some(before);
            self.worker.restarts.forget();
        }
        self.start_next(&worker, exit);
    }

    /// The worker has sent `Stop`. The children of a daemon live on. The keeper of a single server kills everything.
    pub(crate) fn stop(&mut self) {
        match self.worker.arguments.is_empty() && !self.is_embedded() {
            true => self.kill_all_and_end(),
            false => {
                self.wait_for_worker_exit();
                self.end = Some(0);
            }
        }
    }

    /// Waits until the worker that sent `Stop` has exited. It has the daemon's lock and its databases open until then,
    /// and a daemon that is started after our exit needs them.
    fn wait_for_worker_exit(&self) {
        let Some(worker) = self.worker.current().filter(|_| !self.is_embedded()) else { return };
        if !epoll::wait_readable(&worker.pidfd, EXIT_TIMEOUT).unwrap_or(true) {
            worker.kill();
            let _slow = epoll::wait_readable(&worker.pidfd, EXIT_TIMEOUT);
        }
    }

    /// Kills all descendants and ends. A subreaper is the ancestor of orphans too.
    fn kill_all_and_end(&mut self) {
        // The first process of a confined command removes its placeholders on the host, so it is killed after the
        // others.
        let all = procfs::all();
        for pidfd in
            self.table.values().filter(|entry| entry.is_alive()).filter_map(|entry| entry.pidfd.as_ref())
        {
            let Some(identity) = pidfd.identity() else { continue };
            if is_confined(identity, &identity::descendants(&all, &[identity])) {
                kill_all(&identity::descendants(&procfs::all(), &[identity]));
                let _slow = epoll::wait_readable(pidfd, CLEANUP_TIMEOUT);
            }
        }
        for _ in 0..SCANS_MAX {
            let own = procfs::stat(std::process::id().cast_signed()).map(|stat| Identity::of(&stat));
            let below = identity::descendants(&procfs::all(), own.as_slice());
            kill_all(&below);
            while let Ok(Some(pid)) = pidfd::ended_child() {
                let _reaped = pidfd::reap_pid(pid);
            }
            if below.is_empty() {
                break;
            }
        }
        if let Some(groups) = self.table.get(&OWN_SLOT).and_then(|own| own.held(CGROUPS_ROLE)) {
            cgroup::remove_all(groups);
        }
        self.end = Some(0);
    }

    /// Whether there are children, living ones or such with output that is not recorded yet.
    fn has_children(&self) -> bool {
        self.table.keys().any(|slot| *slot != OWN_SLOT)
    }

    fn start_next(&mut self, worker: &Worker, exit: Exit) {
        let has_children = self.has_children();
        let next = self.worker.restarts.next(worker.has_served, exit, has_children, Instant::now());
        let how = exit.cause;
        match next {
            Next::GiveUp => {
                log(format_args!(
                    "worker {} ended ({how:?}); no worker serves and there are no children; ending",
                    worker.pid
                ));
                self.end = Some(1);
            }
            Next::Start(Duration::ZERO) => {
                log(format_args!("worker {} ended ({how:?}); starting another", worker.pid));
                self.start_worker();
            }
            Next::Start(pause) => {
                log(format_args!(
                    "worker {} ended ({how:?}) before it served; trying again in {pause:?}",
                    worker.pid
                ));
                self.worker.start_by = Some(Instant::now() + pause);
                self.notify_unserved(format_args!("the last worker ended ({how:?})"), pause);
            }
        }
    }
}

/// Whether a process runs a confined command: a descendant is in another pid namespace. The table has no record of
/// that, since another keeper may have started the command.
fn is_confined(first: Identity, below: &[procfs::Stat]) -> bool {
    let own = procfs::pid_namespaces(first.pid());
    below.iter().any(|stat| procfs::pid_namespaces(stat.pid) > own)
}

fn kill_all(processes: &[procfs::Stat]) {
    for stat in processes {
        if let Ok(pidfd) = Identity::of(stat).open() {
            let _gone_already = pidfd::signal(&pidfd, Signal::KILL);
            let _slow = epoll::wait_readable(&pidfd, KILL_TIMEOUT);
        }
    }
}
