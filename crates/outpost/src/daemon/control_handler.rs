//! The handler of the control socket: turns requests into commands for the worker's loop and reports the daemon's state.

use super::faces::ComponentRegistry;
use outpost_approvals::guard;
use outpost_cli::config::Effective;
use outpost_cli::paths::Paths;
use outpost_control::Declined;
use outpost_control::wire::{self, PendingApprovals, RelayState, Reloaded, StopReport, WakeRelay};
use outpost_engine::{Component, Engine};
use outpost_ledger::unix_ms;
use outpost_sys::file;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// The reply channel of a command. A worker that ends drops it.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, Declined>>;

/// A command for the worker's loop.
pub(crate) enum WorkerCommand {
    /// Exit; the keeper starts another worker.
    Retire,
    /// Stop as a signal does: a relay with `-keep-children` keeps its processes.
    Stop,
    /// Stop all processes within this time, report each exit, and end the daemon.
    StopAll {
        grace: Option<Duration>,
        reply: Option<Reply<StopReport>>,
    },
    WakeRelay(WakeRelay, Reply<()>),
    /// End the faces and keep the processes. Replies with their number.
    KeepChildren(Reply<usize>),
    /// Start the faces again.
    ResumeFaces(Reply<()>),
    /// Read the configuration again and reply with the changes.
    Reload(Option<Reply<Reloaded>>),
}

pub(crate) struct ControlHandler {
    pub(crate) engine: Engine,
    pub(crate) commands: mpsc::Sender<WorkerCommand>,
    pub(crate) relay_state: watch::Receiver<Option<RelayState>>,
    pub(crate) registry: Arc<ComponentRegistry>,
    pub(crate) paths: Paths,
    /// The faces have ended; the daemon only keeps its processes.
    pub(crate) keeping: bool,
    pub(crate) config: Option<ConfigView>,
}

/// The configuration of a daemon other than a relay.
pub(crate) struct ConfigView {
    pub(crate) file: String,
    pub(crate) effective: watch::Receiver<Arc<Effective>>,
}

impl ControlHandler {
    /// Sends a command to the worker's loop and waits for the reply.
    async fn send_command<T>(&self, command: impl FnOnce(Reply<T>) -> WorkerCommand) -> Result<T, Declined> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| Declined::Stopping)?;
        answer.await.map_err(|_| Declined::Stopping)?
    }
}

impl outpost_control::DaemonOps for ControlHandler {
    /// Replaces the keeper first: it hands all descriptors to the new worker.
    async fn upgrade(&self, binary: OwnedFd) -> Result<(), Declined> {
        for what in [Component::Keeper, Component::Worker] {
            let copy = file::duplicate(&binary).map_err(|errno| errno.to_string())?;
            let outcome = self.engine.replace(what, copy).await?;
            let half = if what == Component::Keeper { "keeper" } else { "worker" };
            outcome.map_err(|errno| {
                format!(
                    "this binary cannot replace the {half} ({errno}); the daemon keeps its current binary"
                )
            })?;
        }
        Ok(())
    }

    async fn stop(&self, grace: Option<Duration>) -> Result<StopReport, Declined> {
        self.send_command(|reply| WorkerCommand::StopAll { grace, reply: Some(reply) }).await
    }

    fn relay(&self) -> Option<RelayState> {
        *self.relay_state.borrow()
    }

    fn faces(&self) -> wire::Faces {
        let faces = wire::Faces {
            listening: self.registry.listening(),
            problems: self.registry.problems(),
            starting: self.registry.are_starting(),
            ..wire::Faces::default()
        };
        let Some(config) = &self.config else { return faces };
        let waiting = self.registry.approvals().map(|approvals| {
            let queue = approvals.queue();
            let oldest_ms = queue.oldest_ms().map_or(0, |asked_ms| unix_ms().saturating_sub(asked_ms));
            PendingApprovals { questions: queue.len(), oldest_ms }
        });
        let counts = self.registry.sessions().map(|sessions| sessions.counts());
        let (sessions, busy_sessions) = counts.unwrap_or_default();
        let approvals_mode = Some(match self.paths.is_guard {
            true => guard::GUARD_MODE.to_owned(),
            false => self.paths.guard.status().mode().to_owned(),
        });
        let config_file = Some(config.file.clone());
        wire::Faces { waiting, sessions, busy_sessions, config_file, approvals_mode, ..faces }
    }

    fn has_started(&self) -> bool {
        !self.registry.are_starting()
    }

    async fn faces_started(&self) {
        self.registry.started().await;
    }

    fn settings(&self) -> Option<wire::Settings> {
        let config = self.config.as_ref()?;
        Some(config.effective.borrow().redacted(config.file.clone()))
    }

    async fn reload(&self) -> Result<Reloaded, Declined> {
        self.send_command(|reply| WorkerCommand::Reload(Some(reply))).await
    }

    async fn wake_relay(&self, wake: WakeRelay) -> Result<(), Declined> {
        self.send_command(|reply| WorkerCommand::WakeRelay(wake, reply)).await
    }

    async fn keep_children(&self) -> Result<usize, Declined> {
        if self.relay().is_some() {
            return Err(refused("a relay keeps its processes if it was started with -keep-children"));
        }
        if self.keeping {
            return Err(refused("the daemon was stopped already and keeps its processes"));
        }
        self.send_command(WorkerCommand::KeepChildren).await
    }

    fn keeps_children(&self) -> bool {
        self.keeping
    }

    async fn resume_serving(&self) -> Result<(), Declined> {
        match self.keeping {
            true => self.send_command(WorkerCommand::ResumeFaces).await,
            false => Err(refused("the daemon is running already")),
        }
    }
}

fn refused(reason: &str) -> Declined {
    Declined::Refused(reason.to_owned())
}
