//! The reactor: the thread that moves bytes and changes the state of processes.

use crate::adoption::Adoption;
use crate::child::{Child, Watch, stream_index};
use crate::daemon_fds::{self, DaemonFds};
use crate::ending::Cleanup;
use crate::engine::Lifecycle;
use crate::handover::KeeperSupervision;
use crate::input::{Offer, RoomWaiter};
use crate::link::role;
use crate::output::OutputPump;
use crate::shared::Shared;
use crate::spec::Slot;
use crate::timers::{Due, Timers};
use crate::{Error, Result};
use outpost_journal::{Done, Stream};
use outpost_keeper::{Component, Readiness, Request};
use outpost_sys::Errno;
use outpost_sys::epoll::{Epoll, Interest, Ready};
use outpost_sys::signal::Signal;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

const WAKER: u64 = 1;
const TIMER: u64 = 2;
pub(crate) const LINK: u64 = 3;

/// The pause before a write is retried that found no space on the disk.
pub(crate) const RETRY: Duration = Duration::from_millis(200);

/// The interval in which ended processes are checked for their retention time.
pub(crate) const RETENTION_TICK: Duration = Duration::from_secs(30);

/// Commands handled in one turn.
const COMMANDS_AT_ONCE: usize = 256;

/// A command to the reactor.
pub(crate) enum Command {
    /// Start a child.
    Start {
        child: Box<Child>,
    },
    /// The keeper was sent the request to start this child.
    Requested {
        child: Box<Child>,
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
    /// A chore of a journal is done.
    ChoreDone {
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
    DaemonFds(daemon_fds::FdCommand),
    Serving,
    Notify(Readiness),
    /// The status text of the daemon, in a memfd.
    ShowStatus(OwnedFd),
    Heartbeat {
        interval_ms: u32,
    },
    /// Limits have changed.
    Configured,
    Replace {
        component: Component,
        binary: OwnedFd,
        reply: oneshot::Sender<std::result::Result<(), Errno>>,
    },
    Stop {
        done: oneshot::Sender<()>,
    },
}

/// The reactor. Each part keeps its own state.
pub(crate) struct Reactor {
    pub(crate) epoll: Epoll,
    pub(crate) shared: Arc<Shared>,
    pub(crate) children: HashMap<u64, Child>,
    pub(crate) timers: Timers,
    pub(crate) pump: OutputPump,
    pub(crate) cleanup: Cleanup,
    pub(crate) adoption: Adoption,
    pub(crate) keeper: KeeperSupervision,
    pub(crate) daemon_fds: DaemonFds,
    pub(crate) link_watch: Watch,
    commands: mpsc::Receiver<Command>,
    /// Commands wait until the link has room.
    is_backpressured: bool,
    /// The reply to `Stop`, sent when the keeper was sent `Stop`: it would start another worker otherwise.
    stop_reply: Option<oneshot::Sender<()>>,
    is_stopping: bool,
}

impl Reactor {
    pub(crate) fn new(
        shared: Arc<Shared>,
        commands: mpsc::Receiver<Command>,
        lifecycle: Lifecycle,
    ) -> Result<Reactor> {
        let io = |errno| Error::io("set up", "the event loop", errno);
        let epoll = Epoll::new().map_err(io)?;
        epoll.add(&shared.waker, WAKER, Interest::Read).map_err(io)?;
        let timers = Timers::new(&epoll, TIMER).map_err(io)?;
        let mut reactor = Reactor {
            epoll,
            shared,
            children: HashMap::new(),
            timers,
            pump: OutputPump::new()?,
            cleanup: Cleanup::new(),
            adoption: Adoption::default(),
            keeper: KeeperSupervision::new(lifecycle),
            daemon_fds: DaemonFds::default(),
            link_watch: Watch::default(),
            commands,
            is_backpressured: false,
            stop_reply: None,
            is_stopping: false,
        };
        reactor.watch_link();
        reactor.schedule(RETENTION_TICK, Due::Retention);
        Ok(reactor)
    }

    pub(crate) fn run(mut self) {
        let mut ready = Vec::new();
        // The adoption may have scheduled something.
        self.timers.arm();
        while !self.is_stopping {
            if let Err(errno) = self.epoll.wait(&mut ready, None) {
                tracing::error!(%errno, "waiting for events failed");
            }
            let turn = Instant::now();
            for event in &ready {
                self.handle(event);
                if self.is_stopping {
                    return;
                }
            }
            self.timers.arm();
            self.watch_link();
            if self.is_backpressured && !self.shared.link.is_full() {
                self.is_backpressured = false;
                self.shared.waker.wake();
            }
            self.reply_daemon_fds();
            if self.shared.link.is_flushed() {
                self.finish_stop();
            }
            self.publish_adoption();
            let took_us = u64::try_from(turn.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.shared.longest_turn_us.fetch_max(took_us, Ordering::Relaxed);
        }
    }

    /// Stops if `Stop` was requested. Called when the keeper was sent `Stop` or is gone. True when the reactor stops.
    pub(crate) fn finish_stop(&mut self) -> bool {
        if let Some(reply) = self.stop_reply.take() {
            self.is_stopping = true;
            let _gone = reply.send(());
        }
        self.is_stopping
    }

    fn handle(&mut self, ready: &Ready) {
        match ready.token {
            WAKER => self.handle_commands(),
            TIMER => self.handle_timers(),
            LINK => self.handle_link(),
            token => {
                let (slot, role) = (token >> 4, (token & 15) as u8);
                match role {
                    role::STDOUT => self.pump(slot, Stream::Stdout),
                    role::STDERR => self.pump(slot, Stream::Stderr),
                    role::STDIN => self.deliver_stdin(slot),
                    role::MASTER => {
                        if ready.readable || ready.hung_up {
                            self.pump(slot, Stream::Stdout);
                        }
                        if ready.writable {
                            self.deliver_stdin(slot);
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    pub(crate) fn schedule(&mut self, after: Duration, due: Due) {
        self.timers.schedule(after, due);
    }

    fn handle_timers(&mut self) {
        self.timers.clear();
        let now = Instant::now();
        while let Some(due) = self.timers.pop(now) {
            match due {
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
                Due::DeliverStdin(slot) => self.deliver_stdin(slot),
                Due::Drain(slot) => self.drain(slot),
                Due::Publish(slot) => {
                    if let Some(child) = self.children.get(&slot) {
                        child.publish();
                    }
                }
                Due::Cleanup => self.clean_up_if_quiet(now),
                Due::Record(slot) => self.record_start(slot),
                Due::Adopt(slot) => self.retry_adoption(slot),
                Due::HandOver => self.hand_over_all(),
                Due::Missing => self.ask_for_missing(),
                Due::Resend(slot) => self.shared.link.send(Request::Resend { slot }, Vec::new()),
                Due::ShrinkPipes => self.shrink_pipes(now),
                Due::StartKeeper => self.keeper_died(),
                Due::Retention => self.retain(),
            }
        }
    }

    fn handle_commands(&mut self) {
        self.shared.waker.clear();
        for _ in 0..COMMANDS_AT_ONCE {
            // The queue of commands is bounded, so senders wait.
            if self.shared.link.is_full() {
                self.is_backpressured = true;
                return;
            }
            match self.commands.try_recv() {
                Ok(command) => self.handle_command(command),
                Err(mpsc::error::TryRecvError::Empty) => return,
                Err(mpsc::error::TryRecvError::Disconnected) => {
                    self.is_stopping = true;
                    return;
                }
            }
        }
        self.shared.waker.wake();
    }

    /// Handles queued commands until `enough`.
    pub(crate) fn handle_commands_until(&mut self, enough: impl Fn(&Reactor) -> bool) {
        while !enough(self)
            && let Ok(command) = self.commands.try_recv()
        {
            self.handle_command(command);
        }
    }

    pub(crate) fn handle_command(&mut self, command: Command) {
        match command {
            Command::Start { child } => self.start(*child),
            Command::Requested { child } => {
                self.cleanup.note_start();
                self.children.insert(child.slot(), *child);
            }
            Command::Stdin { slot, offer } => self.offer(slot.0, offer),
            Command::StdinRoom { slot, until, reply } => match self.children.get_mut(&slot.0) {
                Some(child)
                    if child.exit.is_none()
                        && (!child.input.offers.is_empty()
                            || until > child.input.room_until(self.shared.config().stdin_waiting_max)) =>
                {
                    child.input.wait_for_room(RoomWaiter { until, reply });
                }
                _ => {
                    let _gone = reply.send(());
                }
            },
            Command::ChoreDone { slot, done } => self.chore_done(slot.0, done),
            Command::SignalGroup { slot, signal } => {
                self.shared.link.send(Request::Signal { slot: slot.0, signal, group: true }, Vec::new());
            }
            Command::Forget { slot } => self.forget(slot),
            Command::DaemonFds(command) => self.handle_fd_command(command),
            Command::Serving => self.shared.link.send(Request::Serving, Vec::new()),
            Command::Configured => {
                if self.enforce_retention() {
                    self.schedule(Duration::ZERO, Due::Retention);
                }
                self.enforce_host_cap();
            }
            Command::Heartbeat { interval_ms } => {
                self.shared.link.send(Request::Heartbeat { interval_ms }, Vec::new());
            }
            Command::ShowStatus(text) => self.shared.link.send(Request::ShowStatus, vec![text]),
            Command::Notify(readiness) => self.shared.link.send(Request::Notify(readiness), Vec::new()),
            Command::Replace { component, binary, reply } => {
                self.keeper.set_replacement(reply);
                self.shared.link.send(Request::Replace(component), vec![binary]);
            }
            Command::Stop { done } => {
                self.clean_up();
                self.shared.link.send(Request::Stop, Vec::new());
                self.stop_reply = Some(done);
                // At once, since the next event may be the end of the keeper.
                if self.shared.link.is_flushed() {
                    self.finish_stop();
                }
            }
        }
    }

    /// Has the keeper start a child, by way of the reactor's queue.
    fn start(&mut self, mut child: Child) {
        self.cleanup.note_start();
        let (slot, process) = (child.slot(), child.process.clone());
        let io = |errno| Error::io("duplicate", "descriptors for a child", errno);
        let requested = match child.spawn_request() {
            Ok(Some((request, fds))) => self.shared.link.pass(request, &fds).map_err(io),
            Ok(None) => Ok(()),
            Err(errno) => Err(io(errno)),
        };
        let Err(refused) = requested else {
            self.children.insert(slot, child);
            return;
        };
        self.shared.unregister(&process);
        self.shared.housekeeping.remove_slot(process.slot());
        if let Some(launch) = child.launch.take() {
            let _gone = launch.reply.send(Err(refused));
        }
    }
}

pub(crate) fn outpost_now_ms() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}
