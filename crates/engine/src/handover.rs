//! Hand-over: a worker whose keeper died starts another one and hands every process over.

use crate::child::Child;
use crate::engine::Lifecycle;
use crate::kill;
use crate::reactor::{LINK, RETRY, Reactor};
use crate::timers::Due;
use crate::{Error, Result};
use outpost_keeper::state::{Running, State};
use outpost_keeper::{Component, EXITS_ROLE, FdRoles, OWN_SLOT, Request};
use outpost_sys::epoll::wait_readable;
use outpost_sys::pidfd::{Exit, Pidfd};
use outpost_sys::{Errno, exits, file, message, pidfd, pipe, spawn};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// The reply to a request for a replacement.
type ReplacementReply = oneshot::Sender<std::result::Result<(), Errno>>;

/// The reactor's knowledge about the keeper process.
pub(crate) struct KeeperSupervision {
    lifecycle: Lifecycle,
    /// The keeper, if this worker has started it.
    own: Option<OwnKeeper>,
    failures: u32,
    /// There is no keeper, and none could be started.
    is_gone: bool,
    /// Exit events of the kernel, while there is no keeper.
    exit_events: Option<OwnedFd>,
    /// Slots that the keeper does not hold yet, because it is new.
    unheld: BTreeSet<u64>,
    replacement: Option<ReplacementReply>,
}

impl KeeperSupervision {
    pub(crate) fn new(lifecycle: Lifecycle) -> KeeperSupervision {
        KeeperSupervision {
            lifecycle,
            own: None,
            failures: 0,
            is_gone: false,
            exit_events: None,
            unheld: BTreeSet::new(),
            replacement: None,
        }
    }

    /// The keeper that this worker has started.
    pub(crate) fn set_own(&mut self, keeper: Option<OwnKeeper>) {
        self.own = keeper;
    }

    /// Whether the keeper is another process.
    pub(crate) fn is_process(&self) -> bool {
        matches!(self.lifecycle, Lifecycle::Daemon { .. })
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Whether the keeper does not hold a slot yet.
    pub(crate) fn lacks(&self, slot: u64) -> bool {
        self.unheld.contains(&slot)
    }

    pub(crate) fn lacks_any(&self) -> bool {
        !self.unheld.is_empty()
    }

    pub(crate) fn add_unheld(&mut self, slot: u64) {
        self.unheld.insert(slot);
    }

    pub(crate) fn set_replacement(&mut self, reply: ReplacementReply) {
        self.replacement = Some(reply);
    }

    pub(crate) fn take_replacement(&mut self) -> Option<ReplacementReply> {
        self.replacement.take()
    }
}

/// A keeper that this worker has started, and so must reap.
pub(crate) struct OwnKeeper {
    started: spawn::Started,
    begun: Instant,
}

impl OwnKeeper {
    pub(crate) fn pid(&self) -> u32 {
        self.started.pid.cast_unsigned()
    }

