//! Commands of the command line in a sandbox: from the policy that was asked for to what the engine is to start.

use crate::wire::{Failure, Sandbox, SandboxPolicy};
use outpost_engine::{Error, Spawn, Step};
use outpost_sandbox::{Confinement, Context, Policy, Private, Probed, Reads};
use std::path::{Path, PathBuf};

/// What this host can enforce, and what of ours no command sees.
pub struct Sandboxing {
    private: Private,
    host: Probed,
}

impl Sandboxing {
    /// `state` is where it is written down which names are held on the host; `private` is the daemon's own.
    pub fn new(state: PathBuf, private: Private) -> Sandboxing {
        Sandboxing { private, host: Probed::new(state) }
    }

    /// Confines a process to be, whose program is then looked up inside among `candidates`. What is returned is to be kept
    /// until it has ended. Looks at the disk.
    pub(crate) fn confine(
        &self,
        asked: &Sandbox,
        directory: &Path,
        candidates: &[PathBuf],
        spawn: &mut Spawn,
    ) -> Result<Confinement, Failure> {
        let writable: Vec<PathBuf> = asked.writable.iter().map(|word| PathBuf::from(&word.0)).collect();
        if let Some(relative) = writable.iter().find(|path| !path.is_absolute()) {
            let message = format!("{relative:?} cannot be made writable: it is not an absolute path");
            return Err(Failure { kind: "params".into(), message });
        }
        let mut policy = match asked.policy {
            SandboxPolicy::ReadOnly => Policy::read_only(&Reads::Everything, asked.network),
            SandboxPolicy::WorkspaceWrite => {
                Policy::workspace_write(&writable, &Reads::Everything, asked.network, false, false)
            }
        };
        if asked.policy == SandboxPolicy::WorkspaceWrite {
            policy.protect_agents(writable.iter().map(PathBuf::as_path).chain([directory]));
        }
        self.private.hide(&mut policy);
        let tmpdir = std::env::var_os("TMPDIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
        let context = Context { cwd: directory.to_owned(), tmpdir };
        let built = outpost_sandbox::plan(&policy, &context)
            .and_then(|plan| Confinement::build(&plan, &*self.host.get()?))
            .and_then(|confinement| Ok((confinement.for_spawn(candidates)?, confinement)));
        let (handed_over, confinement) = built.map_err(|error| Failure {
            kind: "sandbox".into(),
            message: format!(
                "the command was not started: its sandbox is not possible here: {error}; `outpost doctor` says what this host can enforce"
            ),
        })?;
        spawn.confinement = Some(handed_over.program);
        spawn.descriptors = handed_over.descriptors;
        Ok(confinement)
    }
}

/// Why a confined command was not started, where the engine cannot know: what its confinement was about to do, or that
/// its program is nowhere to be found inside.
pub(crate) fn failed_at(error: &Error, confinement: Option<&Confinement>, name: &str) -> Option<Failure> {
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
