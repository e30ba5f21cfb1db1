//! The faces of a daemon that is no relay: in which order they begin, the retry of those that cannot, and their end.

use crate::announced::Announced;
use crate::approvals_desk::{self, ApprovalsDesk};
use crate::broker_face::{self, BrokerFace};
use crate::config::Config;
use crate::exec_face::ExecFace;
use crate::failure::Failure;
use crate::flags::Flags;
use crate::metrics_face::MetricsFace;
use crate::paths::Paths;
use crate::sessions_face::{self, SessionsFace};
use outpost_approvals::{Approvals, unix_ms};
use outpost_control::wire::{Listening, Problem};
use outpost_engine::Engine;
use std::collections::{BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// The pause before the first retry, which doubles up to the greatest.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// What a face needs to begin.
#[derive(Clone, Copy)]
pub(crate) struct Host<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) paths: &'a Paths,
    pub(crate) flags: &'a Flags,
    pub(crate) config: &'a Config,
}

/// What has begun and what could not, for `status` and for metrics.
#[derive(Default)]
pub(crate) struct Board {
    approvals: OnceLock<Approvals>,
    sessions: OnceLock<Arc<outpost_sessions::Face>>,
    listening: Mutex<Vec<Listening>>,
    problems: Mutex<Vec<Problem>>,
}

impl Board {
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

    pub(crate) fn announce(&self, announced: &Announced) {
        lock(&self.listening).extend_from_slice(announced.rows());
    }

