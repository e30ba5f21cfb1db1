//! Orders of clients of the control socket to the worker, and what the control socket shows of the worker.

use crate::config::Effective;
use crate::faces::Board;
use crate::paths::Paths;
use crate::settled;
use outpost_approvals::{guard, unix_ms};
use outpost_control::Declined;
use outpost_control::wire::{self, RelayState, Reloaded, StopReport, Waiting, WakeRelay};
use outpost_engine::{Engine, What};
use outpost_sys::file;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// Where the outcome of an order goes. A worker that ends drops it.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, Declined>>;

/// What the worker is to do next.
pub(crate) enum Asked {
    /// Make room for another worker.
    Retire,
    /// Stop as the face wants it: with or without the processes.
    Stop,
    /// Stop with everything, within this time, and report to the client.
    End {
        grace: Option<Duration>,
        reply: Option<Reply<StopReport>>,
    },
    Wake(WakeRelay, Reply<()>),
    /// End the faces and stay for the processes; says how many there are.
    Keep(Reply<usize>),
    /// Begin the faces again.
    ServeAgain(Reply<()>),
    /// Read the configuration again, and tell who asked.
    Reload(Option<Reply<Reloaded>>),
}

pub(crate) struct Program {
    pub(crate) engine: Engine,
    pub(crate) orders: mpsc::Sender<Asked>,
    pub(crate) relay_state: watch::Receiver<Option<RelayState>>,
    pub(crate) board: Arc<Board>,
    pub(crate) paths: Paths,
    /// Its faces have ended, and it stays for its processes.
    pub(crate) keeping: bool,
    pub(crate) daemon: Option<Shown>,
}

/// What can be seen of a daemon that is no relay.
pub(crate) struct Shown {
    pub(crate) file: String,
    pub(crate) effective: watch::Receiver<Arc<Effective>>,
}

impl Program {
    /// Has the worker do something and waits for what comes of it.
    async fn order<T>(&self, order: impl FnOnce(Reply<T>) -> Asked) -> Result<T, Declined> {
        let (reply, answer) = oneshot::channel();
        self.orders.send(order(reply)).await.map_err(|_| Declined::Ending)?;
        answer.await.map_err(|_| Declined::Ending)?
    }
}

impl outpost_control::Program for Program {
    /// The keeper first: it is the one that must be able to hand everything to the worker that comes after.
    async fn upgrade(&self, binary: OwnedFd) -> Result<(), Declined> {
        for what in [What::Keeper, What::Worker] {
            let copy = file::duplicate(&binary).map_err(|errno| errno.to_string())?;
            let outcome = self.engine.replace(what, copy).await?;
            let half = if what == What::Keeper { "keeper" } else { "worker" };
            outcome.map_err(|errno| {
                format!(
                    "this binary cannot take over from the {half} ({errno}); the daemon goes on with its own"
                )
            })?;
        }
        Ok(())
    }

    async fn stop(&self, grace: Option<Duration>) -> Result<StopReport, Declined> {
        self.order(|reply| Asked::End { grace, reply: Some(reply) }).await
    }

    fn relay(&self) -> Option<RelayState> {
        *self.relay_state.borrow()
    }

    fn faces(&self) -> wire::Faces {
        let faces = wire::Faces {
            listening: self.board.listening(),
            problems: self.board.problems(),
            ..wire::Faces::default()
        };
        let Some(daemon) = &self.daemon else { return faces };
        let waiting = self.board.approvals().map(|approvals| {
            let queue = approvals.queue();
            let oldest_ms = queue.oldest_ms().map_or(0, |asked_ms| unix_ms().saturating_sub(asked_ms));
            Waiting { questions: queue.len(), oldest_ms }
        });
        let counts = self.board.sessions().map(|sessions| sessions.counts());
        let (sessions, busy_sessions) = counts.unwrap_or_default();
        let approvals_mode = Some(match self.paths.is_guard {
            true => guard::GUARD_MODE.to_owned(),
            false => self.paths.guard.find().mode().to_owned(),
        });
        let config_file = Some(daemon.file.clone());
        wire::Faces { waiting, sessions, busy_sessions, config_file, approvals_mode, ..faces }
    }

    fn settings(&self) -> Option<wire::Settings> {
        let daemon = self.daemon.as_ref()?;
        Some(settled::shown(daemon.file.clone(), &daemon.effective.borrow()))
    }

    async fn reload(&self) -> Result<Reloaded, Declined> {
        self.order(|reply| Asked::Reload(Some(reply))).await
    }

    async fn wake_relay(&self, wake: WakeRelay) -> Result<(), Declined> {
        self.order(|reply| Asked::Wake(wake, reply)).await
    }

    async fn keep_children(&self) -> Result<usize, Declined> {
        if self.relay().is_some() {
            return Err(refused("a relay keeps its processes if it was started with -keep-children"));
        }
        if self.keeping {
            return Err(refused("the daemon was stopped already and keeps its processes"));
        }
        self.order(Asked::Keep).await
    }

    fn keeps_children(&self) -> bool {
        self.keeping
    }

    async fn serve_again(&self) -> Result<(), Declined> {
        match self.keeping {
            true => self.order(Asked::ServeAgain).await,
            false => Err(refused("the daemon is running already")),
        }
    }
}

fn refused(reason: &str) -> Declined {
    Declined::Refused(reason.to_owned())
}
