//! The engine's thread: the only place where bytes move and processes change.

use crate::child::{COLLECT, Child, HOT_PIPE_BYTES, PIPE_BYTES, open_nowhere, stream_index};
use crate::engine::{Lifecycle, Notice, Shared};
use crate::handover::Entry;
use crate::input::Delivery;
use crate::link::{Link, Received, role};
use crate::process::{Os, Process};
use crate::spec::Slot;
use crate::{Error, Result, kill};
use outpost_journal::{Accepted, Stream};
use outpost_keeper::{Event, OWN_SLOT, Request, Standing, What};
use outpost_sys::epoll::{Epoll, Interest, Ready, Timer};
use outpost_sys::pidfd::Exit;
use outpost_sys::pipe::{self, Moved};
use outpost_sys::signal::Signal;
use outpost_sys::{Errno, procfs};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

const WAKER: u64 = 1;
const TIMER: u64 = 2;
pub(crate) const LINK: u64 = 3;

/// After an exit, output that stays silent for this long is taken to have ended, though a descendant holds the pipe.
const DRAIN_QUIET: Duration = Duration::from_millis(100);
/// And however much it writes, the exit is not kept back longer than this.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// How long output waits, again and again, for a reader that keeps up and would lose some.
const READER_PAUSE: Duration = Duration::from_micros(500);

/// How often a write that found no room on the disk is tried again.
const RETRY: Duration = Duration::from_millis(200);

/// Hot pipes may together have this much more than others: the kernel rations it per user.
const HOT_PIPES_MAX: usize = 16;
/// A hot pipe that was quiet for this long is cold again.
const COOL_AFTER: Duration = Duration::from_secs(1);

/// How often ended processes are looked through for those whose time is up.
const RETENTION_TICK: Duration = Duration::from_secs(30);
/// After so much new output the host's total is looked at.
const HOST_CHECK_BYTES: u64 = 4 * 1024 * 1024;

/// Commands taken before others get their turn.
const COMMANDS_AT_ONCE: usize = 256;

/// What the rest of the program asks of the reactor.
pub(crate) enum Command {
    Start { child: Box<Child> },
    Stdin { slot: Slot, offset: Option<u64>, data: Vec<u8>, reply: oneshot::Sender<Result<Accepted>> },
    StdinRoom { slot: Slot, reply: oneshot::Sender<()> },
    CloseStdin { slot: Slot, reply: oneshot::Sender<Result<()>> },
    SignalGroup { slot: Slot, signal: Signal },
    Forget { slot: Slot },
    HoldOwn { role: u8, fd: OwnedFd, reply: oneshot::Sender<()> },
    Serving,
    Replace { what: What, binary: OwnedFd, reply: oneshot::Sender<std::result::Result<(), Errno>> },
    Stop { done: oneshot::Sender<()> },
}

/// What the clock brings us back for.
#[derive(Clone, Copy, Debug)]
enum Due {
    Pump(u64, Stream),
    Deliver(u64),
    Drain(u64),
    Cool,
    Retention,
}

pub(crate) struct Reactor {
    pub(crate) epoll: Epoll,
    timer: Timer,
    commands: mpsc::Receiver<Command>,
    pub(crate) link: Link,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) children: HashMap<u64, Child>,
    /// The daemon's own descriptors that the keeper holds.
    pub(crate) own: BTreeMap<u8, OwnedFd>,
    due: BTreeMap<(Instant, u64), Due>,
    due_count: u64,
    timer_set: Option<Instant>,
    nowhere: OwnedFd,
    hot_pipes: usize,
    unchecked_bytes: u64,
    replacing: Option<oneshot::Sender<std::result::Result<(), Errno>>>,
    pub(crate) shared: Arc<Shared>,
    stopping: bool,
}

