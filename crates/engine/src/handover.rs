//! Hand-over: a worker whose keeper died starts another one and gives it every process.

use crate::adoption::Entry;
use crate::child::Child;
use crate::engine::Lifecycle;
use crate::kill;
use crate::link::Link;
use crate::reactor::{Due, LINK, RETRY, Reactor};
use crate::{Error, Result};
use outpost_keeper::state::{Running, State};
use outpost_keeper::{EXITS_ROLE, OWN_SLOT, Request, Roles, Standing, What};
use outpost_sys::epoll::wait_readable;
use outpost_sys::pidfd::{Exit, Pidfd};
use outpost_sys::{Errno, exits, file, message, pidfd, pipe, spawn};
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A keeper that this worker has started, and so must reap.
pub(crate) struct OwnKeeper {
    started: spawn::Started,
    begun: Instant,
}

impl OwnKeeper {
    pub(crate) fn pid(&self) -> u32 {
        self.started.pid.cast_unsigned()
    }

    /// One without a link to us is of no use, whatever it still does.
    fn bury(&self) {
        let _gone_already = pidfd::signal(&self.started.pidfd, crate::Signal::KILL);
        let _dying = wait_readable(&self.started.pidfd, KEEPER_RETRY);
        let _reaped = pidfd::reap(&self.started.pidfd);
    }
}

/// A keeper that lives this long is a working one; so many in a row that do not are a reason to pause.
const KEEPER_PROVEN: Duration = Duration::from_millis(100);
const KEEPER_FAILURES_MAX: u32 = 5;

/// How long to wait before another attempt when keepers die as soon as they are started.
const KEEPER_RETRY: Duration = Duration::from_secs(1);

/// How long to wait before another attempt when no keeper could be started. A worker that is killed meanwhile takes the
/// pipes of its children along, and an attempt at the process limit costs the host next to nothing.
const START_RETRY: Duration = Duration::from_millis(50);

impl Reactor {
    /// The keeper is gone: starts another, which takes over all that this worker holds.
    pub(crate) fn keeper_died(&mut self) {
        self.link_watch.set(&self.epoll, &self.link, LINK, None);
        self.subscribe_to_exits();
        // From here on nobody asks it for anything, and who has done so has told us.
        *self.shared.keeper() = None;
        while let Ok(command) = self.commands.try_recv() {
            self.obey(command);
        }
        if self.stop_if_asked() {
            return;
        }
        let Lifecycle::Daemon { binary, arguments } = &self.lifecycle else {
            tracing::error!("the embedded keeper has ended");
            self.keeper_gone = true;
            return;
        };
        if let Some(keeper) = self.keeper.take() {
            self.keeper_failures =
                if keeper.begun.elapsed() < KEEPER_PROVEN { self.keeper_failures + 1 } else { 0 };
            keeper.bury();
            if self.keeper_failures >= KEEPER_FAILURES_MAX {
                tracing::error!(
                    "keepers die as soon as they are started; children live as long as this worker; trying again"
                );
                self.keeper_gone = true;
                self.lack_keeper(Some("keepers die as soon as they are started".into()));
                return self.schedule(KEEPER_RETRY, Due::Keeper);
            }
        }
        let is_retry = self.keeper_gone;
        if !is_retry {
            tracing::warn!("the keeper died; starting another");
        }
        let started = start_keeper(binary, arguments);
        self.keeper_gone = started.is_err();
        self.lack_keeper(started.as_ref().err().map(ToString::to_string));
        let (link, keeper) = match started {
            Ok(started) => started,
            Err(error) => {
                if !is_retry {
                    tracing::error!(%error, "no keeper can be started; children live as long as this worker; trying again");
                }
                return self.schedule(START_RETRY, Due::Keeper);
            }
        };
        if is_retry {
            tracing::info!("a keeper has been started after all");
        }
        self.keeper = Some(keeper);
        let unsent = self.link.take_unsent();
        self.link = Link::new(link);
        if let Some(socket) = self.exit_events.take() {
            // Before the children. A keeper that does not get it subscribes itself, later.
            let _subscribes_itself =
                self.link.pass(Request::Hold { slot: OWN_SLOT, role: EXITS_ROLE }, &[socket.as_fd()]);
        }
        self.shared.spares.unman();
        *self.shared.keeper() = Some(self.link.socket());
        // The daemon's own descriptors too.
        let slots = self.children.keys().chain(self.unadopted.keys()).copied();
        self.unheld = slots.chain([OWN_SLOT]).collect();
        self.give_all();
        for (request, fds) in unsent {
            if let Request::Signal { .. } | Request::Serving = request {
                self.link.send(request, fds);
            }
        }
        self.link.send(Request::Serving, Vec::new());
        self.man_spares();
        // The one that was to be replaced tells nobody any more.
        if self.replacing.is_some() {
            self.replaced(What::Keeper, Err(Errno::PIPE));
        }
    }

    fn lack_keeper(&self, reason: Option<String>) {
        self.shared.lacks.send_if_modified(|lacks| {
            let is_new = lacks.keeper != reason;
            lacks.keeper = reason;
            is_new
        });
    }

    /// Has the kernel report how children end from now on, until the next keeper receives the reports. A child that ends
    /// between the keeper's death and this call is known only as long as it is a zombie.
    fn subscribe_to_exits(&mut self) {
        let runs = |child: &Child| child.exit.is_none() && child.process.inner.os.get().is_some();
        let is_unended = |entry: &Entry| matches!(entry.standing, Standing::Starting | Standing::Running);
        let lives = self.children.values().any(runs) || self.unadopted.values().any(is_unended);
        let daemon = matches!(self.lifecycle, Lifecycle::Daemon { .. });
        if daemon && lives && self.exit_events.is_none() && !pidfd::notes_exits() {
            self.exit_events = exits::subscribe().ok();
        }
    }

