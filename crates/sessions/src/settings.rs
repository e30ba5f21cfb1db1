//! The operator's settings for the sessions face.

use crate::agents::Cli;
use outpost_sandbox::PrivatePaths;
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// The settings of one agent CLI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentSettings {
    /// Path of the program. Without it, the daemon searches its PATH and some directories in HOME.
    pub program: Option<PathBuf>,
    /// Variables that the daemon sets for the CLI, and variables of its own that it does not pass on.
    pub env: Vec<(String, String)>,
    pub drop_env: Vec<String>,
}

impl AgentSettings {
    /// A variable as the CLI sees it. `None` if unset or empty.
    pub(crate) fn variable(&self, name: &str) -> Option<OsString> {
        let set = self.env.iter().rev().find(|(set, _)| set == name).map(|(_, value)| value.into());
        let inherited =
            || std::env::var_os(name).filter(|_| !self.drop_env.iter().any(|dropped| dropped == name));
        set.or_else(inherited).filter(|value| !value.is_empty())
    }

    /// The CLI's home directory.
    pub(crate) fn home(&self) -> Option<PathBuf> {
        self.variable("HOME").map(PathBuf::from).or_else(outpost_sys::user::home)
    }
}

#[derive(Clone, Debug)]
pub struct Settings {
    /// Directory of the event logs, with one subdirectory per session.
    pub dir: PathBuf,
    /// Skills that are copied into the projects of new sessions.
    pub skills: PathBuf,
    /// The daemon's private paths, hidden from every sandbox.
    pub private: PrivatePaths,
    /// The daemon's state directory. The sandbox records its placeholders there.
    pub state: PathBuf,
    pub agents: HashMap<Cli, AgentSettings>,
    /// Time limits of a turn as a whole and without output. `None` is no limit.
    pub turn_timeout: Option<Duration>,
    pub silence_timeout: Option<Duration>,
    /// How long a permission question waits for an approver.
    pub ask_timeout: Duration,
    /// How long an idle claude process waits for the next message. `None`: each turn starts a new process.
    pub claude_keep_alive: Option<Duration>,
    /// Maximum number of sessions.
    pub sessions_max: usize,
}

impl Settings {
    pub fn new(state: impl Into<PathBuf>) -> Settings {
        let state = state.into();
        let home = outpost_sys::user::home().unwrap_or_default();
        Settings {
            dir: state.join("sessions"),
            skills: home.join(".codecast/skills"),
            private: PrivatePaths::new(Vec::new),
            state,
            agents: HashMap::new(),
            turn_timeout: None,
            silence_timeout: None,
            ask_timeout: Duration::from_secs(600),
            claude_keep_alive: None,
            sessions_max: 100_000,
        }
    }

    pub(crate) fn agent(&self, cli: Cli) -> &AgentSettings {
        static DEFAULT: AgentSettings =
            AgentSettings { program: None, env: Vec::new(), drop_env: Vec::new() };
        self.agents.get(&cli).unwrap_or(&DEFAULT)
    }
}