impl Reactor {
    pub(crate) fn new(
        shared: Arc<Shared>,
        commands: mpsc::Receiver<Command>,
        link: Link,
        lifecycle: Lifecycle,
    ) -> Result<Reactor> {
        let io = |errno| Error::io("set up", "the event loop", errno);
        let epoll = Epoll::new().map_err(io)?;
        let timer = Timer::new().map_err(io)?;
        epoll.add(&shared.waker, WAKER, Interest::Read).map_err(io)?;
        epoll.add(&timer, TIMER, Interest::Read).map_err(io)?;
        epoll.add(&link, LINK, Interest::Read).map_err(io)?;
        let mut reactor = Reactor {
            epoll,
            timer,
            commands,
            link,
            lifecycle,
            children: HashMap::new(),
            own: BTreeMap::new(),
            due: BTreeMap::new(),
            due_count: 0,
            timer_set: None,
            nowhere: open_nowhere()?,
            hot_pipes: 0,
            unchecked_bytes: 0,
            replacing: None,
            shared,
            stopping: false,
        };
        reactor.schedule(RETENTION_TICK, Due::Retention);
        Ok(reactor)
    }

    pub(crate) fn run(mut self) {
        let mut ready = Vec::new();
        while !self.stopping {
            if let Err(errno) = self.epoll.wait(&mut ready, None) {
                tracing::error!(%errno, "waiting for events failed");
            }
            for event in &ready {
                self.handle(event);
            }
            self.set_timer();
        }
    }

