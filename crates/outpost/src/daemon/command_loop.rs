//! The command loop of a serving worker: retries faces, runs commands, and shuts the daemon down.

use super::control_handler::{Reply, WorkerCommand};
use super::faces::{ComponentRegistry, FaceContext, Faces};
use super::live_config::LiveConfig;
use super::relay_face::RelayFace;
use super::{fd_roles, problems, shutdown};
use outpost_cli::WorkerArgs;
use outpost_cli::config::STOP_GRACE;
use outpost_cli::paths::Paths;
use outpost_control::Declined;
use outpost_control::wire::{RelayState, Reloaded};
use outpost_engine::{Engine, Notice, Process, Readiness};
use outpost_sys::file;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// A worker that keeps processes exits this long after the last one, so that clients receive its exit.
const EXIT_FLUSH: Duration = Duration::from_millis(250);

/// The faces of a daemon other than a relay, and their configuration.
pub(super) struct ConfiguredFaces {
    pub(super) live_config: LiveConfig,
    pub(super) faces: Faces,
}

/// A worker that serves.
pub(super) struct Worker<'a> {
    pub(super) paths: &'a Paths,
    pub(super) args: &'a WorkerArgs,
    pub(super) engine: Engine,
    /// Descriptors that the keeper held when this worker started, by role. A face removes its own once it has started.
    pub(super) inherited: HashMap<u8, OwnedFd>,
    pub(super) registry: Arc<ComponentRegistry>,
    pub(super) faces: Option<ConfiguredFaces>,
    pub(super) relay: Option<RelayFace>,
    pub(super) relay_state: watch::Sender<Option<RelayState>>,
    pub(super) notices: watch::Receiver<Option<Notice>>,
    pub(super) commands: mpsc::Receiver<WorkerCommand>,
    /// The daemon was stopped and only keeps its processes.
    pub(super) keeping: bool,
}

/// How the command loop of a worker ends.
pub(super) enum Outcome {
    /// The keeper starts the next worker. All state is in the kernel or on disk.
    Replaced,
    Shutdown(ShutdownRequest),
}

#[derive(Default)]
pub(super) struct ShutdownRequest {
    grace: Option<Duration>,
    replies: shutdown::Replies,
    /// Sockets and port files of faces that ended before.
    files: Vec<PathBuf>,
}

impl Worker<'_> {
    pub(super) async fn run(&mut self) -> Result<Outcome, String> {
        let mut retry = self.faces.as_mut().and_then(|faces| faces.faces.retry_after());
        if retry.is_some() {
            problems::notify_status(&self.engine, &self.registry).await;
        }
        loop {
            let command = tokio::select! {
                command = next_command(&mut self.notices, &mut self.commands, self.relay.as_mut()) => Some(command?),
                () = all_exited(&self.engine), if self.keeping => {
                    Some(WorkerCommand::StopAll { grace: None, reply: None })
                }
                () = tokio::time::sleep(retry.unwrap_or_default()), if retry.is_some() => None,
            };
            let Some(command) = command else {
                retry = self.retry_faces().await;
                continue;
            };
            if let Some(outcome) = self.handle(command).await? {
                return Ok(outcome);
            }
            self.relay_state.send_replace(self.relay.as_ref().map(RelayFace::state));
        }
    }

    /// Starts the faces that failed. Returns the delay before the next attempt.
    async fn retry_faces(&mut self) -> Option<Duration> {
        let ConfiguredFaces { live_config, faces } = self.faces.as_mut()?;
        let effective = live_config.current();
        let context = FaceContext {
            engine: &self.engine,
            paths: self.paths,
            flags: &self.args.flags,
            config: &effective.config,
        };
        faces.start_missing(context, &mut self.inherited).await;
        let retry = faces.retry_after();
        problems::notify_status(&self.engine, &self.registry).await;
        retry
    }

    async fn handle(&mut self, command: WorkerCommand) -> Result<Option<Outcome>, String> {
        let shutdown = |request| Ok(Some(Outcome::Shutdown(request)));
        match (command, &mut self.relay) {
            (WorkerCommand::Retire, _) => return Ok(Some(Outcome::Replaced)),
            (WorkerCommand::Stop, Some(relay)) if relay.state() == RelayState::Serving => {
                if !relay.keep_children().await {
                    return shutdown(ShutdownRequest::default());
                }
            }
            (WorkerCommand::Stop, _) => return shutdown(ShutdownRequest::default()),
            (WorkerCommand::StopAll { grace, reply }, _) => {
                let replies = reply.into_iter().collect();
                return shutdown(ShutdownRequest { grace, replies, files: Vec::new() });
            }
            (WorkerCommand::WakeRelay(wake, reply), Some(relay)) => {
                let _client_gone = reply.send(relay.wake(wake).await);
            }
            (WorkerCommand::WakeRelay(_, reply), None) => {
                let _client_gone = reply.send(Err("this daemon has no relay face".to_owned().into()));
            }
            (WorkerCommand::KeepChildren(reply), _) => return self.keep_children(reply).await,
            (WorkerCommand::ResumeFaces(reply), _) => {
                let released = self.engine.release(fd_roles::KEEPING_CHILDREN).await;
                let _client_gone = reply.send(released.map_err(Declined::from));
                return Ok(Some(Outcome::Replaced));
            }
            (WorkerCommand::Reload(reply), _) => {
                let reloaded = self.reload().await;
                let _client_gone = reply.map(|reply| reply.send(reloaded.map_err(Declined::from)));
            }
        }
        Ok(None)
    }

    async fn reload(&mut self) -> Result<Reloaded, String> {
        match &mut self.faces {
            Some(ConfiguredFaces { live_config, faces }) => live_config.reload(&self.engine, faces).await,
            None => {
                Err("this daemon has no faces to configure: it is a relay, or was stopped and keeps its processes"
                    .into())
            }
        }
    }

    /// Ends the faces. If processes run, the next worker keeps them; otherwise the daemon shuts down.
    async fn keep_children(&mut self, reply: Reply<usize>) -> Result<Option<Outcome>, String> {
        let Some(ConfiguredFaces { faces, .. }) = self.faces.take() else {
            let _client_gone = reply.send(Err("this daemon has no faces to end".to_owned().into()));
            return Ok(None);
        };
        let running = running(&self.engine).await.len();
        let _client_gone = reply.send(Ok(running));
        let files = faces.end(self.paths);
        if running == 0 {
            return Ok(Some(Outcome::Shutdown(ShutdownRequest { files, ..ShutdownRequest::default() })));
        }
        // The next worker has no faces, so their work ends here as if this worker were killed. Only the streams of
        // sessions get a terminal event, since their clients would wait for ever otherwise.
        if let Some(sessions) = self.registry.sessions() {
            sessions.close().await;
        }
        hand_over_children(&self.engine, files).await?;
        Ok(Some(Outcome::Replaced))
    }

    pub(super) async fn shut_down(mut self, request: ShutdownRequest) -> Result<(), String> {
        let ShutdownRequest { mut grace, replies, files } = request;
        let engine = &self.engine;
        let _stopping = engine.notify(Readiness::Stopping).await;
        // Close the listeners before stopping processes, which takes time: clients must not wait in the backlog.
        let _stopping = close_listeners(engine, fd_roles::all_listeners()).await;
        if let Some(relay) = &mut self.relay {
            relay.stop_serving();
        }
        if let (None, Some(faces)) = (grace, &self.faces) {
            grace = faces.live_config.current().config.processes.stop_grace_s.map(Duration::from_secs);
        }
        let own_files = self.faces.map(|faces| faces.faces.end(self.paths)).unwrap_or_default();
        for file in own_files.into_iter().chain(files).chain([self.paths.control_socket()]) {
            let _gone_already = std::fs::remove_file(file);
        }
        // "Graceful shutdown kills the whole child-process tree": the relay's original sends SIGKILL at once.
        let grace = if self.relay.is_some() { Duration::ZERO } else { grace.unwrap_or(STOP_GRACE) };
        shutdown::stop_processes(engine, grace, &mut self.notices, &mut self.commands, replies).await?;
        if let Some(sessions) = self.registry.sessions() {
            sessions.end_turns().await;
            sessions.close().await;
        }
        if let Some(relay) = &self.relay {
            // This daemon still holds the lock. After its release the directory may belong to another daemon.
            relay.remove_records(&self.paths.state);
        }
        engine.end_keeper().await.map_err(|error| error.to_string())
    }
}

