//! The worker as the keeper sees it: how it is started, watched and replaced when it ends.

use crate::keeper::{AGAIN_AFTER, Keeper, LINK, WORKER};
use crate::link::COMPLAINTS_MAX;
use crate::log::log;
use crate::replace::RETIRE_PATIENCE;
use crate::restarts::Next;
use crate::table::{CGROUPS_ROLE, OWN_SLOT, watched};
use crate::{LINK_FD, state};
use outpost_sys::epoll::{self, Epoll, Interest};
use outpost_sys::identity::{self, Identity};
use outpost_sys::pidfd::{self, Exit, Pidfd};
use outpost_sys::signal::Signal;
use outpost_sys::spawn::{self, Failure, Standing, Step};
use outpost_sys::{Errno, cgroup, file, message, procfs};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Looks for processes to end. Each must find somebody to need another.
const PASSES_MAX: usize = 64;

/// How long what a confined command held on the host may take to be cleared up.
const CLEAR_PATIENCE: Duration = Duration::from_millis(500);

/// How long a worker that has ended everything may take to exit.
const EXIT_PATIENCE: Duration = Duration::from_secs(5);

/// How long a killed process may take before we go on with the next.
const KILL_PATIENCE: Duration = Duration::from_millis(20);

pub(crate) struct Worker {
    pub(crate) pid: i32,
    pub(crate) pidfd: Pidfd,
    pub(crate) link: OwnedFd,
    /// It has asked for the table, so it may be told things.
    pub(crate) listens: bool,
    pub(crate) served: bool,
    /// Its end of the link is closed.
    pub(crate) unlinked: bool,
    /// The link was full: we wait until it can be written again.
    pub(crate) choked: bool,
    /// Nothing tells us of its requests and its end, so we have to ask.
    pub(crate) unwatched: bool,
    /// How many of its requests were refused.
    pub(crate) complaints: u64,
}

impl Worker {
    pub(crate) fn new(pid: i32, pidfd: Pidfd, link: OwnedFd) -> Worker {
        let (listens, served, unlinked, choked, unwatched) = (false, false, false, false, false);
        Worker { pid, pidfd, link, listens, served, unlinked, choked, unwatched, complaints: 0 }
    }

    /// Starts a worker from an open binary.
    pub(crate) fn start(binary: &OwnedFd, arguments: &[CString]) -> Result<Worker, Failure> {
        let prepare = |errno| Failure::at(Step::Prepare, errno);
        let (link, its_end) = message::pair().map_err(prepare)?;
        let arguments: Vec<&CStr> = arguments.iter().map(CString::as_c_str).collect();
        // Away from the terminal's signals: they are for the keeper to pass on.
        let others = [(its_end.as_fd(), LINK_FD)];
        let started = spawn::start_part(binary.as_fd(), &arguments, Standing::Group, &others)?;
        Ok(Worker::new(started.pid, started.pidfd, link))
    }

    /// The worker that runs already when a keeper begins.
    pub(crate) fn inherited(running: &state::Running) -> Result<Worker, Errno> {
        let pidfd = Pidfd::received(running.pid, file::inherited(running.pidfd)?);
        let link = file::inherited(running.link)?;
        Ok(Worker { listens: true, served: running.served, ..Worker::new(running.pid, pidfd, link) })
    }

    pub(crate) fn stored(&self) -> state::Running {
        let (pidfd, link) = (self.pidfd.as_raw_fd(), self.link.as_raw_fd());
        state::Running { pid: self.pid, pidfd, link, served: self.served }
    }

    pub(crate) fn kill(&self) {
        let _gone_already = pidfd::signal(&self.pidfd, Signal::KILL);
    }

    pub(crate) fn unwatch(&self, epoll: &Epoll) {
        let _not_registered = (epoll.remove(&self.link), epoll.remove(&self.pidfd));
    }
}

impl Keeper {
    pub(crate) fn seat(&mut self, worker: Worker) {
        self.start_by = None;
        self.forget_pulse();
        self.worker = Some(worker);
        self.ask_to_stop();
        if let Err(errno) = self.watch_worker() {
            log(format_args!("cannot watch the worker ({errno}); looking at it every {AGAIN_AFTER:?}"));
        }
    }

    pub(crate) fn watch_worker(&mut self) -> Result<(), Errno> {
        let Some(worker) = &mut self.worker else { return Ok(()) };
        let link = match worker.unlinked {
            true => Ok(()),
            false => watched(self.epoll.add(&worker.link, LINK, Interest::Read)),
        };
        let both = link.and_then(|()| watched(self.epoll.add(&worker.pidfd, WORKER, Interest::Read)));
        worker.unwatched = both.is_err();
        both
    }

    pub(crate) fn start_worker(&mut self) {
        self.start_by = None;
        self.unserved_since.get_or_insert_with(Instant::now);
        let Some(binary) = &self.binary else { return };
        match Worker::start(binary, &self.arguments) {
            Ok(worker) => {
                self.restarts.started();
                self.seat(worker);
            }
            Err(Failure { step, errno, .. }) => {
                let pause = self.restarts.next_start();
                log(format_args!("cannot start a worker ({step:?}: {errno}); trying again in {pause:?}"));
                self.start_by = Some(Instant::now() + pause);
                self.say_unserved(format_args!("cannot start a worker ({errno})"), pause);
            }
        }
    }

