//! Sandboxed commands of the command line: turns the requested policy into a confinement for the engine.

use crate::wire::{Failure, Sandbox, SandboxPolicy};
use outpost_engine::{Error, Spawn, Step};
use outpost_sandbox::{Confinement, Context, Policy, SandboxBuilder};
use std::path::{Path, PathBuf};

/// Adds a confinement to `spawn`. The kernel looks the program up among `candidates` inside the sandbox. The caller must
/// keep the confinement until the process ends. Blocking: reads the disk.
pub(crate) fn confine(
    sandboxes: &SandboxBuilder,
    requested: &Sandbox,
    directory: &Path,
    candidates: &[PathBuf],
    spawn: &mut Spawn,
) -> Result<Confinement, Failure> {
    let writable: Vec<PathBuf> = requested.writable.iter().map(|text| PathBuf::from(&text.0)).collect();
    if let Some(relative) = writable.iter().find(|path| !path.is_absolute()) {
        let message = format!("cannot make {relative:?} writable: not an absolute path");
        return Err(Failure { kind: "params".into(), message });
    }
    let roots = (requested.policy == SandboxPolicy::WorkspaceWrite).then_some(writable.as_slice());
    let policy = Policy::for_agent(roots, directory, requested.network);
    let built = sandboxes
        .plan(policy, &Context::of_this_process(directory))
        .and_then(|plan| sandboxes.build(&plan))
        .and_then(|confinement| Ok((confinement.for_spawn(candidates)?, confinement)));
    let (prepared, confinement) = built.map_err(|error| Failure {
        kind: "sandbox".into(),
        message: format!(
            "the command was not started: its sandbox is not possible here: {error}; `outpost doctor` shows what this host can enforce"
        ),
    })?;
    spawn.confinement = Some(prepared);
    Ok(confinement)
}

/// The failure of a confined start in terms of the sandbox, which the engine does not know: the sandbox operation that
/// failed, or a program that no directory of `PATH` contains inside the sandbox.
pub(crate) fn sandbox_failure(
    error: &Error,
    confinement: Option<&Confinement>,
    name: &str,
) -> Option<Failure> {
    let (Error::Start { failure, .. }, Some(confinement)) = (error, confinement) else { return None };
    match failure.step {
        Step::Confine => {
            let what = confinement.describe(failure.operation)?;
            let errno = failure.errno;
            let message = format!("the command was not started: its sandbox failed: {what}: {errno}");
            Some(Failure { kind: "sandbox".into(), message })
        }
        Step::Exec if failure.errno == outpost_sys::Errno::NOENT && !name.contains('/') => {
            let message = format!("start {}: not found in PATH", name.escape_debug());
            Some(Failure { kind: "start".into(), message })
        }
        _ => None,
    }
}