    /// A keeper without a link is of no use.
    fn kill_and_reap(&self) {
        let _gone_already = pidfd::signal(&self.started.pidfd, crate::Signal::KILL);
        let _dying = wait_readable(&self.started.pidfd, KEEPER_RETRY);
        let _reaped = pidfd::reap(&self.started.pidfd);
    }
}

/// A keeper that lives this long works. After this many in a row that do not there is a pause.
const KEEPER_PROVEN: Duration = Duration::from_millis(100);
const KEEPER_FAILURES_MAX: u32 = 5;

/// The pause before another attempt when keepers die as soon as they are started.
const KEEPER_RETRY: Duration = Duration::from_secs(1);

/// The pause before another attempt when no keeper could be started. It is short: if the worker is killed meanwhile,
/// the pipes of its children are lost. An attempt at the process limit costs little.
const START_RETRY: Duration = Duration::from_millis(50);

impl Reactor {
    /// The keeper is gone: starts another, which adopts all that this worker holds.
    pub(crate) fn keeper_died(&mut self) {
        if let Some(socket) = self.shared.link.socket() {
            self.link_watch.set(&self.epoll, &*socket, LINK, None);
        }
        self.subscribe_to_exits();
        // From here on no thread requests a start past the reactor. Starts that were requested are in the queue.
        self.shared.link.disconnect();
        self.handle_commands_until(|_| false);
        if self.finish_stop() {
            return;
        }
        let Lifecycle::Daemon { binary, arguments } = &self.keeper.lifecycle else {
            tracing::error!("the embedded keeper has ended");
            self.keeper.is_gone = true;
            return;
        };
        if let Some(keeper) = self.keeper.own.take() {
            let is_proven = keeper.begun.elapsed() >= KEEPER_PROVEN;
            self.keeper.failures = if is_proven { 0 } else { self.keeper.failures + 1 };
            keeper.kill_and_reap();
            if self.keeper.failures >= KEEPER_FAILURES_MAX {
                tracing::error!(
                    "keepers die as soon as they are started; children live as long as this worker; retrying"
                );
                self.keeper.is_gone = true;
                self.publish_keeper_lack(Some("keepers die as soon as they are started".into()));
                return self.schedule(KEEPER_RETRY, Due::StartKeeper);
            }
        }
        let is_retry = self.keeper.is_gone;
        if !is_retry {
            tracing::warn!("the keeper died; starting another");
        }
        let started = start_keeper(binary, arguments);
        self.keeper.is_gone = started.is_err();
        self.publish_keeper_lack(started.as_ref().err().map(ToString::to_string));
        let (link, keeper) = match started {
            Ok(started) => started,
            Err(error) => {
                if !is_retry {
                    tracing::error!(%error, "cannot start a keeper; children live as long as this worker; retrying");
                }
                return self.schedule(START_RETRY, Due::StartKeeper);
            }
        };
        if is_retry {
            tracing::info!("a keeper was started");
        }
        self.keeper.own = Some(keeper);
        let unsent = self.shared.link.connect(link);
        if let Some(socket) = self.keeper.exit_events.take() {
            // Before the children. A keeper that does not get it subscribes itself, later.
            let hold = Request::Hold { slot: OWN_SLOT, role: EXITS_ROLE };
            let _subscribes_itself = self.shared.link.pass(hold, &[socket.as_fd()]);
        }
        // The daemon's own descriptors too.
        let slots = self.children.keys().copied().chain(self.adoption.slots());
        self.keeper.unheld = slots.chain([OWN_SLOT]).collect();
        self.hand_over_all();
        for (request, fds) in unsent {
            if let Request::Signal { .. } | Request::Serving = request {
                self.shared.link.send(request, fds);
            }
        }
        self.shared.link.send(Request::Serving, Vec::new());
        // The keeper that was to be replaced does not reply any more.
        if self.keeper.replacement.is_some() {
            self.replacement_done(Component::Keeper, Err(Errno::PIPE));
        }
    }

    fn publish_keeper_lack(&self, reason: Option<String>) {
        self.shared.lacks.send_if_modified(|lacks| {
            let is_new = lacks.keeper != reason;
            lacks.keeper = reason;
            is_new
        });
    }

    /// Subscribes to exit events, until the next keeper receives them. The exit status of a child that ends between the
    /// keeper's death and this call is known only while it is a zombie.
    fn subscribe_to_exits(&mut self) {
        let runs = |child: &Child| child.exit.is_none() && child.process.inner.os.get().is_some();
        let lives = self.children.values().any(runs) || self.adoption.has_living();
        let keeper = &mut self.keeper;
        if keeper.is_process() && lives && keeper.exit_events.is_none() && !pidfd::records_exits() {
            keeper.exit_events = exits::subscribe().ok();
        }
    }