    /// A worker that cannot be talked to is of no use. Mostly it is on its way out; how it ends shall be its own doing.
    pub(crate) fn worker_unlinked(&mut self) {
        let embedded = self.is_embedded();
        let Some(worker) = &mut self.worker else { return };
        worker.unlinked = true;
        let _not_registered = self.epoll.remove(&worker.link);
        match embedded {
            true => self.end = Some(0),
            false => self.retire_by = Some(Instant::now() + RETIRE_PATIENCE),
        }
    }

    pub(crate) fn worker_ended(&mut self) {
        // What it asked for before it died counts.
        while self.handle_request() {}
        let Some(worker) = self.worker.take() else { return };
        let exit = match pidfd::reap(&worker.pidfd) {
            Ok(Some(exit)) => exit,
            Err(Errno::CHILD) => pidfd::exit_of_stranger(&worker.pidfd),
            Ok(None) | Err(_) => {
                self.worker = Some(worker);
                return;
            }
        };
        worker.unwatch(&self.epoll);
        self.dismiss_all();
        self.retire_by = None;
        self.table_end = false;
        self.events.clear();
        if worker.complaints > COMPLAINTS_MAX {
            log(format_args!("worker {}: {} requests were refused", worker.pid, worker.complaints));
        }
        if self.end.is_some() {
            return;
        }
        if self.arguments.is_empty() {
            self.end_everyone();
            return;
        }
        if let Some(candidate) = self.candidate.take() {
            return self.promote(candidate);
        }
        if self.worker_ended_in_stop(&worker) {
            return;
        }
        // A new binary that never served gives way to the one before it.
        if !worker.served
            && let Some(before) = self.fallback.take()
        {
            log(format_args!("the new worker binary failed; going back to the one before"));
            self.binary = Some(before);
            self.restarts.forget();
        }
        self.start_next(&worker, exit);
    }

    /// Nobody is to be started again. What a daemon keeps lives on; with a server that nobody else starts, all ends.
    pub(crate) fn stop(&mut self) {
        match self.arguments.is_empty() && !self.is_embedded() {
            true => self.end_everyone(),
            false => {
                self.outlive_worker();
                self.end = Some(0);
            }
        }
    }

    /// Waits until the worker that sent `Stop` has exited. It has the daemon's lock and books open until then, and a daemon
    /// that is started after our exit needs them.
    fn outlive_worker(&self) {
        let Some(worker) = self.worker.as_ref().filter(|_| !self.is_embedded()) else { return };
        if !epoll::wait_readable(&worker.pidfd, EXIT_PATIENCE).unwrap_or(true) {
            worker.kill();
            let _slow = epoll::wait_readable(&worker.pidfd, EXIT_PATIENCE);
        }
    }

    /// Ends all that was ever started here and ends. Whatever left its parent, its group and its session came to us.
    fn end_everyone(&mut self) {
        // The first process of a confined command removes what it held on the host, so it is killed after the others.
        let all = procfs::all();
        for pidfd in
            self.table.values().filter(|entry| entry.lives()).filter_map(|entry| entry.pidfd.as_ref())
        {
            let Some(identity) = pidfd.identity() else { continue };
            if is_confined(identity, &identity::descendants(&all, &[identity])) {
                kill_all(&identity::descendants(&procfs::all(), &[identity]));
                let _slow = epoll::wait_readable(pidfd, CLEAR_PATIENCE);
            }
        }
        for _ in 0..PASSES_MAX {
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
        let own = self.table.get(&OWN_SLOT);
        if let Some((_, groups)) = own.and_then(|own| own.held.iter().find(|(role, _)| *role == CGROUPS_ROLE))
        {
            cgroup::remove_all(groups);
        }
        self.end = Some(0);
    }

    /// Without a worker a keeper is worth its children, living or with output that nobody has recorded yet.
    fn keeps_nobody(&self) -> bool {
        self.table.keys().all(|slot| *slot == OWN_SLOT)
    }

    fn start_next(&mut self, worker: &Worker, exit: Exit) {
        let next = self.restarts.next(worker.served, exit, !self.keeps_nobody(), Instant::now());
        let how = exit.how;
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
                self.start_by = Some(Instant::now() + pause);
                self.say_unserved(format_args!("the last worker ended ({how:?})"), pause);
            }
        }
    }
}

/// Whether a process runs a confined command: some descendant is in a pid namespace of its own. The kernel is asked, since no
/// record of the confinement outlives the keeper that started the command.
fn is_confined(first: Identity, below: &[procfs::Stat]) -> bool {
    let own = procfs::pid_namespaces(first.pid());
    below.iter().any(|stat| procfs::pid_namespaces(stat.pid) > own)
}

fn kill_all(processes: &[procfs::Stat]) {
    for stat in processes {
        if let Ok(pidfd) = Identity::of(stat).open() {
            let _gone_already = pidfd::signal(&pidfd, Signal::KILL);
            let _slow = epoll::wait_readable(&pidfd, KILL_PATIENCE);
        }
    }
}
