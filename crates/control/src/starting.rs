//! `spawn`: a command of the command line, in a sandbox or not.

use crate::confining::failed_at;
use crate::methods::{Outcome, answer, failure};
use crate::server::Context;
use crate::wire::{Failure, Spawn, Spawned, Word};
use crate::{methods::FACE, owned};
use outpost_engine::{AtCap, Error, Key, OnTaken, Rest, Size, Stdio};
use outpost_sandbox::Confinement;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Where programs are looked for without a PATH.
const PATH_DEFAULT: &str = "/usr/local/bin:/usr/bin:/bin";

/// Why a command was not started.
enum NotStarted {
    Refused(Failure),
    Engine(Error),
}

impl From<Failure> for NotStarted {
    fn from(failure: Failure) -> NotStarted {
        NotStarted::Refused(failure)
    }
}

impl From<Error> for NotStarted {
    fn from(error: Error) -> NotStarted {
        NotStarted::Engine(error)
    }
}

pub(crate) async fn spawn<P>(context: &Arc<Context<P>>, params: Spawn) -> Outcome
where
    P: Send + Sync + 'static,
{
    let ends_with_client = params.ends_with_client;
    let name = params.command.first().map(|Word(name)| name.to_string_lossy().into_owned());
    let kept = Arc::new(OnceLock::new());
    let (its_context, its_kept) = (context.clone(), Arc::clone(&kept));
    let started = match params.sandbox {
        Some(_) => context.engine.spawn_made(move || prepare(&its_context, params, &its_kept)).await,
        None => match prepare(&its_context, params, &its_kept) {
            Ok(spawn) => context.engine.spawn(spawn).await.map_err(NotStarted::Engine),
            Err(error) => Err(error),
        },
    };
    let process = started.map_err(|error| match error {
        NotStarted::Refused(failure) => failure,
        NotStarted::Engine(error) => {
            failed_at(&error, kept.get(), &name.unwrap_or_default()).unwrap_or_else(|| failure(error))
        }
    })?;
    if kept.get().is_some() {
        let process = process.clone();
        tokio::spawn(async move {
            let _gone = process.finished().await;
            // Only now: with it go the names that are held on the host.
            drop::<Arc<OnceLock<Confinement>>>(kept);
        });
    }
    if ends_with_client {
        context.owned.await_client(process.clone());
    }
    answer(&Spawned { process: process.slot().to_string(), pid: process.pid() })
}

/// What the engine is to start; with a sandbox on a thread that may wait. A confinement is put into `kept`.
fn prepare<P>(
    context: &Context<P>,
    params: Spawn,
    kept: &OnceLock<Confinement>,
) -> Result<outpost_engine::Spawn, NotStarted> {
    let scope = if params.ends_with_client { owned::SCOPE } else { "" };
    let command = params.command.into_iter().map(|Word(argument)| argument);
    let mut spawn = outpost_engine::Spawn::bare(Key::new(FACE, scope, &params.id), command);
    let mut environment: Vec<(OsString, OsString)> = match params.environment {
        Some(given) => given.into_iter().map(|(Word(name), Word(value))| (name, value)).collect(),
        None => std::env::vars_os().collect(),
    };
    for (Word(name), Word(value)) in params.added {
        environment.retain(|(other, _)| *other != name);
        environment.push((name, value));
    }
    spawn.environment = environment.into_iter().collect();
    spawn.directory = params.directory.map(|Word(path)| PathBuf::from(path));
    spawn.stdio = match params.terminal {
        Some(size) => Stdio::Terminal(Size { rows: size.rows, cols: size.cols }),
        None => Stdio::Pipes { stdin: params.stdin },
    };
    spawn.new_session = params.new_session;
    spawn.on_taken = if params.replace { OnTaken::Replace } else { OnTaken::Refuse };
    spawn.started_by = "command line".into();
    if params.ends_with_client {
        spawn.rest = Rest::Ends;
        spawn.at_cap = AtCap::WaitForReaders;
    }
    let candidates = candidates(&spawn)?;
    match params.sandbox {
        None => spawn.program = present(&spawn.program, candidates)?,
        Some(asked) => {
            let directory = spawn.directory.clone().unwrap_or_else(|| "/".into());
            // What is there to be executed inside, the kernel finds out.
            spawn.program = candidates.first().cloned().unwrap_or_default();
            let confinement = context.sandboxing.confine(&asked, &directory, &candidates, &mut spawn)?;
            let _set_once = kept.set(confinement);
        }
    }
    Ok(spawn)
}

/// The paths that the program's name may stand for: itself when it has a slash, else one in each directory of the PATH
/// that the process will have.
fn candidates(spawn: &outpost_engine::Spawn) -> Result<Vec<PathBuf>, Failure> {
    let name = spawn.program.as_os_str();
    if name.is_empty() {
        return Err(Failure { kind: "params".into(), message: "the command is empty".into() });
    }
    if name.as_bytes().contains(&b'/') {
        return Ok(vec![spawn.program.clone()]);
    }
    let dirs = std::env::split_paths(spawn.environment.get("PATH").unwrap_or(OsStr::new(PATH_DEFAULT)));
    Ok(dirs.filter(|dir| dir.is_absolute()).map(|dir| dir.join(name)).collect())
}

fn present(name: &Path, candidates: Vec<PathBuf>) -> Result<PathBuf, Failure> {
    if name.as_os_str().as_bytes().contains(&b'/') {
        return Ok(name.to_owned());
    }
    candidates.into_iter().find(|path| is_program(path)).ok_or_else(|| Failure {
        kind: "start".into(),
        message: format!("start {}: not found in PATH", name.display().to_string().escape_debug()),
    })
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}
