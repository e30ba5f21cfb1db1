//! The faces of a daemon other than a relay: their start in order, the retry of failed ones, and their end.

use super::approvals_service::ApprovalsService;
use super::broker_face::{self, BrokerFace};
use super::exec_face::ExecFace;
use super::listeners::Listeners;
use super::metrics_face::MetricsFace;
use super::sessions_face::{self, SessionsFace};
use crate::failure::Failure;
use outpost_approvals::Approvals;
use outpost_cli::config::Config;
use outpost_cli::flags::Flags;
use outpost_cli::paths::Paths;
use outpost_control::wire::{Listening, Problem};
use outpost_engine::Engine;
use outpost_ledger::unix_ms;
use std::collections::{BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Retry with back-off: the delay starts at the minimum and doubles up to the maximum.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// What a face needs to start.
#[derive(Clone, Copy)]
pub(crate) struct FaceContext<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) paths: &'a Paths,
    pub(crate) flags: &'a Flags,
    pub(crate) config: &'a Config,
}

/// Components that have started and problems of those that have not, for `status` and for metrics.
#[derive(Default)]
pub(crate) struct ComponentRegistry {
    approvals: OnceLock<Approvals>,
    sessions: OnceLock<Arc<outpost_sessions::Face>>,
    listening: Mutex<Vec<Listening>>,
    problems: Mutex<Vec<Problem>>,
    /// Whether each component was started or has failed once.
    started: watch::Sender<bool>,
}

impl ComponentRegistry {
    pub(crate) fn approvals(&self) -> Option<&Approvals> {
        self.approvals.get()
    }

    pub(crate) fn sessions(&self) -> Option<&Arc<outpost_sessions::Face>> {
        self.sessions.get()
    }

    pub(crate) fn listening(&self) -> Vec<Listening> {
        lock(&self.listening).clone()
    }

    pub(crate) fn problems(&self) -> Vec<Problem> {
        lock(&self.problems).clone()
    }

    pub(crate) fn are_starting(&self) -> bool {
        !*self.started.borrow()
    }

    pub(crate) fn set_started(&self) {
        self.started.send_replace(true);
    }

    /// Waits until each component was started or has failed once.
    pub(crate) async fn started(&self) {
        let mut started = self.started.subscribe();
        let _sender_is_ours = started.wait_for(|started| *started).await;
    }

    pub(crate) fn add_listeners(&self, listeners: &Listeners) {
        lock(&self.listening).extend_from_slice(listeners.rows());
    }

