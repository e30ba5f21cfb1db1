//! The engine's thread: the only place where bytes move and processes change.

use crate::child::{Child, Starting, Watch, open_nowhere, stream_index};
use crate::engine::{Lifecycle, Notice};
use crate::handover::{Entry, OwnKeeper};
use crate::link::{Link, Received, role};
use crate::own::{self, Own};
use crate::process::{Os, WhileAlive};
use crate::shared::Shared;
use crate::spec::Slot;
use crate::{Error, Result};
use outpost_journal::{Accepted, Stream};
use outpost_keeper::{Event, Request, Said, Standing, What};
use outpost_sys::epoll::{Epoll, Interest, Ready, Timer};
use outpost_sys::signal::Signal;
use outpost_sys::{Errno, file, procfs};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

const WAKER: u64 = 1;
const TIMER: u64 = 2;
pub(crate) const LINK: u64 = 3;

/// How often a write that found no room on the disk is tried again.
pub(crate) const RETRY: Duration = Duration::from_millis(200);

/// How often ended processes are looked through for those whose time is up.
const RETENTION_TICK: Duration = Duration::from_secs(30);

/// Commands taken before others get their turn.
const COMMANDS_AT_ONCE: usize = 256;

/// What the rest of the program asks of the reactor.
pub(crate) enum Command {
    Start {
        child: Box<Child>,
    },
    /// The keeper has been asked for this child.
    Asked {
        child: Box<Child>,
    },
    Stdin {
        slot: Slot,
        offset: Option<u64>,
        data: Arc<Vec<u8>>,
        reply: oneshot::Sender<Result<Accepted>>,
    },
    StdinRoom {
        slot: Slot,
        reply: oneshot::Sender<()>,
    },
    CloseStdin {
        slot: Slot,
        reply: oneshot::Sender<Result<()>>,
    },
    SignalGroup {
        slot: Slot,
        signal: Signal,
    },
    Forget {
        slot: Slot,
    },
    Own(own::Order),
    Serving,
    Notify(Said),
    Alive(u32),
    /// Limits have changed.
    Configured,
    Replace {
        what: What,
        binary: OwnedFd,
        reply: oneshot::Sender<std::result::Result<(), Errno>>,
    },
    Stop {
        done: oneshot::Sender<()>,
    },
}

/// What the clock brings us back for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Due {
    Pump(u64, Stream),
    Deliver(u64),
    Drain(u64),
    /// How a process stands is to be told.
    Tell(u64),
    /// Those in `leaving` go.
    Leave,
    /// What is left of a tree that is to end, for the n-th time.
    Rest(u64, u32),
    Cool,
    Keeper,
    Retention,
}

