//! The agent CLIs: how each is invoked, and the adapters that parse their output.
//!
//! The file of a CLI has its [`Profile`]: flags, capabilities, and the files of its login, settings and conversations.
//! An adapter is named after the interface it speaks: `claude`, `codex_app_server` (codex from 0.120 on), `codex_exec`
//! (older codex), `gemini`, `opencode` (before 1.0) and `acp` (opencode, and gemini in ask mode).

mod acp;
mod claude;
mod codex;
mod codex_app_server;
pub(crate) mod codex_exec;
pub(crate) mod conversation_store;
mod failure_hints;
mod gemini;
pub(crate) mod installed;
mod json;
mod opencode;
pub(crate) mod profile;
#[cfg(test)]
mod tests;
mod text_accumulator;
mod tool_calls;

use crate::turn::output::{Output, PermissionRequest};
use profile::Profile;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::PathBuf;

pub(crate) use failure_hints::{Hint, hint_for};

/// Declares the CLIs, each with its profile and the adapters of its interfaces.
macro_rules! agent_clis {
    ($($cli:ident: $profile:path { $($(#[$attribute:meta])* $adapter:ident($state:ty)),+ })+) => {
        /// The supported agent CLIs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum Cli {
            $($cli),+
        }

        impl Cli {
            pub const ALL: [Cli; [$(Cli::$cli),+].len()] = [$(Cli::$cli),+];

            pub(crate) fn profile(self) -> &'static Profile {
                match self {
                    $(Cli::$cli => &$profile),+
                }
            }
        }

        /// The parser state for the running CLI. It is part of the checkpoint, so the serialized names belong to the
        /// format on disk.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "agent", rename_all = "snake_case")]
        pub(crate) enum Adapter {
            $($($(#[$attribute])* $adapter($state)),+),+
        }

        impl Adapter {
            fn interface(&self) -> &dyn Interface {
                match self {
                    $($(Adapter::$adapter(state) => state),+),+
                }
            }

            fn interface_mut(&mut self) -> &mut dyn Interface {
                match self {
                    $($(Adapter::$adapter(state) => state),+),+
                }
            }
        }
    };
}

// A new CLI is one file in `agents/`, with its profile and its adapter, and one line here.
agent_clis! {
    Claude: claude::PROFILE { Claude(claude::Claude) }
    Codex: codex::PROFILE {
        #[serde(rename = "codex")] CodexExec(codex_exec::CodexExec),
        #[serde(rename = "app_server")] CodexAppServer(codex_app_server::CodexAppServer)
    }
    Gemini: gemini::PROFILE { Gemini(gemini::Gemini), Acp(acp::Acp) }
    Opencode: opencode::PROFILE { Opencode(opencode::Opencode) }
}

impl Cli {
    /// The name in requests, which is also the name of the program.
    pub fn name(self) -> &'static str {
        self.profile().name
    }

    /// The name in messages to people.
    pub(crate) fn title(self) -> &'static str {
        self.profile().title
    }

    pub fn from_name(name: &str) -> Option<Cli> {
        Cli::ALL.into_iter().find(|cli| cli.name() == name)
    }
}

/// What an agent may do without asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Everything.
    Auto,
    /// Edit files.
    Code,
    /// Read only.
    Plan,
    /// Read; approvers decide on everything else.
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

/// The message of a turn, with the settings it runs with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TurnRequest {
    pub(crate) cli: Cli,
    pub(crate) mode: Mode,
    pub(crate) model: Option<String>,
    /// The conversation to resume.
    pub(crate) conversation_id: Option<String>,
    pub(crate) path: PathBuf,
    pub(crate) message: String,
    /// The CLI has its interactive interface, with deltas and permission requests.
    pub(crate) is_interactive: bool,
    /// The process stays warm after the turn.
    pub(crate) keep_process: bool,
}

/// How a CLI is launched. The message goes to standard input: every user can read the arguments of a process.
#[derive(Debug)]
pub(crate) struct Invocation {
    /// Without the program.
    pub(crate) arguments: Vec<OsString>,
    /// Variables in addition to the inherited ones.
    pub(crate) environment: Vec<(&'static str, String)>,
    pub(crate) adapter: Adapter,
}

impl TurnRequest {
    pub(crate) fn invocation(&self) -> Invocation {
        (self.cli.profile().invocation)(self)
    }
}

/// The decision on a permission request, for the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PermissionDecision {
    pub(crate) allow: bool,
    pub(crate) note: String,
}

impl Default for Adapter {
    /// A placeholder, while the adapter of a turn is moved out of its checkpoint.
    fn default() -> Adapter {
        Adapter::CodexExec(codex_exec::CodexExec::default())
    }
}

/// One interface of a CLI. The defaults fit a CLI that reads the message from standard input and never asks.
trait Interface {
    /// Sends the message, or the first request of a protocol.
    fn start(&mut self, request: &TurnRequest, out: &mut Output) {
        out.send_message(&request.message);
    }

    /// Parses one line of standard output.
    fn on_line(&mut self, line: &str, request: &TurnRequest, out: &mut Output);

    /// Sends the decision on a permission request to the CLI.
    fn on_decision(&mut self, _: &PermissionRequest, _: &PermissionDecision, _: &mut Output) {}

    /// Whether the process stays warm after this turn.
    fn keeps_process(&self) -> bool {
        false
    }

    /// Whether the CLI works on something whose result has not come yet.
    fn is_busy(&self) -> bool {
        false
    }

    /// The last error that the CLI reported without ending the turn.
    fn last_error(&self) -> Option<&str> {
        None
    }
}

impl Adapter {
    pub(crate) fn start(&mut self, request: &TurnRequest, out: &mut Output) {
        self.interface_mut().start(request, out);
    }

    /// Parses one line of standard output. Invalid UTF-8 is replaced, and an empty line is ignored.
    pub(crate) fn on_line(&mut self, line: &[u8], request: &TurnRequest, out: &mut Output) {
        let line = String::from_utf8_lossy(line);
        let line = line.trim();
        if !line.is_empty() {
            self.interface_mut().on_line(line, request, out);
        }
    }

    pub(crate) fn on_decision(
        &mut self,
        request: &PermissionRequest,
        decision: &PermissionDecision,
        out: &mut Output,
    ) {
        self.interface_mut().on_decision(request, decision, out);
    }

    pub(crate) fn keeps_process(&self) -> bool {
        self.interface().keeps_process()
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.interface().is_busy()
    }

    pub(crate) fn last_error(&self) -> Option<&str> {
        self.interface().last_error()
    }
}
