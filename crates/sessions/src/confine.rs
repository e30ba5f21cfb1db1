//! The sandbox of a session, as its creator asked for it: what the agent and its tools may write and reach.

use crate::face::Face;
use crate::made_files::Needed;
use crate::own_files;
use crate::session::Session;
use outpost_engine::Spawn;
use outpost_sandbox::{Access, Confinement, Context, Entry, Files, Policy, Reads, Shadow};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// In the words of the exec face's policies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub(crate) enum Sandbox {
    /// Nothing is written but logins and conversations of the agent, and what stays with the session.
    ReadOnly {
        #[serde(default = "yes")]
        network_access: bool,
    },
    /// The project too, `/tmp`, and what else is named.
    WorkspaceWrite {
        #[serde(default)]
        writable_roots: Vec<PathBuf>,
        /// An agent that cannot reach its model is of little use, so this is on unless it is said to be off.
        #[serde(default = "yes")]
        network_access: bool,
    },
    /// The books have a sandbox that cannot be read, for this reason. Never written.
    #[serde(skip)]
    Unreadable(String),
}

fn yes() -> bool {
    true
}

impl Sandbox {
    pub(crate) fn from_json(value: serde_json::Value) -> Result<Sandbox, String> {
        let sandbox: Sandbox = serde_json::from_value(value).map_err(|error| error.to_string())?;
        if let Sandbox::WorkspaceWrite { writable_roots, .. } = &sandbox
            && let Some(relative) = writable_roots.iter().find(|root| !root.is_absolute())
        {
            return Err(format!("{} is not an absolute path", relative.display()));
        }
        Ok(sandbox)
    }

    /// The sandbox as the books have it. One that cannot be read refuses every turn: less than was asked for is no sandbox.
    pub(crate) fn from_books(text: &str) -> Sandbox {
        let read = serde_json::from_str(text).map_err(|error| error.to_string()).and_then(Sandbox::from_json);
        read.unwrap_or_else(Sandbox::Unreadable)
    }

    /// Gives the process to be its confinement, and returns what is to be kept while it runs. Looks at the disk.
    pub(crate) fn confine(
        &self,
        face: &Face,
        session: &Session,
        program: &Path,
        spawn: &mut Spawn,
    ) -> Result<Held, String> {
        let mut policy = match self {
            Sandbox::ReadOnly { network_access } => Policy::read_only(&Reads::Everything, *network_access),
            Sandbox::WorkspaceWrite { writable_roots, network_access } => {
                Policy::workspace_write(writable_roots, &Reads::Everything, *network_access, false, false)
            }
            Sandbox::Unreadable(reason) => {
                return Err(format!(
                    "its stored sandbox cannot be read ({reason}); destroy the session and create it again"
                ));
            }
        };
        let settings = face.settings();
        let mut made = None;
        if let Sandbox::WorkspaceWrite { writable_roots, .. } = self {
            let roots = || writable_roots.iter().map(PathBuf::as_path).chain([session.path.as_path()]);
            let needed = face.made_files.need(roots());
            made = Some(needed.map_err(|error| format!("its sandbox is not possible here: {error}"))?);
            policy.protect_agents(roots());
        }
        let own = session.dir.join("agent");
        let mut shadows = own_files::shadows(session.cli, settings.agent(session.cli), &own)?;
        refuse_in_own_files(session, &shadows)?;
        shadows.extend(own_files::project_shadow(session.cli, &session.path, &own)?);
        if let Files::Restricted { entries, .. } = &mut policy.files {
            let agents = own_files::settings_of_all(&settings);
            entries.extend(agents.into_iter().map(|path| Entry::path(path, Access::Read)));
        }
        settings.private.hide(&mut policy);
        let tmpdir = std::env::var_os("TMPDIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
        let context = Context { cwd: session.path.clone(), tmpdir };
        let say = |error: outpost_sandbox::Error| format!("its sandbox is not possible here: {error}");
        let mut plan = outpost_sandbox::plan(&policy, &context).map_err(say)?;
        // One that stands in for nothing is not needed: its name cannot be made.
        shadows.retain(|shadow| shadow.at.exists() || plan.held().any(|mount| mount.path == shadow.at));
        plan.shadows = shadows;
        let host = face.host.get().map_err(say)?;
        let confinement = Confinement::build(&plan, &host).map_err(say)?;
        let handed_over = confinement.for_spawn(&[program.to_owned()]).map_err(say)?;
        spawn.confinement = Some(handed_over.program);
        spawn.descriptors = handed_over.descriptors;
        Ok(Held { confinement, _made: made })
    }
}

/// What is on the host for a confined process. Goes when this is dropped.
pub(crate) struct Held {
    confinement: Confinement,
    _made: Option<Needed>,
}

impl Held {
    /// What an operation of the confinement was about to do.
    pub(crate) fn describe(&self, operation: u16) -> Option<String> {
        self.confinement.program.describe(usize::from(operation))
    }
}

/// What a project has below an agent's own directory, that agent would not see.
fn refuse_in_own_files(session: &Session, shadows: &[Shadow]) -> Result<(), String> {
    let path = std::fs::canonicalize(&session.path).unwrap_or_else(|_| session.path.clone());
    match shadows.iter().find(|shadow| path.starts_with(&shadow.at)) {
        None => Ok(()),
        Some(shadow) => Err(format!(
            "its sandbox is not possible here: {} is in {}, where {} keeps its own files; use another directory",
            path.display(),
            shadow.at.display(),
            session.cli.name()
        )),
    }
}
