//! The sandbox of a session, as its creator asked for it: what the agent and its tools may write and reach.

use crate::agents::Cli;
use crate::face::Face;
use crate::session::Session;
use crate::settings::AgentSettings;
use outpost_engine::Spawn;
use outpost_sandbox::{Access, Confinement, Context, Entry, Files, Policy, Reads};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// In the words of the exec face's policies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub(crate) enum Sandbox {
    /// Nothing but the agent's own files is written.
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

    /// Gives the process to be its confinement, which is to be kept while it runs. Looks at the disk.
    pub(crate) fn confine(
        &self,
        face: &Face,
        session: &Session,
        program: &Path,
        spawn: &mut Spawn,
    ) -> Result<Confinement, String> {
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
        if let Files::Restricted { entries, .. } = &mut policy.files {
            let own = own_files(session.cli, face.settings().agent(session.cli));
            entries.extend(own.into_iter().map(|path| Entry::path(path, Access::Write)));
            entries.extend(face.settings().private.iter().map(|path| Entry::path(path, Access::None)));
        }
        let tmpdir = std::env::var_os("TMPDIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
        let context = Context { cwd: session.path.clone(), tmpdir };
        let say = |error: outpost_sandbox::Error| format!("its sandbox is not possible here: {error}");
        let plan = outpost_sandbox::plan(&policy, &context).map_err(say)?;
        let host = face.host.get().map_err(say)?;
        let confinement = Confinement::build(&plan, &host).map_err(say)?;
        let handed_over = confinement.for_spawn(&[program.to_owned()]).map_err(say)?;
        spawn.confinement = Some(handed_over.program);
        spawn.descriptors = handed_over.descriptors;
        Ok(confinement)
    }
}

/// Where an agent keeps its conversations and its login: without them it cannot go on. Those that are there.
fn own_files(cli: Cli, settings: &AgentSettings) -> Vec<PathBuf> {
    let Some(home) = settings.home() else { return Vec::new() };
    let (variable, below): (&str, &[&str]) = match cli {
        Cli::Claude => ("CLAUDE_CONFIG_DIR", &[".claude", ".claude.json", ".cache/claude"]),
        Cli::Codex => ("CODEX_HOME", &[".codex"]),
        Cli::Gemini => ("GEMINI_CLI_HOME", &[".gemini"]),
        Cli::Opencode => (
            "OPENCODE_CONFIG_DIR",
            &[".local/share/opencode", ".local/state/opencode", ".cache/opencode", ".config/opencode"],
        ),
    };
    let own = settings.variable(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    own.into_iter().chain(below.iter().map(|path| home.join(path))).filter(|path| path.exists()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agents_own_files_are_where_its_environment_says() {
        let dir = tempfile::tempdir().unwrap();
        let (home, codex) = (dir.path().join("home"), dir.path().join("codex"));
        for path in [home.join(".codex"), codex.clone()] {
            std::fs::create_dir_all(path).unwrap();
        }
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let set = vec![("HOME".to_owned(), text(&home)), ("CODEX_HOME".to_owned(), text(&codex))];
        let settings = AgentSettings { set: set.into_iter().collect(), ..AgentSettings::default() };
        assert_eq!(own_files(Cli::Codex, &settings), [codex, home.join(".codex")]);
    }
}
