//! gemini: its profile, and the adapter for `-p` with stream-json output.

use super::acp::{self, Dialect, ModeRequest};
use super::json::{reason, text_of, without_json};
use super::profile::{AgentDir, EntryPolicy, Flags, Login, Profile};
use super::text_accumulator::TextAccumulator;
use super::tool_calls::ToolCalls;
use super::{Adapter, Interface, Invocation, Mode, TurnRequest};
use crate::event::Event;
use crate::turn::output::Output;
use semver::Version;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// gemini's properties.
pub(super) static PROFILE: Profile = Profile {
    name: "gemini",
    title: "Gemini",
    packages: &["@google/gemini-cli"],
    interactive_since: Some(Version::new(0, 50, 0)),
    can_stay_warm: false,
    login: Login { command: "`gemini` once", key: "GEMINI_API_KEY" },
    instructions: "GEMINI.md",
    skills: &[],
    flags: Flags {
        // An empty prompt: gemini prepends standard input, which has the message.
        command: &["--prompt=", "--output-format", "stream-json"],
        auto: &["--approval-mode", "yolo"],
        code: &["--approval-mode", "auto_edit"],
        plan: &["--approval-mode", "plan"],
        // This interface cannot ask for permissions, so gemini denies what would need one.
        ask: &["--approval-mode", "default"],
        model: "--model",
        resume: "--resume",
    },
    acp: Some(Dialect {
        // It replays the conversation.
        resume_method: "session/load",
        session_name: alias,
        mode: ModeRequest::SetMode(acp_mode),
        model_is_option: false,
        lists_sessions: false,
        forgets_unanswered: true,
    }),
    // Its conversation files are named by time.
    conversations: None,
    dirs: &[AgentDir {
        variable: Some("GEMINI_CLI_HOME"),
        default: Some(""),
        subdir: Some(".gemini"),
        entries: DIR_ENTRIES,
        is_hidden: false,
    }],
    project_dir: None,
    invocation,
};

/// `tmp` is private because `tmp/bin` holds downloaded programs beside the conversations.
const DIR_ENTRIES: &[(&str, EntryPolicy)] = &[
    ("oauth_creds.json", EntryPolicy::Login),
    ("google_accounts.json", EntryPolicy::Login),
    ("gemini-credentials.json", EntryPolicy::Login),
    ("projects.json", EntryPolicy::Copy),
    ("history", EntryPolicy::SessionOnly),
    ("state.json", EntryPolicy::SessionOnly),
    ("tmp", EntryPolicy::SessionOnly),
];

/// stream-json has deltas too; only permission requests need ACP.
fn invocation(request: &TurnRequest) -> Invocation {
    let flags = &PROFILE.flags;
    if request.is_interactive && request.mode == Mode::Ask {
        let mut arguments = vec!["--acp".into()];
        arguments.extend(flags.model(request));
        return Invocation { arguments, environment: environment(), adapter: acp::adapter(request.cli) };
    }
    let mut arguments = flags.command();
    arguments.extend(flags.mode(request.mode));
    arguments.extend(flags.model(request));
    arguments.extend(flags.resume(request));
    Invocation {
        arguments,
        environment: environment(),
        adapter: Adapter::Gemini(Gemini { is_new: request.conversation_id.is_none(), ..Gemini::default() }),
    }
}

/// Without the first variable, gemini starts a copy of itself that signals to the process do not reach. Without the
/// second, it refuses directories that no user has confirmed in its dialog.
fn environment() -> Vec<(&'static str, String)> {
    vec![("GEMINI_CLI_NO_RELAUNCH", "true".into()), ("GEMINI_CLI_TRUST_WORKSPACE", "true".into())]
}

fn acp_mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Auto => "yolo",
        Mode::Code => "autoEdit",
        Mode::Plan => "plan",
        Mode::Ask => "default",
    }
}

