//! Sandboxed commands of the command line: turns the requested policy into a confinement for the engine.

use crate::wire::{Failure, Sandbox, SandboxPolicy};
use outpost_engine::{Error, Spawn, Step};
use outpost_sandbox::{Confinement, Context, LazyHost, Policy, PrivatePaths, Reads};
use std::path::{Path, PathBuf};

/// The host's sandbox capabilities, and the daemon's files that every sandbox hides.
pub struct Sandboxing {
    private: PrivatePaths,
    host: LazyHost,
}

impl Sandboxing {
    /// `state` is the directory that records mount placeholders on the host; `private` are the paths to hide.
    pub fn new(state: PathBuf, private: PrivatePaths) -> Sandboxing {
        Sandboxing { private, host: LazyHost::new(state) }
    }

    /// Adds a confinement to `spawn`. The kernel looks the program up among `candidates` inside the sandbox. The caller
    /// must keep the confinement until the process ends. Blocking: reads the disk.
    pub(crate) fn confine(
        &self,
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
        let mut policy = match requested.policy {
            SandboxPolicy::ReadOnly => Policy::read_only(&Reads::Everything, requested.network),
            SandboxPolicy::WorkspaceWrite => {
                Policy::workspace_write(&writable, &Reads::Everything, requested.network, false, false)
            }
        };
        if requested.policy == SandboxPolicy::WorkspaceWrite {
            policy.protect_agents(writable.iter().map(PathBuf::as_path).chain([directory]));
        }
        self.private.hide(&mut policy);
        let tmpdir = std::env::var_os("TMPDIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
        let context = Context { cwd: directory.to_owned(), tmpdir };
        let built = outpost_sandbox::plan(&policy, &context)
            .and_then(|plan| Confinement::build(&plan, &*self.host.get()?))
            .and_then(|confinement| Ok((confinement.for_spawn(candidates)?, confinement)));
        let (prepared, confinement) = built.map_err(|error| Failure {
            kind: "sandbox".into(),
            message: format!(
                "the command was not started: its sandbox is not possible here: {error}; `outpost doctor` shows what this host can enforce"
            ),
        })?;
        spawn.confinement = Some(prepared.program);
        spawn.descriptors = prepared.descriptors;
        Ok(confinement)
    }
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
            let what = confinement.program.describe(usize::from(failure.operation))?;
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