    fn handle(&mut self, ready: &Ready) {
        match ready.token {
            WAKER => self.take_commands(),
            TIMER => self.take_due(),
            LINK => self.listen(),
            token => {
                let (slot, role) = (token >> 4, (token & 15) as u8);
                match role {
                    role::STDOUT => self.pump(slot, Stream::Stdout),
                    role::STDERR => self.pump(slot, Stream::Stderr),
                    role::STDIN => self.deliver(slot),
                    role::MASTER => {
                        if ready.readable || ready.hung_up {
                            self.pump(slot, Stream::Stdout);
                        }
                        if ready.writable {
                            self.deliver(slot);
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    // The clock.

    fn schedule(&mut self, after: Duration, due: Due) {
        self.due_count += 1;
        self.due.insert((Instant::now() + after, self.due_count), due);
    }

    fn set_timer(&mut self) {
        let next = self.due.first_key_value().map(|((at, _), _)| *at);
        if next != self.timer_set
            && let Some(at) = next
        {
            match self.timer.set(at.saturating_duration_since(Instant::now())) {
                Ok(()) => self.timer_set = next,
                Err(errno) => tracing::error!(%errno, "cannot set the timer"),
            }
        }
    }

    fn take_due(&mut self) {
        self.timer.clear();
        self.timer_set = None;
        let now = Instant::now();
        while let Some(entry) = self.due.first_entry().filter(|entry| entry.key().0 <= now) {
            match entry.remove() {
                Due::Pump(slot, stream) => {
                    if let Some(output) = self
                        .children
                        .get_mut(&slot)
                        .and_then(|child| child.outputs[stream_index(stream)].as_mut())
                    {
                        output.paused = false;
                    }
                    self.pump(slot, stream);
                }
                Due::Deliver(slot) => self.deliver(slot),
                Due::Drain(slot) => self.drain(slot),
                Due::Cool => self.cool(now),
                Due::Retention => {
                    self.keep_retention();
                    self.schedule(RETENTION_TICK, Due::Retention);
                }
            }
        }
    }

    // Output.

    pub(crate) fn pump(&mut self, slot: u64, stream: Stream) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        if child.outputs[stream_index(stream)].as_ref().is_none_or(|output| output.paused) {
            return;
        }
        if child.would_rob_reader(stream) {
            return self.wait_for_reader(slot, stream);
        }
        match child.pump(stream, &self.nowhere) {
            Ok(Moved::Bytes(bytes)) => self.moved(slot, stream, bytes),
            Ok(Moved::WouldBlock) => child.rewatch(&self.epoll),
            Ok(Moved::End) => self.stream_ended(slot, stream),
            Err(error) => self.stall(slot, stream, &error),
        }
    }

    /// Lets a reader that keeps up have what the cap is about to take from it; the child waits at its pipe for so long.
    fn wait_for_reader(&mut self, slot: u64, stream: Stream) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        if let Some(output) = &mut child.outputs[stream_index(stream)] {
            output.paused = true;
        }
        child.rewatch(&self.epoll);
        self.schedule(READER_PAUSE, Due::Pump(slot, stream));
    }

    fn moved(&mut self, slot: u64, stream: Stream, bytes: usize) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        let now = Instant::now();
        child.last_byte = now;
        if child.writer.exit().is_none() {
            child.stalled = false;
            child.publish();
        }
        let Some(output) = &mut child.outputs[stream_index(stream)] else { return };
        let collect = output.note(bytes, now);
        if output.wants_larger_pipe() && self.hot_pipes < HOT_PIPES_MAX {
            output.hot = true;
            if pipe::set_capacity(output.pipe(), HOT_PIPE_BYTES).is_ok() {
                self.hot_pipes += 1;
                self.schedule(COOL_AFTER, Due::Cool);
            }
        } else if collect {
            output.paused = true;
            self.schedule(COLLECT, Due::Pump(slot, stream));
        }
        if let Some(child) = self.children.get_mut(&slot) {
            child.rewatch(&self.epoll);
        }
        self.unchecked_bytes += bytes as u64;
        if self.unchecked_bytes >= HOST_CHECK_BYTES {
            self.unchecked_bytes = 0;
            self.keep_host_cap();
        }
    }

    /// Nothing is lost: what could not be written is in the pipe, and the child waits when that is full.
    fn stall(&mut self, slot: u64, stream: Stream, error: &outpost_journal::Error) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        if !std::mem::replace(&mut child.stalled, true) {
            tracing::error!(process = %child.process.slot(), %error, "output cannot be recorded; the process is slowed until it can");
            child.publish();
        }
        if let Some(output) = &mut child.outputs[stream_index(stream)] {
            output.paused = true;
        }
        child.rewatch(&self.epoll);
        self.schedule(RETRY, Due::Pump(slot, stream));
    }

    fn stream_ended(&mut self, slot: u64, stream: Stream) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        if child.outputs[stream_index(stream)].as_ref().is_some_and(|output| output.hot) {
            self.hot_pipes = self.hot_pipes.saturating_sub(1);
        }
        for role in child.end_stream(&self.epoll, stream) {
            self.link.send(Request::Release { slot, role }, Vec::new());
        }
        self.drain(slot);
    }

    fn cool(&mut self, now: Instant) {
        let mut hot = 0;
        for output in self
            .children
            .values_mut()
            .flat_map(|child| child.outputs.iter_mut().flatten())
            .filter(|output| output.hot)
        {
            let cold = output.quiet_for(now) >= COOL_AFTER;
            if cold && pipe::set_capacity(output.pipe(), PIPE_BYTES).is_ok() {
                output.hot = false;
            } else {
                hot += 1;
            }
        }
        self.hot_pipes = hot;
        if hot > 0 {
            self.schedule(COOL_AFTER, Due::Cool);
        }
    }

    // The end of a process.

    fn exited(&mut self, slot: u64, exit: Exit) {
        let Some(child) = self.children.get_mut(&slot).filter(|child| child.exit.is_none()) else { return };
        child.exit = Some(exit);
        child.exit_seen = Instant::now();
        let roles = child.end_input(&self.epoll);
        child.publish();
        child.rewatch(&self.epoll);
        for role in roles {
            self.link.send(Request::Release { slot, role }, Vec::new());
        }
        self.drain(slot);
    }

    /// Records the exit once all output is in, or when what still holds the pipes has been silent long enough.
    pub(crate) fn drain(&mut self, slot: u64) {
        let now = Instant::now();
        let Some(child) = self.children.get_mut(&slot) else { return };
        let Some(exit) = child.exit else { return };
        if child.writer.exit().is_some() {
            return self.let_go(slot);
        }
        let exit_seen = child.exit_seen;
        let waiting_for_disk = child.stalled;
        let quiet_since = child.last_byte.max(child.exit_seen);
        let quiet = now.saturating_duration_since(quiet_since) >= DRAIN_QUIET;
        let enough = quiet || now.saturating_duration_since(child.exit_seen) >= DRAIN_MAX;
        let waiting =
            waiting_for_disk || Stream::ALL.into_iter().any(|stream| child.would_rob_reader(stream));
        if !child.is_drained() && (!enough || waiting) {
            return self.schedule(DRAIN_QUIET, Due::Drain(slot));
        }
        // Silence by the clock may be our own: whatever waits now is taken before the end is written.
        if !child.is_drained() && self.take_rest(slot, now.saturating_duration_since(exit_seen)) {
            return self.schedule(Duration::ZERO, Due::Drain(slot));
        }
        let Some(child) = self.children.get_mut(&slot) else { return };
        if let Err(error) = child.writer.finish(&exit) {
            child.stalled = true;
            child.publish();
            tracing::error!(process = %child.process.slot(), %error, "an exit cannot be recorded; trying again");
            return self.schedule(RETRY, Due::Drain(slot));
        }
        child.stalled = false;
        child.publish();
        self.let_go(slot);
    }

    /// Moves once more what waits on each stream; true when there was something and there is time for another look.
    fn take_rest(&mut self, slot: u64, since_exit: Duration) -> bool {
        let Some(child) = self.children.get_mut(&slot) else { return false };
        let mut moved = false;
        for stream in Stream::ALL {
            moved |= matches!(child.pump(stream, &self.nowhere), Ok(Moved::Bytes(_)));
        }
        if moved {
            child.last_byte = Instant::now();
            child.publish();
        }
        moved && since_exit < DRAIN_MAX
    }

    /// Forgets the descriptors of a finished process. While a descendant holds its pipes, they are read to nowhere, so
    /// that it is not killed by writing.
    fn let_go(&mut self, slot: u64) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        if child.forgotten {
            self.shared.erase(Slot(slot));
        }
        if !child.is_drained() {
            for output in child.outputs.iter_mut().flatten() {
                output.paused = false;
            }
            return child.rewatch(&self.epoll);
        }
        self.link.send(Request::Forget { slot }, Vec::new());
        if let Some(child) = self.children.remove(&slot) {
            // With descendants left in it the group stays; it goes with the record of the process.
            self.shared.remove_cgroup(child.process.slot());
            // Nobody will open the stdin log again.
            let _gone = std::fs::remove_file(self.shared.store.dir(child.process.slot()).join("stdin"));
        }
    }

