//! What an operator decides about the sessions face.

use crate::agents::Cli;
use outpost_sandbox::Private;
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// About one agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentSettings {
    /// Where its program is, if not where programs are looked for.
    pub program: Option<PathBuf>,
    /// Variables it gets, and such that it does not.
    pub set: Vec<(String, String)>,
    pub drop: Vec<String>,
}

impl AgentSettings {
    /// A variable as the agent has it, if it is more than empty.
    pub(crate) fn variable(&self, name: &str) -> Option<OsString> {
        let set = self.set.iter().rev().find(|(set, _)| set == name).map(|(_, value)| value.into());
        let inherited = || std::env::var_os(name).filter(|_| !self.drop.iter().any(|drop| drop == name));
        set.or_else(inherited).filter(|value| !value.is_empty())
    }

    /// Where the agent is at home.
    pub(crate) fn home(&self) -> Option<PathBuf> {
        self.variable("HOME").map(PathBuf::from).or_else(outpost_sys::user::home)
    }
}

#[derive(Clone, Debug)]
pub struct Settings {
    /// Where records of turns are: a directory per session.
    pub dir: PathBuf,
    /// Skills that new sessions get.
    pub skills: PathBuf,
    /// What is the daemon's own, which no agent in a sandbox sees.
    pub private: Private,
    /// Where names are written down that a sandbox holds on the host.
    pub state: PathBuf,
    pub agents: HashMap<Cli, AgentSettings>,
    /// How long a turn may take, and how long its agent may be silent.
    pub turn_patience: Option<Duration>,
    pub silence_patience: Option<Duration>,
    /// How long a human may take to answer an agent's question.
    pub ask_patience: Duration,
    /// How long a process of claude waits for the next message; without, every turn has a process of its own.
    pub claude_keep: Option<Duration>,
    /// Sessions at once.
    pub sessions_max: usize,
}

impl Settings {
    pub fn new(state: impl Into<PathBuf>) -> Settings {
        let state = state.into();
        let home = outpost_sys::user::home().unwrap_or_default();
        Settings {
            dir: state.join("sessions"),
            skills: home.join(".codecast/skills"),
            private: Private::new(Vec::new),
            state,
            agents: HashMap::new(),
            turn_patience: None,
            silence_patience: None,
            ask_patience: Duration::from_secs(600),
            claude_keep: None,
            sessions_max: 100_000,
        }
    }

    pub(crate) fn agent(&self, cli: Cli) -> &AgentSettings {
        static DEFAULT: AgentSettings = AgentSettings { program: None, set: Vec::new(), drop: Vec::new() };
        self.agents.get(&cli).unwrap_or(&DEFAULT)
    }
}
