//! The agent CLIs: how each is called, and what its lines mean.

mod acp;
mod app_server;
mod calls;
pub(crate) mod claude;
pub(crate) mod codex;
pub(crate) mod gemini;
mod hints;
mod json;
pub(crate) mod opencode;
mod spoken;
#[cfg(test)]
mod tests;

use crate::output::Output;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::PathBuf;

pub(crate) use hints::{Hint, hint};

/// The agents we speak with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cli {
    Claude,
    Codex,
    Gemini,
    Opencode,
}

impl Cli {
    pub const ALL: [Cli; 4] = [Cli::Claude, Cli::Codex, Cli::Gemini, Cli::Opencode];

    /// As requests name it; also the name of its program.
    pub fn name(self) -> &'static str {
        match self {
            Cli::Claude => "claude",
            Cli::Codex => "codex",
            Cli::Gemini => "gemini",
            Cli::Opencode => "opencode",
        }
    }

    /// As people are told of it.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Cli::Claude => "Claude",
            Cli::Codex => "Codex",
            Cli::Gemini => "Gemini",
            Cli::Opencode => "OpenCode",
        }
    }

    pub fn from_name(name: &str) -> Option<Cli> {
        Cli::ALL.into_iter().find(|cli| cli.name() == name)
    }
}

/// What an agent may do without being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Everything.
    Auto,
    /// Edit files.
    Code,
    /// Nothing but read.
    Plan,
    /// What a human allows.
    Ask,
}

impl Mode {
    pub const ALL: [Mode; 4] = [Mode::Auto, Mode::Code, Mode::Plan, Mode::Ask];

    pub fn name(self) -> &'static str {
        match self {
            Mode::Auto => "auto",
            Mode::Code => "code",
            Mode::Plan => "plan",
            Mode::Ask => "ask",
        }
    }

    pub fn from_name(name: &str) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// A message on its way to an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) cli: Cli,
    pub(crate) mode: Mode,
    pub(crate) model: Option<String>,
    /// The conversation to go on with.
    pub(crate) sdk_id: Option<String>,
    pub(crate) path: PathBuf,
    pub(crate) message: String,
    /// The CLI is known to have its richer interface, with deltas and questions.
    pub(crate) is_rich: bool,
    /// Its process shall wait for the next message afterwards.
    pub(crate) keeps: bool,
}

/// How a CLI is called for a task. Its message goes by standard input: arguments of a process are seen by every user.
#[derive(Debug)]
pub(crate) struct Call {
    /// Without the program's own name.
    pub(crate) arguments: Vec<OsString>,
    /// Set besides what is inherited.
    pub(crate) environment: Vec<(&'static str, String)>,
    pub(crate) agent: Agent,
}

impl Task {
    /// The model and the conversation, where they were chosen, for the CLIs that take them alike.
    fn choices(&self, resume: &'static str) -> Vec<OsString> {
        let chosen = [("--model", &self.model), (resume, &self.sdk_id)];
        let given =
            chosen.into_iter().filter_map(|(flag, value)| Some([flag.into(), value.as_ref()?.into()]));
        given.flatten().collect()
    }

    /// The interface that tells and asks what this task needs, where the CLI is known to have it.
    pub(crate) fn call(&self) -> Call {
        match (self.cli, self.is_rich) {
            (Cli::Claude, _) => claude::call(self),
            (Cli::Codex, true) => app_server::call(),
            (Cli::Codex, false) => codex::call(self),
            (Cli::Opencode, true) => acp::call(self),
            (Cli::Opencode, false) => opencode::call(self),
            // Its lines have deltas; only questions need the other.
            (Cli::Gemini, true) if self.mode == Mode::Ask => acp::call(self),
            (Cli::Gemini, _) => gemini::call(self),
        }
    }
}

/// Whoever understands the lines of the CLI that runs. What it has to remember between lines is part of the turn's mark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "agent", rename_all = "snake_case")]
pub(crate) enum Agent {
    Claude(claude::Claude),
    Codex(codex::Codex),
    Gemini(gemini::Gemini),
    Opencode(opencode::Opencode),
    AppServer(app_server::AppServer),
    Acp(acp::Acp),
}

/// What a human, or their absence, has said to an agent's question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) allow: bool,
    pub(crate) note: String,
}

impl Agent {
    /// Says what there is to say before anything has been heard.
    pub(crate) fn begin(&mut self, task: &Task, out: &mut Output) {
        match self {
            Agent::Claude(claude) => claude.begin(task, out),
            Agent::AppServer(server) => server.begin(out),
            Agent::Acp(acp) => acp.begin(out),
            Agent::Codex(_) | Agent::Gemini(_) | Agent::Opencode(_) => {
                out.said.extend_from_slice(task.message.as_bytes());
                out.hushed = true;
            }
        }
    }

    /// Takes one line of standard output.
    pub(crate) fn hear(&mut self, line: &[u8], task: &Task, out: &mut Output) {
        let line = String::from_utf8_lossy(line);
        let line = line.trim();
        if line.is_empty() {
            return;
        }
        match self {
            Agent::Claude(claude) => claude.hear(line, out),
            Agent::Codex(codex) => codex.hear(line, out),
            Agent::Gemini(gemini) => gemini.hear(line, out),
            Agent::Opencode(opencode) => opencode.hear(line, out),
            Agent::AppServer(server) => server.hear(line, task, out),
            Agent::Acp(acp) => acp.hear(line, task, out),
        }
    }

    /// Passes a human's answer on.
    pub(crate) fn answer(&mut self, ask: &crate::output::Ask, answer: &Answer, out: &mut Output) {
        match self {
            Agent::Claude(_) => claude::answer(ask, answer, out),
            Agent::AppServer(_) => app_server::answer(ask, answer, out),
            Agent::Acp(acp) => acp.answer(ask, answer, out),
            // These never ask.
            Agent::Codex(_) | Agent::Gemini(_) | Agent::Opencode(_) => {}
        }
    }

    /// Whether its process waits for another message after this turn.
    pub(crate) fn stays(&self) -> bool {
        matches!(self, Agent::Claude(claude) if claude.stays)
    }

    /// Whether it is in the middle of something, of which there is more to come.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self, Agent::Claude(claude) if claude.is_busy)
    }

    /// What it last complained of without ending.
    pub(crate) fn complaint(&self) -> Option<&str> {
        match self {
            Agent::Codex(codex) => codex.complaint(),
            Agent::Gemini(gemini) => gemini.complaint(),
            Agent::AppServer(server) => server.complaint(),
            Agent::Claude(_) | Agent::Opencode(_) | Agent::Acp(_) => None,
        }
    }
}