    /// Hands children to the new keeper, as far as its queue has room. Descriptors are passed without a copy, so a
    /// worker at its descriptor limit can hand everything over.
    pub(crate) fn hand_over_all(&mut self) {
        if !self.shared.link.is_flushed() {
            return;
        }
        let mut failed = false;
        for slot in self.keeper.unheld.clone() {
            match self.hand_over(slot) {
                Ok(()) => {
                    self.keeper.unheld.remove(&slot);
                }
                Err(Errno::AGAIN) => return self.shared.link.expect_room(),
                // Too many descriptors are in flight, or there is no memory. No event announces when that changes.
                Err(_) => failed = true,
            }
        }
        if failed {
            self.schedule(RETRY, Due::HandOver);
        }
        // Only now can this worker be killed without a loss. Others conclude that from the keeper's pid.
        if let (true, Some(keeper)) = (self.keeper.unheld.is_empty(), &self.keeper.own) {
            self.shared.keeper_pid.store(keeper.pid(), Ordering::Release);
        }
    }

    /// Hands one child to the new keeper. A child whose start the old keeper never reported has not executed, and never
    /// will: the new keeper is requested to start it.
    fn hand_over(&mut self, slot: u64) -> outpost_sys::Result<()> {
        if slot == OWN_SLOT {
            return self.hand_over_daemon_fds();
        }
        if let Some(entry) = self.adoption.entry(slot) {
            let roles = FdRoles::new(entry.held.keys().copied()).ok_or(Errno::MFILE)?;
            let fds: Vec<_> =
                entry.pidfd.iter().map(AsFd::as_fd).chain(entry.held.values().map(AsFd::as_fd)).collect();
            let request = Request::Adopt { slot, pid: entry.pid, state: entry.state, held: roles };
            return self.shared.link.lock().send_now(&request, &fds);
        }
        let Some(child) = self.children.get_mut(&slot) else { return Ok(()) };
        if let Some(pid) = child.launch.as_ref().and_then(|launch| launch.reported_pid)
            && child.process.inner.os.get().is_none()
        {
            // It may have executed, so it must not be started a second time.
            match kill::open_leader(&child.process, pid) {
                Ok(os) => {
                    let _set_once = child.process.inner.os.set(os);
                    self.record_start(slot);
                }
                Err(Errno::SRCH) => {
                    self.record_start(slot);
                    self.executed(slot);
                    self.exited(slot, Exit::UNKNOWN);
                    return Ok(());
                }
                Err(errno) => return Err(errno),
            }
        }
        let Some(child) = self.children.get_mut(&slot) else { return Ok(()) };
        if child.process.inner.os.get().is_none() {
            if let Some(launch) = &mut child.launch {
                // A child that waits at the old gate exits when that closes.
                launch.exec_gate = None;
            }
            let Some((request, fds)) = child.spawn_request()? else { return Ok(()) };
            return self.shared.link.lock().send_now(&request, &fds);
        }
        // The keeper may have died before it opened the gate.
        if let Some(gate) = child.launch.as_ref().and_then(|launch| launch.exec_gate.as_ref()) {
            let _cannot_fill_up = pipe::write_byte(&gate.write);
        }
        // The status pipe died with the keeper. The exit status shows whether the child reached its program.
        self.executed(slot);
        let Some(child) = self.children.get(&slot) else { return Ok(()) };
        let Some(os) = child.process.inner.os.get() else { return Ok(()) };
        let (held, pidfd) = (child.held(), os.pidfd.get());
        let roles = FdRoles::new(held.iter().map(|(role, _)| *role)).ok_or(Errno::MFILE)?;
        let fds: Vec<_> =
            pidfd.iter().map(|pidfd| pidfd.as_fd()).chain(held.iter().map(|(_, fd)| *fd)).collect();
        let request = Request::Adopt { slot, pid: os.pid, state: child.keeper_state(), held: roles };
        self.shared.link.lock().send_now(&request, &fds)
    }
}

/// Starts a keeper with this worker and an empty table. Returns the link to it.
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
    let started = spawn::spawn_self(binary.as_fd(), &arguments, spawn::SessionKind::Session, &others)
        .map_err(|failure| io(failure.errno))?;
    Ok((ours, OwnKeeper { started, begun: Instant::now() }))
}