/// A leading space, which works around a bug of gemini. gemini first creates an empty session file under the requested
/// id, then searches for the conversation with the trimmed id. Within the minute of the conversation's creation, both
/// are one file, and it gets corrupted. Later, gemini's clean-up deletes both as duplicates. With the space the names
/// differ.
fn alias(id: &str) -> String {
    format!(" {id}")
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Gemini {
    tool_calls: ToolCalls,
    last_error: Option<String>,
    text: TextAccumulator,
    /// The turn started a new conversation.
    is_new: bool,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct Line<'a> {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    session_id: Option<String>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    role: Option<String>,
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    delta: Option<bool>,
    #[serde(default)]
    tool_name: Option<String>,
    #[serde(default)]
    tool_id: Option<String>,
    #[serde(borrow, default)]
    parameters: Option<&'a RawValue>,
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    output: Option<Value>,
    #[serde(default)]
    error: Option<Value>,
    #[serde(default)]
    message: Option<String>,
}

impl Interface for Gemini {
    fn on_line(&mut self, text: &str, _: &TurnRequest, out: &mut Output) {
        let Ok(line) = serde_json::from_str::<Line<'_>>(text) else { return out.unknown_line(text) };
        match line.kind.as_deref() {
            Some("init") => {
                let id = line.session_id.unwrap_or_default();
                out.set_conversation_id(&id);
                out.emit(&Event::init(id, line.model));
            }
            Some("message") if line.role.as_deref() == Some("assistant") => {
                let content = line.content.unwrap_or_default();
                match line.delta {
                    Some(true) => self.text.push_delta(&content, out),
                    _ => out.emit(&Event::text(content)),
                }
            }
            Some("message") => {}
            Some("tool_use") => {
                self.text.flush(out);
                let tool = tool_name(line.tool_name.as_deref().unwrap_or_default());
                if let Some(id) = line.tool_id {
                    self.tool_calls.remember(id, tool);
                }
                let input = line.parameters.map(Cow::Borrowed);
                out.emit(&Event { input, ..Event::tool(tool) });
            }
            Some("tool_result") => {
                let id = line.tool_id.unwrap_or_default();
                let name = self.tool_calls.tool(&id).unwrap_or_else(|| tool_of_id(&id));
                // A failed tool does not end the turn: the model sees its error.
                let result = line.output.as_ref().or(line.error.as_ref()).map(text_of);
                let result = result.unwrap_or_default();
                out.emit(&Event { message: Some(result.into()), ..Event::tool(name.to_owned()) });
            }
            // "non-fatal by its docs": a result follows.
            Some("error") => {
                let message = line.message.as_deref().map(without_json);
                let message = message.or_else(|| line.error.as_ref().map(reason));
                let message = message.unwrap_or_default();
                out.emit(&Event::notice("warning", message.clone()));
                self.last_error = Some(message);
            }
            Some("result") if line.status.as_deref() == Some("error") => {
                self.text.flush(out);
                // gemini does not store a conversation without an answer.
                out.conversation_lost |= self.is_new;
                let reason = line.error.as_ref().map(reason).or_else(|| self.last_error.take());
                out.fail(reason.unwrap_or_else(|| "it ended with an error".into()));
            }
            Some("result") => {
                self.text.flush(out);
                out.succeed(serde_json::from_str::<&RawValue>(text).ok());
            }
            _ => out.unknown_line(text),
        }
    }

    fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }
}

/// The tool name in a call's id, such as `run_shell_command__run_shell_command_1794768969654_0`.
fn tool_of_id(id: &str) -> &str {
    let name = id.split("__").next().unwrap_or(id);
    tool_name(name.split('-').next().unwrap_or(name))
}

/// The tool name that all adapters use.
fn tool_name(name: &str) -> &str {
    match name {
        "run_shell_command" => "bash",
        "write_file" | "replace" => "edit",
        "read_file" => "read",
        other => other,
    }
}
