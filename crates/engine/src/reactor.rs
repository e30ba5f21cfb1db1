//! The engine's thread: the only place where bytes move and processes change.

use crate::adoption::Entry;
use crate::child::{Child, Watch, open_nowhere, stream_index};
use crate::engine::Lifecycle;
use crate::handover::OwnKeeper;
use crate::input::{Offer, Waiter};
use crate::link::{Link, role};
use crate::own::{self, Own};
use crate::process::{Os, Process};
use crate::shared::Shared;
use crate::spec::Slot;
use crate::{Error, Result};
use outpost_journal::{Done, Stream};
use outpost_keeper::{Request, Said, What};
use outpost_sys::epoll::{Epoll, Interest, Ready, Timer};
use outpost_sys::signal::Signal;
use outpost_sys::{Errno, memory};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

const WAKER: u64 = 1;
const TIMER: u64 = 2;
pub(crate) const LINK: u64 = 3;

/// How often a write that found no room on the disk is tried again.
pub(crate) const RETRY: Duration = Duration::from_millis(200);

/// How often ended processes are looked through for those whose time is up.
pub(crate) const RETENTION_TICK: Duration = Duration::from_secs(30);

/// When nothing was started for so long, what makes starts fast is given back, but for the next one's.
const REST_AFTER: Duration = Duration::from_secs(1);

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
    /// Somebody who waited has been told to become this child.
    Told {
        child: Box<Child>,
        os: Os,
    },
    Stdin {
        slot: Slot,
        offer: Offer,
    },
    StdinRoom {
        slot: Slot,
        until: u64,
        reply: oneshot::Sender<()>,
    },
    /// A chore of a process's journal is done.
    Worked {
        slot: Slot,
        done: Done,
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
    /// What a supervisor is to show, in a memory file.
    Say(OwnedFd),
    Alive(u32),
    /// Limits have changed.
    Configured,
    /// There are places for processes to come.
    Man,
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
    /// What only busy times need goes, if it is quiet.
    Idle,
    /// A description or a start record could not be written.
    Record(u64),
    /// A process could not be taken over.
    Adopt(u64),
    /// Children are to be handed to the keeper.
    Give,
    /// The keeper is to send processes again.
    Missing,
    /// The keeper is to send this one again, which has started.
    Resend(u64),
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
    /// Exit events of the kernel, while there is no keeper.
    pub(crate) exit_events: Option<OwnedFd>,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) children: HashMap<u64, Child>,
    pub(crate) own: Own,
    /// Processes that could not be taken over yet.
    pub(crate) unadopted: BTreeMap<u64, Entry>,
    /// Processes that the keeper has, and for which there were no descriptors here.
    pub(crate) missing: BTreeSet<u64>,
    /// Those of them that the keeper was asked to send again.
    pub(crate) resent: BTreeSet<u64>,
    /// Those are to be asked for at a set time.
    pub(crate) missing_due: bool,
    /// Children that the keeper does not hold yet, because it is new.
    pub(crate) unheld: BTreeSet<u64>,
    /// Finished, and to be cleared up after.
    pub(crate) leaving: Vec<u64>,
    /// Records that are to be erased.
    pub(crate) dropped: Vec<Process>,
    /// When all that is done at the latest.
    pub(crate) leave_by: Instant,
    pub(crate) last_start: Instant,
    /// Nothing has been started for a while, or ever.
    at_rest: bool,
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
    /// Commands wait until the keeper has caught up.
    held_back: bool,
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
            exit_events: None,
            lifecycle,
            children: HashMap::new(),
            own: Own::default(),
            unadopted: BTreeMap::new(),
            missing: BTreeSet::new(),
            resent: BTreeSet::new(),
            missing_due: false,
            unheld: BTreeSet::new(),
            leaving: Vec::new(),
            dropped: Vec::new(),
            leave_by: Instant::now(),
            last_start: Instant::now(),
            at_rest: true,
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
            held_back: false,
        };
        reactor.watch_link();
        reactor.schedule(RETENTION_TICK, Due::Retention);
        Ok(reactor)
    }

    pub(crate) fn run(mut self) {
        let mut ready = Vec::new();
        // What the adoption has scheduled waits for no other event.
        self.set_timer();
        while !self.stopping {
            if let Err(errno) = self.epoll.wait(&mut ready, None) {
                tracing::error!(%errno, "waiting for events failed");
            }
            let turn = Instant::now();
            for event in &ready {
                self.handle(event);
                if self.stopping {
                    return;
                }
            }
            self.set_timer();
            self.watch_link();
            if self.held_back && !self.link.is_crowded() {
                self.held_back = false;
                self.shared.waker.wake();
            }
            self.answer_own();
            if self.link.is_flushed() {
                self.stop_if_asked();
            }
            self.publish_adoption();
            let took_us = u64::try_from(turn.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.shared.longest_turn_us.fetch_max(took_us, Ordering::Relaxed);
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
                    role::REPORT => self.hear_report(slot),
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
                Due::Leave => self.leave_if_calm(now),
                Due::Idle => self.rest_if_idle(now),
                Due::Record(slot) => self.record_start(slot),
                Due::Adopt(slot) => self.retry_adoption(slot),
                Due::Give => self.give_all(),
                Due::Missing => self.ask_for_missing(),
                Due::Resend(slot) => self.link.send(Request::Resend { slot }, Vec::new()),
                Due::Cool => self.cool(now),
                Due::Keeper => self.keeper_died(),
                Due::Retention => self.retain(),
            }
        }
    }

    // Commands.

    fn take_commands(&mut self) {
        self.shared.waker.clear();
        for _ in 0..COMMANDS_AT_ONCE {
            // Whoever sends more waits: the queue is bounded.
            if self.link.is_crowded() {
                self.held_back = true;
                return;
            }
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
            Command::Told { mut child, os } => {
                self.note_start();
                child.enlist_due = true;
                let slot = child.slot();
                let _set_once = child.process.inner.os.set(os);
                self.children.insert(slot, *child);
                self.record_start(slot);
                self.kill_if_forgotten(slot);
            }
            Command::Asked { child } => {
                self.note_start();
                self.children.insert(child.slot(), *child);
            }
            Command::Stdin { slot, offer } => self.offer(slot.0, offer),
            Command::StdinRoom { slot, until, reply } => match self.children.get_mut(&slot.0) {
                Some(child)
                    if child.exit.is_none()
                        && (!child.input.offers.is_empty()
                            || until > child.input.room_until(self.shared.config().stdin_waiting_max)) =>
                {
                    child.input.wait_for_room(Waiter { until, told: reply });
                }
                _ => {
                    let _gone = reply.send(());
                }
            },
            Command::Worked { slot, done } => self.worked(slot.0, done),
            Command::SignalGroup { slot, signal } => {
                self.link.send(Request::Signal { slot: slot.0, signal, group: true }, Vec::new());
            }
            Command::Forget { slot } => self.forget(slot),
            Command::Own(order) => self.order_own(order),
            Command::Serving => self.link.send(Request::Serving, Vec::new()),
            Command::Configured => {
                if self.keep_retention() {
                    self.schedule(Duration::ZERO, Due::Retention);
                }
                self.keep_host_cap();
            }
            Command::Man => self.man_spares(),
            Command::Alive(every_ms) => self.link.send(Request::Alive { every_ms }, Vec::new()),
            Command::Say(text) => self.link.send(Request::Say, vec![text]),
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

    fn note_start(&mut self) {
        self.last_start = Instant::now();
        if std::mem::take(&mut self.at_rest) {
            self.schedule(REST_AFTER, Due::Idle);
        }
    }

    fn rest_if_idle(&mut self, now: Instant) {
        let due = self.last_start + REST_AFTER;
        if due > now {
            return self.schedule(due - now, Due::Idle);
        }
        self.at_rest = true;
        if let Lifecycle::Daemon { .. } = self.lifecycle {
            self.link.send_now(Request::Rest, &[]);
            memory::forget_program();
        }
    }

    fn start(&mut self, mut child: Child) {
        let (slot, process) = (child.slot(), child.process.clone());
        let refused = match self.ask(&mut child) {
            Ok(()) => {
                self.children.insert(slot, child);
                return;
            }
            Err(refused) => refused,
        };
        self.shared.unlist(&process);
        self.shared.housekeeping.remove_slot(process.slot());
        if let Some(starting) = child.starting.take() {
            let _gone = starting.reply.send(Err(refused));
        }
    }

    /// Has children wait where processes are started next.
    pub(crate) fn man_spares(&mut self) {
        if let Lifecycle::Embedded = self.lifecycle {
            return;
        }
        let oom_score = self.shared.config().oom_score;
        let recruit = |slot: Slot| Request::Recruit { slot: slot.0, oom_score };
        self.shared.spares.man(|slot, fds| self.link.send_now(recruit(slot), fds));
    }

    /// Has a request for this child sent, unless it has been started.
    pub(crate) fn ask(&mut self, child: &mut Child) -> Result<()> {
        let io = |errno| Error::io("duplicate", "descriptors for a child", errno);
        let Some((request, fds)) = child.request().map_err(io)? else { return Ok(()) };
        self.link.pass(request, &fds).map_err(io)
    }
}

pub(crate) fn outpost_now_ms() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}