    /// Sets or clears the problem of a component. Keeps the time of its first failure.
    pub(crate) fn set_outcome(&self, component: &str, outcome: Result<(), String>) {
        let mut problems = lock(&self.problems);
        let known = problems.iter().position(|problem| problem.component == component);
        match (outcome, known.and_then(|at| problems.get_mut(at))) {
            (Ok(()), _) => problems.retain(|problem| problem.component != component),
            (Err(message), Some(problem)) => problem.message = message,
            (Err(message), None) => {
                problems.push(Problem { component: component.to_owned(), message, since_ms: unix_ms() });
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
pub(crate) struct Faces {
    pub(crate) registry: Arc<ComponentRegistry>,
    /// Components that have started.
    started: BTreeSet<&'static str>,
    exec: Option<Arc<outpost_exec::Server>>,
    broker: Option<Arc<outpost_broker::Server>>,
    port_files: Vec<PathBuf>,
    /// `[approvals] socket`, which is outside the runtime directory.
    shared_socket: Option<PathBuf>,
    retries: u32,
    /// Whether a component failed to start at the last attempt.
    has_failures: bool,
    /// Outcomes of the current attempt. They are published together, because one face may depend on another.
    outcomes: Vec<(&'static str, Result<(), String>)>,
    /// The first failure of the last attempt that is not resource exhaustion.
    permanent_failure: Option<Failure>,
}

impl Faces {
    pub(crate) fn new(registry: Arc<ComponentRegistry>) -> Faces {
        Faces { registry, ..Faces::default() }
    }

    /// Starts each component that has not started, with its descriptors from the keeper. A failed component does not affect
    /// the others.
    pub(crate) async fn start_missing(
        &mut self,
        context: FaceContext<'_>,
        inherited: &mut HashMap<u8, OwnedFd>,
    ) -> Listeners {
        self.permanent_failure = None;
        let mut listeners = Listeners::default();
        let FaceContext { engine, paths, flags, config } = context;
        let approvals_service = ApprovalsService { engine, paths, config };
        if self.needs_start("approvals") {
            let opened = approvals_service.open().await.map(|approvals| {
                let _set_once = self.registry.approvals.set(approvals);
            });
            self.set_outcome("approvals", opened);
        }
        // The codecast drop-in has the sessions face only.
        if !flags.sessions.codecast && !paths.is_guard {
            self.start_exec(context, inherited, &mut listeners).await;
        }
        if let Some(approvals) = self.registry.approvals.get().cloned() {
            if !flags.sessions.codecast && self.needs_start("broker") {
                let started =
                    BrokerFace { engine, paths, config }.start(&approvals, inherited, &mut listeners).await;
                self.broker = started.as_ref().ok().cloned();
                self.set_outcome("broker", started.map(drop));
            }
            if !paths.is_guard {
                self.start_sessions(context, approvals.clone(), inherited, &mut listeners).await;
            }
            // Start after the faces have restored their questions, so that approvers do not see one vanish and return.
            if self.needs_start("approve") {
                let served = approvals_service.serve(&approvals, inherited, &mut listeners).await;
                let served = served.map(|shared_socket| self.shared_socket = shared_socket);
                self.set_outcome("approve", served);
            }
        }
        if !paths.is_guard && self.needs_start("metrics") {
            let metrics =
                MetricsFace { engine, paths, registry: &self.registry, listen: config.metrics.listen };
            let started = metrics.start(inherited, &mut listeners).await;
            self.set_outcome("metrics", started);
        }
        self.registry.add_listeners(&listeners);
        self.has_failures = self.outcomes.iter().any(|(_, outcome)| outcome.is_err());
        for (component, outcome) in std::mem::take(&mut self.outcomes) {
            self.registry.set_outcome(component, outcome);
        }
        listeners
    }

    async fn start_exec(
        &mut self,
        context: FaceContext<'_>,
        inherited: &mut HashMap<u8, OwnedFd>,
        listeners: &mut Listeners,
    ) {
        let FaceContext { engine, paths, config, .. } = context;
        let face = ExecFace { engine, paths, websocket: config.exec.websocket };
        if self.needs_start("exec") {
            let started = face.start(inherited, listeners).await.map(|server| self.exec = Some(server));
            self.set_outcome("exec", started);
        }
        if let Some(server) = self.exec.clone().filter(|_| self.needs_start("exec websocket")) {
            let started = face.start_port(server, inherited, listeners).await;
            self.set_outcome("exec websocket", started);
        }
    }

    async fn start_sessions(
        &mut self,
        context: FaceContext<'_>,
        approvals: Approvals,
        inherited: &mut HashMap<u8, OwnedFd>,
        listeners: &mut Listeners,
    ) {
        let FaceContext { engine, paths, flags, config } = context;
        let starter =
            SessionsFace { engine, paths, approvals, config: &config.sessions, flags: &flags.sessions };
        let port = if self.needs_start("sessions") {
            let (started, port) = match starter.start(inherited, listeners).await {
                Ok((face, port)) => {
                    let _set_once = self.registry.sessions.set(face);
                    (Ok(()), Some(port))
                }
                Err(failure) => (Err(failure), None),
            };
            self.set_outcome("sessions", started);
            port
        } else if let Some(face) = self.registry.sessions.get().filter(|_| self.needs_start("sessions port"))
        {
            Some(starter.start_port(face, inherited, listeners).await)
        } else {
            None
        };
        if let Some(port) = port {
            let port = port.map(|files| self.port_files = files);
            self.set_outcome("sessions port", port);
        }
    }

    fn needs_start(&self, component: &'static str) -> bool {
        !self.started.contains(component)
    }

    fn set_outcome(&mut self, component: &'static str, outcome: Result<(), Failure>) {
        match &outcome {
            Ok(()) => {
                if self.retries > 0 {
                    tracing::info!(component, "started after a retry");
                }
                self.started.insert(component);
            }
            Err(reason) => {
                tracing::error!(component, %reason, "cannot start; retrying");
                if self.permanent_failure.is_none() && !reason.is_exhaustion() {
                    self.permanent_failure = Some(reason.clone());
                }
            }
        }
        self.outcomes.push((component, outcome.map_err(|reason| format!("cannot start: {reason}"))));
    }

    /// The delay before the next attempt; none if every component has started.
    pub(crate) fn retry_after(&mut self) -> Option<Duration> {
        if !self.has_failures {
            return None;
        }
        let delay =
            RETRY_MIN.saturating_mul(1u32.checked_shl(self.retries).unwrap_or(u32::MAX)).min(RETRY_MAX);
        self.retries = self.retries.saturating_add(1);
        Some(delay)
    }

    /// The first failure of the last attempt that a retry cannot fix.
    pub(crate) fn permanent_failure(&self) -> Option<String> {
        self.permanent_failure.as_ref().map(ToString::to_string)
    }

    /// Applies a reloaded configuration to work that starts from now on.
    pub(crate) fn configure(&self, paths: &Paths, config: &Config) -> Result<(), String> {
        let settings = config.approvals.settings(paths)?;
        if let Some(approvals) = self.registry.approvals() {
            approvals.configure(settings);
        }
        if let Some(broker) = &self.broker {
            broker.configure(broker_face::settings(paths, config));
        }
        if let Some(sessions) = self.registry.sessions() {
            sessions.configure(sessions_face::settings(paths, &config.sessions));
        }
        Ok(())
    }

    /// Ends the faces. Returns the sockets and port files to remove.
    pub(crate) fn end(self, paths: &Paths) -> Vec<PathBuf> {
        if let Some(sessions) = self.registry.sessions() {
            sessions.end();
        }
        let own =
            [paths.exec_socket(), paths.broker_socket(), paths.approvals_socket(), paths.sessions_socket()];
        own.into_iter().chain(self.port_files).chain(self.shared_socket).collect()
    }
}

/// The `STATUS=` text for the supervisor.
pub(crate) fn status_text(problems: &[Problem]) -> String {
    let now_ms = unix_ms();
    let text = |problem: &Problem| {
        let since_s = now_ms.saturating_sub(problem.since_ms) / 1000;
        format!("{} {} (since {since_s} s)", problem.component, problem.message)
    };
    match problems.is_empty() {
        true => "serving".to_owned(),
        false => format!("{}; retrying", problems.iter().map(text).collect::<Vec<_>>().join("; ")),
    }
}
