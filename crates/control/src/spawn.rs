//! The `spawn` method: starts a command for the command line, with or without a sandbox.

use crate::methods::{MethodResult, failure, response};
use crate::sandboxing::{confine, sandbox_failure};
use crate::server::Context;
use crate::wire::{Failure, OsText, Spawn, Spawned};
use crate::{client_bound, methods::FACE};
use outpost_engine::{AtCap, Descendants, Key, OnTaken, Size, Stdio};
use outpost_sandbox::Confinement;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Search path for a process without `PATH`.
const PATH_DEFAULT: &str = "/usr/local/bin:/usr/bin:/bin";

pub(crate) async fn spawn<P>(context: &Arc<Context<P>>, params: Spawn) -> MethodResult
where
    P: Send + Sync + 'static,
{
    let ends_with_client = params.ends_with_client;
    let name = params.command.first().map(|OsText(name)| name.to_string_lossy().into_owned());
    let confinement = Arc::new(OnceLock::new());
    let (their_context, their_confinement) = (context.clone(), Arc::clone(&confinement));
    let started = match params.sandbox {
        Some(_) => {
            context.engine.spawn_made(move || prepare(&their_context, params, &their_confinement)).await?
        }
        None => context.engine.spawn(prepare(&their_context, params, &their_confinement)?).await,
    };
    let process = started.map_err(|error| {
        sandbox_failure(&error, confinement.get(), &name.unwrap_or_default())
            .unwrap_or_else(|| failure(error))
    })?;
    if confinement.get().is_some() {
        let process = process.clone();
        tokio::spawn(async move {
            let _gone = process.finished().await;
            // Dropping the confinement removes its placeholders on the host, so it must outlive the process.
            drop::<Arc<OnceLock<Confinement>>>(confinement);
        });
    }
    if ends_with_client {
        context.client_bound.await_client(process.clone());
    }
    response(&Spawned { process: process.slot().to_string(), pid: process.pid() })
}

/// Builds the engine's spawn request. With a sandbox it reads the disk, runs on a blocking thread, and stores the
/// confinement in `slot`.
fn prepare<P>(
    context: &Context<P>,
    params: Spawn,
    slot: &OnceLock<Confinement>,
) -> Result<outpost_engine::Spawn, Failure> {
    let scope = if params.ends_with_client { client_bound::SCOPE } else { "" };
    let command = params.command.into_iter().map(|OsText(argument)| argument);
    let mut spawn = outpost_engine::Spawn::bare(Key::new(FACE, scope, &params.id), command);
    let mut environment: Vec<(OsString, OsString)> = match params.environment {
        Some(given) => given.into_iter().map(|(OsText(name), OsText(value))| (name, value)).collect(),
        None => std::env::vars_os().collect(),
    };
    for (OsText(name), OsText(value)) in params.added {
        environment.retain(|(other, _)| *other != name);
        environment.push((name, value));
    }
    spawn.environment = environment.into_iter().collect();
    spawn.directory = params.directory.map(|OsText(path)| PathBuf::from(path));
    spawn.stdio = match params.terminal {
        Some(size) => Stdio::Terminal(Size { rows: size.rows, cols: size.cols }),
        None => Stdio::Pipes { stdin: params.stdin },
    };
    spawn.new_session = params.new_session;
    spawn.on_taken = if params.replace { OnTaken::Replace } else { OnTaken::Refuse };
    spawn.started_by = "command line".into();
    if params.ends_with_client {
        spawn.descendants = Descendants::Kill;
        spawn.at_cap = AtCap::WaitForReaders;
    }
    let candidates = candidates(&spawn)?;
    match params.sandbox {
        None => spawn.program = find_executable(&spawn.program, candidates)?,
        Some(sandbox) => {
            let directory = spawn.directory.clone().unwrap_or_else(|| "/".into());
            // The kernel resolves the candidates inside the sandbox at exec.
            spawn.program = candidates.first().cloned().unwrap_or_default();
            let confinement = confine(&context.sandboxes, &sandbox, &directory, &candidates, &mut spawn)?;
            let _set_once = slot.set(confinement);
        }
    }
    Ok(spawn)
}

/// The paths to try for the program: the name itself if it contains a slash, else one per directory of the child's
/// `PATH`.
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

fn find_executable(name: &Path, candidates: Vec<PathBuf>) -> Result<PathBuf, Failure> {
    if name.as_os_str().as_bytes().contains(&b'/') {
        return Ok(name.to_owned());
    }
    candidates.into_iter().find(|path| is_executable(path)).ok_or_else(|| Failure {
        kind: "start".into(),
        message: format!("start {}: not found in PATH", name.display().to_string().escape_debug()),
    })
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}