    // Input.

    pub(crate) fn deliver(&mut self, slot: u64) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        // Not before the keeper holds the log: the position would be lost with us.
        if !self.link.is_flushed() {
            return self.schedule(RETRY, Due::Deliver(slot));
        }
        let outcome = child.input.deliver(child.master.as_ref());
        child.input_blocked = outcome == Ok(Delivery::Blocked);
        match outcome {
            Ok(Delivery::Done | Delivery::Blocked) => {}
            Ok(Delivery::Closed) => {
                for role in child.end_input(&self.epoll) {
                    self.link.send(Request::Release { slot, role }, Vec::new());
                }
            }
            Err(error) => {
                tracing::error!(process = %Slot(slot), %error, "input cannot be delivered; trying again");
                self.schedule(RETRY, Due::Deliver(slot));
            }
        }
        let Some(child) = self.children.get_mut(&slot) else { return };
        child.rewatch(&self.epoll);
        if child.input.has_room(self.shared.config.stdin_waiting_max) {
            child.input.waiters.drain(..).for_each(|waiter| {
                let _given_up = waiter.send(());
            });
        }
    }

    fn accept(&mut self, slot: u64, offset: Option<u64>, data: &[u8]) -> Result<Accepted> {
        let waiting_max = self.shared.config.stdin_waiting_max;
        let child =
            self.children.get_mut(&slot).filter(|child| child.exit.is_none()).ok_or(Error::NotRunning)?;
        if !child.input.is_open() {
            return Err(Error::NoStdin);
        }
        if let Some(reader) = child.input.open_log()? {
            self.link.send(Request::Hold { slot, role: role::STDIN_LOG }, vec![reader]);
        }
        let accepted = child.input.accept(offset, data, waiting_max)?;
        child.process.inner.stdin_accepted.store(child.input.accepted(), Ordering::Release);
        self.deliver(slot);
        Ok(accepted)
    }

    fn close_stdin(&mut self, slot: u64) -> Result<()> {
        let child =
            self.children.get_mut(&slot).filter(|child| child.exit.is_none()).ok_or(Error::NotRunning)?;
        if !child.input.is_open() {
            return Ok(());
        }
        if let Some(end_of_file) = child.input.end_of_file() {
            return self.accept(slot, None, end_of_file).map(|_| ());
        }
        child.writer.close_stdin(child.input.accepted())?;
        child.input.closing = true;
        self.deliver(slot);
        Ok(())
    }

    // Commands.

    fn take_commands(&mut self) {
        self.shared.waker.clear();
        for _ in 0..COMMANDS_AT_ONCE {
            match self.commands.try_recv() {
                Ok(command) => self.obey(command),
                Err(mpsc::error::TryRecvError::Empty) => return,
                Err(mpsc::error::TryRecvError::Disconnected) => {
                    self.stopping = true;
                    return;
                }
            }
        }
        self.shared.waker.wake();
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Start { child } => self.start(*child),
            Command::Stdin { slot, offset, data, reply } => {
                let _gone = reply.send(self.accept(slot.0, offset, &data));
            }
            Command::StdinRoom { slot, reply } => match self.children.get_mut(&slot.0) {
                Some(child)
                    if child.exit.is_none()
                        && !child.input.has_room(self.shared.config.stdin_waiting_max) =>
                {
                    child.input.waiters.push(reply);
                }
                _ => {
                    let _gone = reply.send(());
                }
            },
            Command::CloseStdin { slot, reply } => {
                let _gone = reply.send(self.close_stdin(slot.0));
            }
            Command::SignalGroup { slot, signal } => {
                self.link.send(Request::Signal { slot: slot.0, signal, group: true }, Vec::new());
            }
            Command::Forget { slot } => self.forget(slot),
            Command::HoldOwn { role, fd, reply } => {
                if let Ok(copy) = outpost_sys::file::duplicate(&fd) {
                    self.link.send(Request::Hold { slot: OWN_SLOT, role }, vec![copy]);
                }
                self.own.insert(role, fd);
                let _gone = reply.send(());
            }
            Command::Serving => self.link.send(Request::Serving, Vec::new()),
            Command::Replace { what, binary, reply } => {
                self.replacing = Some(reply);
                self.link.send(Request::Replace(what), vec![binary]);
            }
            Command::Stop { done } => {
                self.link.send(Request::Stop, Vec::new());
                self.stopping = true;
                let _gone = done.send(());
            }
        }
    }

    fn start(&mut self, mut child: Child) {
        let (slot, process) = (child.slot(), child.process.clone());
        let refused = match child.request() {
            Ok(_) if self.link.is_crowded() => Error::Busy,
            Ok(Some((request, fds))) => {
                self.link.send(request, fds);
                self.children.insert(slot, child);
                return;
            }
            Ok(None) => return,
            Err(errno) => Error::io("duplicate", "descriptors for a child", errno),
        };
        self.abandon(&process);
        if let Some(starting) = child.starting.take() {
            let _gone = starting.reply.send(Err(refused));
        }
    }

    /// A process that never ran leaves nothing behind.
    fn abandon(&mut self, process: &Process) {
        self.shared.unlist(process);
        self.shared.erase(process.slot());
    }

    /// Drops a process and all that is known of it. One that runs is killed first and dropped when it has ended.
    pub(crate) fn forget(&mut self, slot: Slot) {
        let Some(process) = self.shared.table().by_slot(slot) else { return };
        self.shared.unlist(&process);
        match self.children.get_mut(&slot.0).filter(|child| child.writer.exit().is_none()) {
            Some(child) => {
                child.forgotten = true;
                if child.exit.is_none() {
                    // Sweeping /proc may take a while, and nothing here may.
                    std::thread::spawn(move || kill::kill_tree_now(&process));
                }
            }
            None => self.shared.erase(slot),
        }
    }

    // The keeper.

    fn listen(&mut self) {
        self.link.flush();
        loop {
            match self.link.receive() {
                Received::Event(event, fds) => self.hear(event, fds),
                Received::Nothing => break,
                Received::Closed => return self.keeper_died(),
            }
        }
        let interest = if self.link.is_flushed() { Interest::Read } else { Interest::ReadWrite };
        if let Err(errno) = self.epoll.modify(&self.link, LINK, interest) {
            tracing::error!(%errno, "cannot watch the keeper");
        }
    }

    fn hear(&mut self, event: Event, fds: Vec<OwnedFd>) {
        match event {
            Event::Entry { slot, pid, standing, pidfd, held } if !self.children.contains_key(&slot) => {
                self.adopt_all(vec![Entry::new(slot, pid, standing, pidfd, &held, fds)]);
            }
            Event::Entry { slot, pid, standing, .. } => match standing {
                Standing::Starting => self.let_through(slot, pid, fds.into_iter().next()),
                Standing::Running => self.started(slot),
                Standing::Ended(exit) => {
                    self.started(slot);
                    self.exited(slot, exit);
                }
                Standing::Failed(failure) => {
                    self.link.send(Request::Forget { slot }, Vec::new());
                    if let Some(mut child) = self.children.remove(&slot) {
                        // Before it is told, so that the key is free again for who hears of it.
                        self.abandon(&child.process);
                        let program = child.process.inner.description.program.clone();
                        if let Some(starting) = child.starting.take() {
                            let _gone = starting.reply.send(Err(Error::Start { program, failure }));
                        }
                    }
                }
            },
            Event::TableEnd => {}
            Event::Retire => self.shared.notify(Notice::Retire),
            Event::Shutdown => self.shared.notify(Notice::Shutdown),
            Event::Reload => self.shared.notify(Notice::Reload),
            Event::Replaced(what) => self.replaced(what, Ok(())),
            Event::NotReplaced(what, errno) => self.replaced(what, Err(errno)),
        }
    }

    fn replaced(&mut self, what: What, outcome: std::result::Result<(), Errno>) {
        tracing::info!(?what, ?outcome, "replacement");
        if let Some(reply) = self.replacing.take() {
            let _gone = reply.send(outcome);
        }
    }

    /// There is a child, and we know its pidfd and have recorded it: whatever happens from here on, its end will be known.
    /// Only now may it execute its program.
    fn let_through(&mut self, slot: u64, pid: i32, pidfd: Option<OwnedFd>) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        let start_ticks = procfs::stat(pid).map_or(0, |stat| stat.start_ticks);
        if let Some(pidfd) = pidfd {
            let _set_once = child.process.inner.os.set(Os { pid, pidfd, start_ticks });
        }
        if let Err(error) = child.writer.started(pid, start_ticks) {
            tracing::warn!(process = %Slot(slot), %error, "a start cannot be recorded");
        }
        child.open_gate();
    }

    /// The child has executed its program.
    pub(crate) fn started(&mut self, slot: u64) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        if child.gate.take().is_some() {
            self.link.send(Request::Release { slot, role: role::GATE }, Vec::new());
        }
        let starting = child.starting.take();
        child.publish();
        child.rewatch(&self.epoll);
        if let Some(starting) = starting {
            let _gone = starting.reply.send(Ok(()));
        }
    }

    // Retention.

    fn keep_retention(&mut self) {
        let oldest = outpost_now_ms().saturating_sub(self.shared.config.exited_kept.as_millis() as u64);
        let ended: Vec<Process> = self.shared.ended_processes();
        let surplus = ended.len().saturating_sub(self.shared.config.exited_max);
        for (rank, process) in ended.iter().enumerate() {
            if rank < surplus || self.shared.ended_at_ms(process) < oldest {
                self.forget(process.slot());
            }
        }
    }

    /// Over the host's cap, ended processes go first, oldest first; then the largest lose their oldest output.
    fn keep_host_cap(&mut self) {
        let max = self.shared.config.host_bytes_max;
        let mut total = self.shared.bytes_kept();
        for process in if total > max { self.shared.ended_processes() } else { Vec::new() } {
            if total <= max {
                return;
            }
            total = total.saturating_sub(process.inner.journal.bytes_kept());
            self.forget(process.slot());
        }
        while total > max {
            let Some(largest) =
                self.children.values_mut().max_by_key(|child| child.writer.journal().bytes_kept())
            else {
                return;
            };
            let before = largest.writer.journal().bytes_kept();
            match largest.writer.shed() {
                Ok(true) => total -= before.saturating_sub(largest.writer.journal().bytes_kept()).min(total),
                Ok(false) | Err(_) => return,
            }
        }
    }
}

pub(crate) fn outpost_now_ms() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}