/// Closes listening sockets here and in the keeper.
async fn close_listeners(engine: &Engine, roles: impl IntoIterator<Item = u8>) -> outpost_engine::Result<()> {
    outpost_wire::stop_accepting();
    for role in roles {
        engine.release(role).await?;
    }
    Ok(())
}

/// Marks the daemon as keeping its processes, so that the next worker starts without faces.
async fn hand_over_children(engine: &Engine, files: Vec<PathBuf>) -> Result<(), String> {
    let text = |error: outpost_engine::Error| error.to_string();
    let marker = file::sealed_memory("outpost-keeping", &[]).map_err(|errno| errno.to_string())?;
    // The keeper holds at most 16 descriptors for the daemon: make room. The next `serve` starts all faces anew.
    engine.release(fd_roles::STARTED_ONCE).await.map_err(text)?;
    engine.hold(fd_roles::KEEPING_CHILDREN, marker).await.map_err(text)?;
    close_listeners(engine, fd_roles::FACE_LISTENERS).await.map_err(text)?;
    for file in files {
        let _gone_already = std::fs::remove_file(file);
    }
    Ok(())
}

async fn running(engine: &Engine) -> Vec<Process> {
    let mut processes = engine.list().await;
    processes.retain(|process| process.status().exit().is_none());
    processes
}

async fn all_exited(engine: &Engine) {
    for process in running(engine).await {
        let _gone = process.finished().await;
    }
    tokio::time::sleep(EXIT_FLUSH).await;
}

async fn next_command(
    notices: &mut watch::Receiver<Option<Notice>>,
    commands: &mut mpsc::Receiver<WorkerCommand>,
    mut relay: Option<&mut RelayFace>,
) -> Result<WorkerCommand, String> {
    let relay_stop = async {
        match relay.as_deref_mut() {
            Some(relay) => relay.stop_requested().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        changed = notices.changed() => match changed.ok().and_then(|()| *notices.borrow_and_update()) {
            Some(Notice::Retire) => Ok(WorkerCommand::Retire),
            Some(Notice::Shutdown) => Ok(WorkerCommand::Stop),
            Some(Notice::Reload) => Ok(WorkerCommand::Reload(None)),
            None => Err("the engine has stopped".into()),
        },
        command = commands.recv() => command.ok_or_else(|| "the control socket has stopped".into()),
        () = relay_stop => Ok(WorkerCommand::Stop),
    }
}