    /// Notes how a component does. Keeps the time of its first failure.
    pub(crate) fn note(&self, component: &str, outcome: Result<(), String>) {
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
    pub(crate) board: Arc<Board>,
    /// Components that have begun.
    begun: BTreeSet<&'static str>,
    exec: Option<Arc<outpost_exec::Server>>,
    broker: Option<Arc<outpost_broker::Server>>,
    port_files: Vec<PathBuf>,
    /// A socket outside our directories.
    shared: Option<PathBuf>,
    retries: u32,
    /// Whether something could not begin at the last attempt.
    are_missing: bool,
    /// Outcomes of the attempt under way. They are shown together: a face may begin only because another one has.
    outcomes: Vec<(&'static str, Result<(), String>)>,
    /// The first failure of the last attempt that does not pass by itself.
    lasting: Option<Failure>,
}

impl Faces {
    pub(crate) fn new(board: Arc<Board>) -> Faces {
        Faces { board, ..Faces::default() }
    }

    /// Begins all that has not begun, with what the keeper holds. Each component fails on its own.
    pub(crate) async fn begin_missing(
        &mut self,
        host: Host<'_>,
        own: &mut HashMap<u8, OwnedFd>,
    ) -> Announced {
        self.lasting = None;
        let mut announced = Announced::default();
        let Host { engine, paths, flags, config } = host;
        let desk = ApprovalsDesk { engine, paths, config };
        if self.is_missing("approvals") {
            let opened = desk.open().map(|approvals| {
                let _set_once = self.board.approvals.set(approvals);
            });
            self.note("approvals", opened);
        }
        // Alone, as the daemon that it stands in for.
        if !flags.sessions.codecast && !paths.is_guard {
            self.begin_exec(host, own, &mut announced).await;
        }
        if let Some(approvals) = self.board.approvals.get().cloned() {
            if !flags.sessions.codecast && self.is_missing("broker") {
                let begun = BrokerFace { engine, paths, config }.begin(&approvals, own, &mut announced).await;
                self.broker = begun.as_ref().ok().cloned();
                self.note("broker", begun.map(drop));
            }
            if !paths.is_guard && self.is_missing("sessions") {
                let (approvals, flags) = (approvals.clone(), &flags.sessions);
                let face = SessionsFace { engine, paths, approvals, config: &config.sessions, flags };
                let begun = face.begin(own, &mut announced).await.map(|begun| {
                    let _set_once = self.board.sessions.set(begun.face);
                    self.port_files = begun.port_files;
                });
                self.note("sessions", begun);
            }
            // After the faces: approvers shall not see a question vanish and come back.
            if self.is_missing("approve") {
                let served = desk.serve(&approvals, own, &mut announced).await;
                let served = served.map(|shared| self.shared = shared);
                self.note("approve", served);
            }
        }
        if !paths.is_guard && self.is_missing("metrics") {
            let metrics = MetricsFace { engine, paths, board: &self.board, listen: config.metrics.listen };
            let begun = metrics.begin(own, &mut announced).await;
            self.note("metrics", begun);
        }
        self.board.announce(&announced);
        self.are_missing = self.outcomes.iter().any(|(_, outcome)| outcome.is_err());
        for (component, outcome) in std::mem::take(&mut self.outcomes) {
            self.board.note(component, outcome);
        }
        announced
    }

    async fn begin_exec(
        &mut self,
        host: Host<'_>,
        own: &mut HashMap<u8, OwnedFd>,
        announced: &mut Announced,
    ) {
        let Host { engine, paths, config, .. } = host;
        let face = ExecFace { engine, paths, websocket: config.exec.websocket };
        if self.is_missing("exec") {
            let begun = face.begin(own, announced).await.map(|server| self.exec = Some(server));
            self.note("exec", begun);
        }
        if let Some(server) = self.exec.clone().filter(|_| self.is_missing("exec websocket")) {
            let begun = face.begin_port(server, own, announced).await;
            self.note("exec websocket", begun);
        }
    }

    fn is_missing(&self, component: &'static str) -> bool {
        !self.begun.contains(component)
    }

    fn note(&mut self, component: &'static str, outcome: Result<(), Failure>) {
        match &outcome {
            Ok(()) => {
                if self.retries > 0 {
                    tracing::info!(component, "has begun after all");
                }
                self.begun.insert(component);
            }
            Err(reason) => {
                tracing::error!(component, %reason, "cannot begin; trying again");
                if self.lasting.is_none() && !reason.is_exhaustion() {
                    self.lasting = Some(reason.clone());
                }
            }
        }
        self.outcomes.push((component, outcome.map_err(|reason| format!("cannot begin: {reason}"))));
    }

    /// After which pause to try again, if something has not begun.
    pub(crate) fn retry_after(&mut self) -> Option<Duration> {
        if !self.are_missing {
            return None;
        }
        let pause =
            RETRY_MIN.saturating_mul(1u32.checked_shl(self.retries).unwrap_or(u32::MAX)).min(RETRY_MAX);
        self.retries = self.retries.saturating_add(1);
        Some(pause)
    }

    /// The first reason why something has not begun that does not pass by itself.
    pub(crate) fn failure(&self) -> Option<String> {
        self.lasting.as_ref().map(ToString::to_string)
    }

    /// What the operator has settled meanwhile holds for what begins from now on.
    pub(crate) fn configure(&self, paths: &Paths, config: &Config) -> Result<(), String> {
        let settings = approvals_desk::settings(paths, config)?;
        if let Some(approvals) = self.board.approvals() {
            approvals.configure(settings);
        }
        if let Some(broker) = &self.broker {
            broker.configure(broker_face::settings(paths, config));
        }
        if let Some(sessions) = self.board.sessions() {
            sessions.configure(sessions_face::settings(paths, &config.sessions));
        }
        Ok(())
    }

    /// The daemon ends. Returns what is to be removed.
    pub(crate) fn end(self, paths: &Paths) -> Vec<PathBuf> {
        if let Some(sessions) = self.board.sessions() {
            sessions.end();
        }
        let own = [paths.exec_socket(), paths.broker_socket(), paths.approvals_socket()];
        own.into_iter().chain(self.port_files).chain(self.shared).collect()
    }
}

/// As a supervisor shows it.
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
