//! The launch of a CLI for a turn: its program, environment and sandbox.

use super::sandbox::{SandboxError, SandboxGuard};
use crate::FACE;
use crate::agents::TurnRequest;
use crate::face::Face;
use crate::session::Session;
use outpost_engine::{AtCap, Descendants, Drain, Error, Key, OnTaken, Process, Spawn, Stdio, Step};
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

/// Output on disk at which the CLI blocks until the turn reads. Larger than the longest line.
const JOURNAL_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Variables that mark a process as a child of claude. The daemon itself may be one, but its CLIs are not.
const DROPPED_VARIABLES: [&str; 3] = ["CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_SSE_PORT"];

/// Why a CLI could not be launched.
pub(crate) struct LaunchFailure {
    pub(crate) reason: String,
    /// The program does not exist.
    pub(crate) is_missing: bool,
}

/// The engine's key of a turn's process.
pub(crate) fn key(session: &Session, turn: u64) -> Key {
    Key::new(FACE, &session.id, &turn.to_string())
}

/// Builds the request of a turn from the current settings of its session. Blocking.
pub(crate) fn request(face: &Face, session: &Session, message: &str) -> TurnRequest {
    let is_interactive = face.clis.has_interactive_mode(session.cli);
    let state = session.state();
    TurnRequest {
        cli: session.cli,
        mode: state.mode,
        model: state.model.clone(),
        conversation_id: state.conversation_id.clone(),
        path: session.path.clone(),
        message: message.to_owned(),
        is_interactive,
        keep_process: session.cli.profile().can_stay_warm && face.settings().claude_keep_alive.is_some(),
    }
}

pub(crate) async fn launch(
    face: &Arc<Face>,
    session: &Arc<Session>,
    turn: u64,
    request: TurnRequest,
) -> Result<Process, LaunchFailure> {
    let key = key(session, turn);
    let (preparing_face, preparing) = (face.clone(), session.clone());
    let prepared = tokio::task::spawn_blocking(move || prepare(&preparing_face, &preparing, key, &request));
    let (spawn, guard) =
        prepared.await.map_err(|error| LaunchFailure { reason: error.to_string(), is_missing: false })??;
    let process = face.engine.spawn(spawn).await.map_err(|error| launch_failure(&error, guard.as_ref()))?;
    if let Some(guard) = guard {
        // The sandbox's files on the host are removed when the process has exited.
        let ended = process.clone();
        tokio::spawn(async move {
            let _ended = ended.exited().await;
            drop(guard);
        });
    }
    Ok(process)
}

fn launch_failure(error: &Error, guard: Option<&SandboxGuard>) -> LaunchFailure {
    match error {
        Error::Start { failure, .. } => {
            let os = std::io::Error::from_raw_os_error(failure.errno.raw_os_error());
            match failure.step {
                Step::Confine => {
                    let what = guard
                        .and_then(|guard| guard.confinement.describe(failure.operation))
                        .unwrap_or_default();
                    LaunchFailure { reason: format!("its sandbox failed: {what}: {os}"), is_missing: false }
                }
                Step::Exec => {
                    let is_missing = os.kind() == std::io::ErrorKind::NotFound;
                    LaunchFailure { reason: os.to_string(), is_missing }
                }
                step => LaunchFailure { reason: format!("{step:?}: {os}"), is_missing: false },
            }
        }
        error => LaunchFailure { reason: error.to_string(), is_missing: false },
    }
}

/// Blocking.
fn prepare(
    face: &Face,
    session: &Session,
    key: Key,
    request: &TurnRequest,
) -> Result<(Spawn, Option<SandboxGuard>), LaunchFailure> {
    let missing = |reason: String| LaunchFailure { reason, is_missing: true };
    let program = face.clis.program(request.cli);
    let program = program.ok_or_else(|| missing("No such file or directory (os error 2)".into()))?;
    if !session.path.is_dir() {
        let reason = format!("its directory {} is not there any more", session.path.display());
        return Err(LaunchFailure { reason, is_missing: false });
    }
    let invocation = request.invocation();
    let mut arguments: Vec<OsString> = vec![program.clone().into()];
    arguments.extend(invocation.arguments);
    let mut spawn = Spawn {
        environment: environment(face, request, invocation.environment).into_iter().collect(),
        directory: Some(session.path.clone()),
        stdio: Stdio::Pipes { stdin: true },
        new_session: true,
        on_taken: OnTaken::Refuse,
        at_cap: AtCap::WaitForReaders,
        journal_bytes_max: Some(JOURNAL_BYTES_MAX),
        drain: Drain { quiet: Duration::from_millis(200), longest: Duration::from_secs(2) },
        descendants: Descendants::Kill,
        started_by: format!("session {}", session.id),
        ..Spawn::bare(key, arguments)
    };
    let guard = match &session.sandbox {
        None => None,
        Some(sandbox) => {
            let refused =
                |error: SandboxError| LaunchFailure { reason: error.to_string(), is_missing: false };
            Some(sandbox.apply(face, session, &program, &mut spawn).map_err(refused)?)
        }
    };
    Ok((spawn, guard))
}

/// The daemon's environment, with the adapter's variables, and above both the operator's.
fn environment(
    face: &Face,
    request: &TurnRequest,
    own: Vec<(&'static str, String)>,
) -> Vec<(OsString, OsString)> {
    let settings = face.settings();
    let rules = settings.agent(request.cli);
    let set = |name: &OsString| {
        rules.env.iter().any(|(set, _)| OsString::from(set) == *name)
            || own.iter().any(|(set, _)| *set == name)
    };
    let is_dropped = |name: &OsString| {
        name.to_str().is_some_and(|name| {
            DROPPED_VARIABLES.contains(&name) || rules.drop_env.iter().any(|dropped| dropped == name)
        })
    };
    let inherited = std::env::vars_os().filter(|(name, _)| name != "TERM" && !set(name) && !is_dropped(name));
    let mut environment: Vec<(OsString, OsString)> = inherited.collect();
    environment.push(("TERM".into(), "dumb".into()));
    let own = own.into_iter().filter(|(name, _)| !rules.env.iter().any(|(set, _)| set == name));
    environment.extend(own.map(|(name, value)| (name.into(), value.into())));
    environment.extend(rules.env.iter().map(|(name, value)| (name.into(), value.into())));
    environment
}