pub(crate) struct Reactor {
    pub(crate) epoll: Epoll,
    timer: Timer,
    pub(crate) commands: mpsc::Receiver<Command>,
    pub(crate) link: Link,
    pub(crate) link_watch: Watch,
    /// There is none, and none could be started.
    pub(crate) keeper_gone: bool,
    /// The keeper, if it was started by us.
    pub(crate) keeper: Option<OwnKeeper>,
    pub(crate) keeper_failures: u32,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) children: HashMap<u64, Child>,
    pub(crate) own: Own,
    /// Finished, and to be cleared up after.
    pub(crate) leaving: Vec<u64>,
    due: BTreeMap<(Instant, u64), Due>,
    due_count: u64,
    timer_set: Option<Instant>,
    pub(crate) nowhere: OwnedFd,
    pub(crate) hot_pipes: usize,
    /// A look at hot pipes is due.
    pub(crate) cooling: bool,
    pub(crate) unchecked_bytes: u64,
    pub(crate) replacing: Option<oneshot::Sender<std::result::Result<(), Errno>>>,
    pub(crate) shared: Arc<Shared>,
    /// Told when the keeper has been told to end: it would start another worker otherwise.
    stop_told: Option<oneshot::Sender<()>>,
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
        let mut reactor = Reactor {
            epoll,
            timer,
            commands,
            link,
            link_watch: Watch::default(),
            keeper_gone: false,
            keeper: None,
            keeper_failures: 0,
            lifecycle,
            children: HashMap::new(),
            own: Own::default(),
            leaving: Vec::new(),
            due: BTreeMap::new(),
            due_count: 0,
            timer_set: None,
            nowhere: open_nowhere()?,
            hot_pipes: 0,
            cooling: false,
            unchecked_bytes: 0,
            replacing: None,
            shared,
            stop_told: None,
            stopping: false,
        };
        reactor.watch_link();
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
                if self.stopping {
                    return;
                }
            }
            self.set_timer();
            self.watch_link();
            self.answer_own();
            if self.link.is_flushed() {
                self.stop_if_asked();
            }
        }
    }

    /// To be called when the keeper knows, or is gone. It is not missed from here on.
    pub(crate) fn stop_if_asked(&mut self) -> bool {
        if let Some(told) = self.stop_told.take() {
            self.stopping = true;
            let _gone = told.send(());
        }
        self.stopping
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

    pub(crate) fn schedule(&mut self, after: Duration, due: Due) {
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
                Due::Tell(slot) => {
                    if let Some(child) = self.children.get(&slot) {
                        child.publish();
                    }
                }
                Due::Leave => self.leave_all(),
                Due::Rest(slot, times) => self.end_rest(Slot(slot), times),
                Due::Cool => self.cool(now),
                Due::Keeper => self.keeper_died(),
                Due::Retention => {
                    self.keep_retention();
                    self.schedule(RETENTION_TICK, Due::Retention);
                }
            }
        }
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

    pub(crate) fn obey(&mut self, command: Command) {
        match command {
            Command::Start { child } => self.start(*child),
            Command::Asked { child } => {
                self.children.insert(child.slot(), *child);
            }
            Command::Stdin { slot, offset, data, reply } => {
                let _gone = reply.send(self.accept(slot.0, offset, &data));
            }
            Command::StdinRoom { slot, reply } => match self.children.get_mut(&slot.0) {
                Some(child)
                    if child.exit.is_none()
                        && !child.input.has_room(self.shared.config().stdin_waiting_max) =>
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
            Command::Own(order) => self.order_own(order),
            Command::Serving => self.link.send(Request::Serving, Vec::new()),
            Command::Configured => {
                self.keep_retention();
                self.keep_host_cap();
            }
            Command::Alive(every_ms) => self.link.send(Request::Alive { every_ms }, Vec::new()),
            Command::Notify(said) => self.link.send(Request::Notify(said), Vec::new()),
            Command::Replace { what, binary, reply } => {
                self.replacing = Some(reply);
                self.link.send(Request::Replace(what), vec![binary]);
            }
            Command::Stop { done } => {
                self.leave_all();
                self.link.send(Request::Stop, Vec::new());
                self.stop_told = Some(done);
                // At once: its end may be in what is to be handled next.
                if self.link.is_flushed() {
                    self.stop_if_asked();
                }
            }
        }
    }

    fn start(&mut self, mut child: Child) {
        let (slot, process) = (child.slot(), child.process.clone());
        let asked = if self.link.is_crowded() { Err(Error::Busy) } else { self.ask(&child) };
        let refused = match asked {
            Ok(()) => {
                self.children.insert(slot, child);
                return;
            }
            Err(refused) => refused,
        };
        self.abandon(&process);
        if let Some(starting) = child.starting.take() {
            let _gone = starting.reply.send(Err(refused));
        }
    }

    /// Has a request for this child sent, unless it has been started.
    pub(crate) fn ask(&mut self, child: &Child) -> Result<()> {
        let io = |errno| Error::io("duplicate", "descriptors for a child", errno);
        let Some((request, fds)) = child.request().map_err(io)? else { return Ok(()) };
        let fds =
            fds.into_iter().map(file::duplicate).collect::<outpost_sys::Result<Vec<_>>>().map_err(io)?;
        self.link.send(request, fds);
        Ok(())
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
    }

    /// What could not be sent is sent when the keeper has read.
    fn watch_link(&mut self) {
        if self.keeper_gone {
            return;
        }
        let wanted = if self.link.is_flushed() { Interest::Read } else { Interest::ReadWrite };
        self.link_watch.set(&self.epoll, &self.link, LINK, Some(wanted));
    }

    /// Sees to it that a child is known that the keeper was asked for past us.
    fn settle(&mut self, slot: u64) {
        if !self.children.contains_key(&slot) {
            // Whoever asked says so before it lets go of this.
            drop(self.shared.keeper());
            while !self.children.contains_key(&slot)
                && let Ok(command) = self.commands.try_recv()
            {
                self.obey(command);
            }
        }
    }

    fn hear(&mut self, event: Event, fds: Vec<OwnedFd>) {
        if let Event::Entry { slot, .. } = event {
            self.settle(slot);
        }
        match event {
            Event::Entry { slot, pid, standing, pidfd, held } if !self.children.contains_key(&slot) => {
                self.adopt_all(vec![Entry::new(slot, pid, standing, pidfd, &held, fds)]);
            }
            Event::Entry { slot, pid, standing, .. } => self.hear_of_child(slot, pid, standing, fds),
            Event::TableEnd => {}
            Event::Retire => self.shared.notify(Notice::Retire),
            Event::Shutdown => self.shared.notify(Notice::Shutdown),
            Event::Reload => self.shared.notify(Notice::Reload),
            Event::Replaced(what) => self.replaced(what, Ok(())),
            Event::NotReplaced(what, errno) => self.replaced(what, Err(errno)),
        }
    }

    fn hear_of_child(&mut self, slot: u64, pid: i32, standing: Standing, fds: Vec<OwnedFd>) {
        if let Some(pidfd) = fds.into_iter().next() {
            self.begun(slot, pid, pidfd);
        }
        match standing {
            Standing::Starting => {}
            Standing::Running => self.started(slot),
            Standing::Ended(exit) => {
                // Often the end is told with the start. Who waits for that is woken once, and finds everything.
                let starting = self.children.get_mut(&slot).and_then(|child| child.starting.take());
                self.exited(slot, exit);
                self.confirm(slot, starting);
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
        }
    }

    pub(crate) fn replaced(&mut self, what: What, outcome: std::result::Result<(), Errno>) {
        tracing::info!(?what, ?outcome, "replacement");
        if let Some(reply) = self.replacing.take() {
            let _gone = reply.send(outcome);
        }
    }

    /// There is a child, and by its pidfd its end will be known whatever happens from here on.
    fn begun(&mut self, slot: u64, pid: i32, pidfd: OwnedFd) {
        let Some(child) = self.children.get_mut(&slot).filter(|child| child.process.inner.os.get().is_none())
        else {
            return;
        };
        let start_ticks = procfs::stat(pid).map_or(0, |stat| stat.start_ticks);
        let _set_once =
            child.process.inner.os.set(Os { pid, pidfd: WhileAlive::new(Some(pidfd)), start_ticks });
        if let Some((file, description)) = child.undescribed.take()
            && let Err(errno) = file::write_all_at(&file, &description, 0)
        {
            tracing::warn!(process = %Slot(slot), %errno, "a description cannot be written");
        }
        if let Err(error) = child.writer.started(pid, start_ticks) {
            tracing::warn!(process = %Slot(slot), %error, "a start cannot be recorded");
        }
    }

    /// The child has executed its program.
    pub(crate) fn started(&mut self, slot: u64) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        let starting = child.starting.take();
        child.publish();
        child.rewatch(&self.epoll);
        self.confirm(slot, starting);
    }

    /// Tells who asked for a process that it has been started.
    fn confirm(&mut self, slot: u64, starting: Option<Starting>) {
        if let Some(starting) = starting {
            let loser = self.shared.table().claim(Slot(slot));
            if let Some(loser) = loser {
                self.forget(loser.slot());
            }
            let _gone = starting.reply.send(Ok(()));
        }
    }
}

pub(crate) fn outpost_now_ms() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}
