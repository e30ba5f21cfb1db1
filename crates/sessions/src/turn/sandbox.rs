//! The sandbox of a session: what the agent and its tools may write and reach.

use super::agent_dirs;
use super::placeholder_files::PlaceholderGuard;
use crate::face::Face;
use crate::session::Session;
use outpost_engine::Spawn;
use outpost_sandbox::{Access, Confinement, Context, Files, Policy, PolicyEntry, Shadow};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The sandbox parameter of `session.create`, with the names of the exec face's policies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub(crate) enum Sandbox {
    /// The agent writes its login, its conversations and the session's private files only.
    ReadOnly {
        #[serde(default = "enabled")]
        network_access: bool,
    },
    /// The agent also writes the project, `/tmp` and these roots.
    WorkspaceWrite {
        #[serde(default)]
        writable_roots: Vec<PathBuf>,
        /// On by default, because an agent needs to reach its model.
        #[serde(default = "enabled")]
        network_access: bool,
    },
    /// The stored sandbox is invalid, for this reason. Never serialized.
    #[serde(skip)]
    Unreadable(String),
}

/// Why a sandbox parameter is not valid.
#[derive(Debug, Error)]
pub(crate) enum InvalidSandbox {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("{} is not an absolute path", .0.display())]
    RelativeRoot(PathBuf),
}

/// Why a turn cannot run in its sandbox.
#[derive(Debug, Error)]
pub(crate) enum SandboxError {
    #[error("its stored sandbox cannot be read ({0}); destroy the session and create it again")]
    Unreadable(String),
    #[error("its sandbox is not possible here: {0}")]
    Placeholders(#[source] std::io::Error),
    #[error("its sandbox is not possible here: {0}")]
    Impossible(#[from] outpost_sandbox::Error),
    #[error("cannot make {} ready for a sandbox: {cause}", from.display())]
    Shadow {
        from: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    /// The project is inside an agent's own directory, which the shadow would hide.
    #[error(
        "its sandbox is not possible here: {} is in {}, where {cli} keeps its own files; use another directory",
        project.display(),
        dir.display()
    )]
    InAgentDir { project: PathBuf, dir: PathBuf, cli: &'static str },
}

fn enabled() -> bool {
    true
}

impl Sandbox {
    pub(crate) fn from_json(value: serde_json::Value) -> Result<Sandbox, InvalidSandbox> {
        let sandbox: Sandbox = serde_json::from_value(value)?;
        if let Sandbox::WorkspaceWrite { writable_roots, .. } = &sandbox
            && let Some(relative) = writable_roots.iter().find(|root| !root.is_absolute())
        {
            return Err(InvalidSandbox::RelativeRoot(relative.clone()));
        }
        Ok(sandbox)
    }

    /// Parses a stored sandbox. An invalid one refuses every turn, because an agent must not run with weaker limits.
    pub(crate) fn from_stored(text: &str) -> Sandbox {
        let read = serde_json::from_str(text).map_err(InvalidSandbox::from).and_then(Sandbox::from_json);
        read.unwrap_or_else(|error| Sandbox::Unreadable(error.to_string()))
    }

    /// Adds the sandbox to the process to spawn. The guard must live as long as the process. Blocking.
    pub(crate) fn apply(
        &self,
        face: &Face,
        session: &Session,
        program: &Path,
        spawn: &mut Spawn,
    ) -> Result<SandboxGuard, SandboxError> {
        let (writable, network) = match self {
            Sandbox::ReadOnly { network_access } => (None, *network_access),
            Sandbox::WorkspaceWrite { writable_roots, network_access } => {
                (Some(writable_roots.as_slice()), *network_access)
            }
            Sandbox::Unreadable(reason) => return Err(SandboxError::Unreadable(reason.clone())),
        };
        let settings = face.settings();
        let roots = writable.map(|roots| roots.iter().chain([&session.path]).map(PathBuf::as_path));
        let placeholders = roots.map(|roots| face.placeholder_files.acquire(roots)).transpose();
        let placeholders = placeholders.map_err(SandboxError::Placeholders)?;
        // After the placeholder files, which it protects.
        let mut policy = Policy::for_agent(writable, &session.path, network);
        let private = session.dir.join("agent");
        let mut shadows = agent_dirs::shadows(session.cli, settings.agent(session.cli), &private)?;
        refuse_inside_agent_dir(session, &shadows)?;
        shadows.extend(agent_dirs::project_shadow(session.cli, &session.path, &private)?);
        if let Files::Restricted { entries, .. } = &mut policy.files {
            let agents = agent_dirs::of_all_agents(&settings);
            entries.extend(agents.into_iter().map(|path| PolicyEntry::path(path, Access::Read)));
        }
        let context = Context::of_this_process(&session.path);
        let mut plan = face.sandboxes.plan(policy, &context)?;
        // A shadow without a target is not needed: the agent cannot create the name.
        shadows
            .retain(|shadow| shadow.at.exists() || plan.placeholders().any(|mount| mount.path == shadow.at));
        plan.shadows = shadows;
        let confinement = face.sandboxes.build(&plan)?;
        spawn.confinement = Some(confinement.for_spawn(&[program.to_owned()])?);
        Ok(SandboxGuard { confinement, _placeholders: placeholders })
    }
}

/// The files on the host that a sandboxed process needs. Dropping it removes them.
pub(crate) struct SandboxGuard {
    pub(crate) confinement: Confinement,
    _placeholders: Option<PlaceholderGuard>,
}

/// Refuses a project inside an agent's own directory, because the shadow would hide it.
fn refuse_inside_agent_dir(session: &Session, shadows: &[Shadow]) -> Result<(), SandboxError> {
    let path = std::fs::canonicalize(&session.path).unwrap_or_else(|_| session.path.clone());
    match shadows.iter().find(|shadow| path.starts_with(&shadow.at)) {
        None => Ok(()),
        Some(shadow) => {
            Err(SandboxError::InAgentDir { project: path, dir: shadow.at.clone(), cli: session.cli.name() })
        }
    }
}
