//! The start of a CLI for a turn: which program, with which environment, held by which sandbox.

use crate::FACE;
use crate::agents::{Cli, Task};
use crate::confine::Held;
use crate::face::Face;
use crate::session::Session;
use outpost_engine::{AtCap, Drain, Error, Key, OnTaken, Process, Rest, Spawn, Stdio, Step};
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

/// What a CLI's output takes on disk before it waits for us: more than the longest line.
const JOURNAL_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Variables of an agent that started us, which would make another one believe that it runs inside it.
const DROPPED: [&str; 3] = ["CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_SSE_PORT"];

/// Why there is no process.
pub(crate) struct NotStarted {
    pub(crate) reason: String,
    /// There is no such program.
    pub(crate) is_missing: bool,
}

/// Under which name the engine has the process of a turn.
pub(crate) fn key(session: &Session, turn: u64) -> Key {
    Key::new(FACE, &session.id, &turn.to_string())
}

/// A message as it goes to its agent now.
pub(crate) fn task(face: &Face, session: &Session, message: &str) -> Task {
    let is_rich = face.clis.is_rich(session.cli);
    let state = session.state();
    Task {
        cli: session.cli,
        mode: state.mode,
        model: state.model.clone(),
        sdk_id: state.sdk_id.clone(),
        path: session.path.clone(),
        message: message.to_owned(),
        is_rich,
        keeps: session.cli == Cli::Claude && face.settings().claude_keep.is_some(),
    }
}

pub(crate) async fn start(
    face: &Arc<Face>,
    session: &Arc<Session>,
    turn: u64,
    task: Task,
) -> Result<Process, NotStarted> {
    let key = key(session, turn);
    let (preparing_face, preparing) = (face.clone(), session.clone());
    let prepared = tokio::task::spawn_blocking(move || prepare(&preparing_face, &preparing, key, &task));
    let (spawn, held) =
        prepared.await.map_err(|error| NotStarted { reason: error.to_string(), is_missing: false })??;
    let process = face.engine.spawn(spawn).await.map_err(|error| not_started(&error, held.as_ref()))?;
    if let Some(held) = held {
        // Names that a sandbox holds on the host are let go when the process has ended.
        let ended = process.clone();
        tokio::spawn(async move {
            let _ended = ended.exited().await;
            drop(held);
        });
    }
    Ok(process)
}

fn not_started(error: &Error, held: Option<&Held>) -> NotStarted {
    match error {
        Error::Start { failure, .. } => {
            let os = std::io::Error::from_raw_os_error(failure.errno.raw_os_error());
            match failure.step {
                Step::Confine => {
                    let what = held.and_then(|held| held.describe(failure.operation)).unwrap_or_default();
                    NotStarted { reason: format!("its sandbox failed: {what}: {os}"), is_missing: false }
                }
                Step::Exec => {
                    let is_missing = os.kind() == std::io::ErrorKind::NotFound;
                    NotStarted { reason: os.to_string(), is_missing }
                }
                step => NotStarted { reason: format!("{step:?}: {os}"), is_missing: false },
            }
        }
        error => NotStarted { reason: error.to_string(), is_missing: false },
    }
}

/// Looks at the disk.
fn prepare(
    face: &Face,
    session: &Session,
    key: Key,
    task: &Task,
) -> Result<(Spawn, Option<Held>), NotStarted> {
    let missing = |reason: String| NotStarted { reason, is_missing: true };
    let program = face.clis.program(task.cli);
    let program = program.ok_or_else(|| missing("No such file or directory (os error 2)".into()))?;
    if !session.path.is_dir() {
        let reason = format!("its directory {} is not there any more", session.path.display());
        return Err(NotStarted { reason, is_missing: false });
    }
    let call = task.call();
    let mut arguments: Vec<OsString> = vec![program.clone().into()];
    arguments.extend(call.arguments);
    let mut spawn = Spawn {
        environment: environment(face, task, call.environment).into_iter().collect(),
        directory: Some(session.path.clone()),
        stdio: Stdio::Pipes { stdin: true },
        new_session: true,
        on_taken: OnTaken::Refuse,
        at_cap: AtCap::WaitForReaders,
        journal_bytes_max: Some(JOURNAL_BYTES_MAX),
        drain: Drain { quiet: Duration::from_millis(200), longest: Duration::from_secs(2) },
        rest: Rest::Ends,
        started_by: format!("session {}", session.id),
        ..Spawn::bare(key, arguments)
    };
    let held = match &session.sandbox {
        None => None,
        Some(sandbox) => {
            let refused = |reason: String| NotStarted { reason, is_missing: false };
            Some(sandbox.confine(face, session, &program, &mut spawn).map_err(refused)?)
        }
    };
    Ok((spawn, held))
}

/// What the daemon has, what the agent needs, and what the operator has settled for it, which goes before both.
fn environment(face: &Face, task: &Task, own: Vec<(&'static str, String)>) -> Vec<(OsString, OsString)> {
    let settings = face.settings();
    let rules = settings.agent(task.cli);
    let set = |name: &OsString| {
        rules.set.iter().any(|(set, _)| OsString::from(set) == *name)
            || own.iter().any(|(set, _)| *set == name)
    };
    let is_dropped = |name: &OsString| {
        name.to_str()
            .is_some_and(|name| DROPPED.contains(&name) || rules.drop.iter().any(|drop| drop == name))
    };
    let inherited = std::env::vars_os().filter(|(name, _)| name != "TERM" && !set(name) && !is_dropped(name));
    let mut environment: Vec<(OsString, OsString)> = inherited.collect();
    environment.push(("TERM".into(), "dumb".into()));
    let own = own.into_iter().filter(|(name, _)| !rules.set.iter().any(|(set, _)| set == name));
    environment.extend(own.map(|(name, value)| (name.into(), value.into())));
    environment.extend(rules.set.iter().map(|(name, value)| (name.into(), value.into())));
    environment
}