    /// Hands children to the new keeper, as many as it takes now. Descriptors are passed and not copied before, so a worker
    /// at its descriptor limit can hand over everything it has.
    pub(crate) fn give_all(&mut self) {
        if !self.link.is_flushed() {
            return;
        }
        let mut failed = false;
        for slot in self.unheld.clone() {
            match self.give(slot) {
                Ok(()) => {
                    self.unheld.remove(&slot);
                }
                Err(Errno::AGAIN) => return self.link.expect_room(),
                // Too many descriptors are on their way, or there is no memory: no event tells when that changes.
                Err(_) => failed = true,
            }
        }
        if failed {
            self.schedule(RETRY, Due::Give);
        }
        // Only now can this worker be killed without a loss, which is what others read from this number.
        if let (true, Some(keeper)) = (self.unheld.is_empty(), &self.keeper) {
            self.shared.keeper_pid.store(keeper.pid(), Ordering::Release);
        }
    }

    /// Hands one child to the new keeper. A child whose start the old keeper never reported has executed nothing, and never
    /// will: the new keeper is asked to start it.
    fn give(&mut self, slot: u64) -> outpost_sys::Result<()> {
        if slot == OWN_SLOT {
            return self.give_own();
        }
        if let Some(entry) = self.unadopted.get(&slot) {
            let roles = Roles::new(entry.held.keys().copied()).ok_or(Errno::MFILE)?;
            let fds: Vec<_> =
                entry.pidfd.iter().map(AsFd::as_fd).chain(entry.held.values().map(AsFd::as_fd)).collect();
            let request = Request::Adopt { slot, pid: entry.pid, standing: entry.standing, held: roles };
            return message::send(&*self.link.socket(), &request.encode(), &fds);
        }
        let Some(child) = self.children.get_mut(&slot) else { return Ok(()) };
        if let Some(pid) = child.starting.as_ref().and_then(|starting| starting.reported)
            && child.process.inner.os.get().is_none()
        {
            // It may have executed, so it must not be started again.
            match kill::open_leader(&child.process, pid) {
                Ok(os) => {
                    let _set_once = child.process.inner.os.set(os);
                    self.record_start(slot);
                }
                Err(Errno::SRCH) => {
                    self.record_start(slot);
                    self.started(slot);
                    self.exited(slot, Exit::UNKNOWN);
                    return Ok(());
                }
                Err(errno) => return Err(errno),
            }
        }
        let Some(child) = self.children.get_mut(&slot) else { return Ok(()) };
        if child.process.inner.os.get().is_none() {
            if let Some(starting) = &mut child.starting {
                // A child that waits at the old gate ends when that is closed.
                starting.gate = None;
            }
            let Some((request, fds)) = child.request()? else { return Ok(()) };
            return message::send(&*self.link.socket(), &request.encode(), &fds);
        }
        // The keeper may have died on its way to the gate.
        if let Some(gate) = child.starting.as_ref().and_then(|starting| starting.gate.as_ref()) {
            let _cannot_fill_up = pipe::write_byte(&gate.write);
        }
        if child.starting.as_ref().is_none_or(|starting| starting.report.is_none()) {
            // Whether the child reached its program was reported to the dead keeper only: its exit will show it.
            self.started(slot);
        }
        let Some(child) = self.children.get(&slot) else { return Ok(()) };
        let Some(os) = child.process.inner.os.get() else { return Ok(()) };
        let (held, pidfd) = (child.held(), os.pidfd.get());
        let roles = Roles::new(held.iter().map(|(role, _)| *role)).ok_or(Errno::MFILE)?;
        let fds: Vec<_> =
            pidfd.iter().map(|pidfd| pidfd.as_fd()).chain(held.iter().map(|(_, fd)| *fd)).collect();
        let request = Request::Adopt { slot, pid: os.pid, standing: child.standing(), held: roles };
        message::send(&*self.link.socket(), &request.encode(), &fds)
    }
}

/// Starts a keeper that knows this worker and nothing else yet. Returns the link to it.
pub(crate) fn start_keeper(binary: &OwnedFd, arguments: &[CString]) -> Result<(OwnedFd, OwnKeeper)> {
    const STATE_FD: i32 = 4;
    const BINARY_FD: i32 = 5;
    const LINK_FD: i32 = 6;
    const PIDFD: i32 = 7;
    let io = |errno| Error::io("start", "a keeper", errno);
    let (ours, its) = message::pair().map_err(io)?;
    let own_pidfd = Pidfd::own().map_err(io)?;
    let state = State {
        binary: BINARY_FD,
        arguments: arguments.to_vec(),
        worker: Some(Running { pid: own_pidfd.pid(), pidfd: PIDFD, link: LINK_FD, served: true }),
        replaced: false,
        entries: Vec::new(),
    };
    let state = file::sealed_memory("outpost-keeper", &state.encode()).map_err(io)?;
    let others = [
        (state.as_fd(), STATE_FD),
        (binary.as_fd(), BINARY_FD),
        (its.as_fd(), LINK_FD),
        (own_pidfd.as_fd(), PIDFD),
    ];
    let arguments = [c"outpost", c"keeper", c"--state", c"4"];
    let started = spawn::start_part(binary.as_fd(), &arguments, spawn::Standing::Session, &others)
        .map_err(|failure| io(failure.errno))?;
    Ok((ours, OwnKeeper { started, begun: Instant::now() }))
}
