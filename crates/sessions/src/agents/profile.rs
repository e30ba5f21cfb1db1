//! What differs between the agent CLIs, as data. Each CLI's file defines its `PROFILE`.

use super::acp::Dialect;
use super::{Invocation, Mode, TurnRequest};
use semver::Version;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The properties of one CLI.
pub(crate) struct Profile {
    /// The name in requests, which is also the name of the program.
    pub(crate) name: &'static str,
    /// The name in messages to people.
    pub(crate) title: &'static str,
    /// Prefixes of npm packages that contain the program. The first one is the package to install.
    pub(crate) packages: &'static [&'static str],
    /// The first version with the interactive interface. `None`: all versions in use have it.
    pub(crate) interactive_since: Option<Version>,
    /// A process can answer several turns.
    pub(crate) can_stay_warm: bool,
    pub(crate) login: Login,
    /// The file with instructions that the CLI reads in a project.
    pub(crate) instructions: &'static str,
    /// The directory of skills in a project, by path component. Empty: the CLI has none.
    pub(crate) skills: &'static [&'static str],
    pub(crate) flags: Flags,
    /// How the CLI speaks the Agent Client Protocol, if it does.
    pub(crate) acp: Option<Dialect>,
    /// Where the CLI keeps one file per conversation, if it does.
    pub(crate) conversations: Option<ConversationStore>,
    /// The CLI's own directories and files outside of projects.
    pub(crate) dirs: &'static [AgentDir],
    /// The directory in a project that the CLI must be able to write.
    pub(crate) project_dir: Option<&'static str>,
    /// Selects the interface for a turn.
    pub(crate) invocation: fn(&TurnRequest) -> Invocation,
}

/// How to log in, for hints.
pub(crate) struct Login {
    pub(crate) command: &'static str,
    /// The variable with an API key.
    pub(crate) key: &'static str,
}

/// The command line of the CLI's scripting interface.
pub(crate) struct Flags {
    /// The first arguments.
    pub(crate) command: &'static [&'static str],
    pub(crate) auto: &'static [&'static str],
    pub(crate) code: &'static [&'static str],
    pub(crate) plan: &'static [&'static str],
    pub(crate) ask: &'static [&'static str],
    pub(crate) model: &'static str,
    /// The flag or subcommand before the id of a conversation.
    pub(crate) resume: &'static str,
}

impl Flags {
    pub(crate) fn command(&self) -> Vec<OsString> {
        self.command.iter().map(Into::into).collect()
    }

    pub(crate) fn mode(&self, mode: Mode) -> Vec<OsString> {
        let flags = match mode {
            Mode::Auto => self.auto,
            Mode::Code => self.code,
            Mode::Plan => self.plan,
            Mode::Ask => self.ask,
        };
        flags.iter().map(Into::into).collect()
    }

    pub(crate) fn model(&self, request: &TurnRequest) -> Vec<OsString> {
        option(self.model, request.model.as_ref())
    }

    pub(crate) fn resume(&self, request: &TurnRequest) -> Vec<OsString> {
        option(self.resume, request.conversation_id.as_ref())
    }
}

fn option(flag: &str, value: Option<&String>) -> Vec<OsString> {
    value.map(|value| vec![flag.into(), value.into()]).unwrap_or_default()
}

/// A directory with one file per conversation, named after its id.
pub(crate) struct ConversationStore {
    /// The variable with the CLI's directory, and its default in HOME.
    pub(crate) variable: &'static str,
    pub(crate) default: &'static str,
    pub(crate) subdir: &'static str,
}

/// How the sandbox shows an entry of an agent's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryPolicy {
    /// The host's entry, writable. A missing directory of conversations is created.
    Login,
    Conversations,
    /// Private to the session; the host's entry is hidden. For databases, caches and repositories. A database has its
    /// log beside it, so two views of it would corrupt it. An agent outside would run the hooks of a repository.
    SessionOnly,
    /// Private to the session, and copied from the host before each launch.
    Copy,
}

/// A directory or file of an agent.
pub(crate) struct AgentDir {
    /// The variable with an absolute path to it.
    pub(crate) variable: Option<&'static str>,
    /// Its path in HOME without the variable. `None`: it exists only with the variable.
    pub(crate) default: Option<&'static str>,
    /// Below either path.
    pub(crate) subdir: Option<&'static str>,
    /// Entries that are not read-only. A name that ends with `*` matches a prefix.
    pub(crate) entries: &'static [(&'static str, EntryPolicy)],
    /// Whether other entries of the host are hidden rather than read-only.
    pub(crate) is_hidden: bool,
}

impl AgentDir {
    /// The path of the directory in an environment.
    pub(crate) fn path(&self, home: &Path, variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
        let set = self.variable.and_then(variable).map(PathBuf::from).filter(|path| path.is_absolute());
        let path = set.or_else(|| self.default.map(|default| home.join(default)))?;
        Some(self.subdir.map_or_else(|| path.clone(), |subdir| path.join(subdir)))
    }
}
