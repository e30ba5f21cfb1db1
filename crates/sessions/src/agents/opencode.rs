//! opencode: its profile, and the adapter for versions before 1.0.
//!
//! The adapter parses `run --format json`, with its parts and the flat lines of older versions.

use super::acp::{self, Dialect, ModeRequest};
use super::json::{self, raw, text_of, without_json};
use super::profile::{AgentDir, EntryPolicy, Flags, Login, Profile};
use super::{Adapter, Interface, Invocation, Mode, TurnRequest};
use crate::event::Event;
use crate::turn::output::{Output, Verdict};
use semver::Version;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// opencode's properties. The flags are those of `run`.
pub(super) static PROFILE: Profile = Profile {
    name: "opencode",
    title: "OpenCode",
    packages: &["opencode-ai", "opencode-linux-"],
    interactive_since: Some(Version::new(1, 0, 0)),
    can_stay_warm: false,
    login: Login { command: "`opencode auth login`", key: "the variable of its provider's key" },
    instructions: "AGENTS.md",
    skills: &[],
    flags: Flags {
        command: &["run", "--format", "json"],
        auto: &["--auto"],
        code: &[],
        plan: &["--agent", "plan"],
        // `run` cannot ask for permissions, so ask mode uses the plan agent.
        ask: &["--agent", "plan"],
        model: "--model",
        resume: "--session",
    },
    acp: Some(Dialect {
        // It does not replay the conversation.
        resume_method: "session/resume",
        session_name: str::to_owned,
        mode: ModeRequest::ConfigOption(acp_mode),
        model_is_option: true,
        lists_sessions: true,
        forgets_unanswered: false,
    }),
    // Its conversations are in a database.
    conversations: None,
    dirs: &[
        AgentDir {
            variable: Some("XDG_DATA_HOME"),
            default: Some(".local/share"),
            subdir: Some("opencode"),
            entries: DATA_ENTRIES,
            is_hidden: false,
        },
        AgentDir {
            variable: Some("XDG_STATE_HOME"),
            default: Some(".local/state"),
            subdir: Some("opencode"),
            entries: &[],
            is_hidden: true,
        },
        AgentDir {
            variable: Some("XDG_CACHE_HOME"),
            default: Some(".cache"),
            subdir: Some("opencode"),
            entries: &[],
            is_hidden: false,
        },
        AgentDir {
            variable: Some("XDG_CONFIG_HOME"),
            default: Some(".config"),
            subdir: Some("opencode"),
            entries: &[],
            is_hidden: false,
        },
        AgentDir {
            variable: Some("OPENCODE_CONFIG_DIR"),
            default: None,
            subdir: None,
            entries: &[],
            is_hidden: false,
        },
    ],
    // opencode writes into it if it exists, and exits if it cannot. A sandbox's placeholder makes it exist.
    project_dir: Some(".opencode"),
    invocation,
};

/// The database of conversations also holds permanent permissions, so it is private.
const DATA_ENTRIES: &[(&str, EntryPolicy)] = &[
    ("auth.json", EntryPolicy::Login),
    ("log", EntryPolicy::SessionOnly),
    ("opencode*", EntryPolicy::SessionOnly),
    ("project", EntryPolicy::SessionOnly),
    ("repos", EntryPolicy::SessionOnly),
    ("snapshot", EntryPolicy::SessionOnly),
    ("storage", EntryPolicy::SessionOnly),
    ("tool-output", EntryPolicy::SessionOnly),
    ("worktree", EntryPolicy::SessionOnly),
];

fn invocation(request: &TurnRequest) -> Invocation {
    if request.is_interactive {
        let rules = permissions(request.mode).map(|rules| ("OPENCODE_PERMISSION", rules.to_string()));
        return Invocation {
            arguments: vec!["acp".into()],
            environment: rules.into_iter().collect(),
            adapter: acp::adapter(request.cli),
        };
    }
    let flags = &PROFILE.flags;
    let mut arguments = flags.command();
    arguments.extend(flags.mode(request.mode));
    arguments.extend(flags.model(request));
    arguments.extend(flags.resume(request));
    Invocation { arguments, environment: Vec::new(), adapter: Adapter::Opencode(Opencode::default()) }
}

fn acp_mode(mode: Mode) -> &'static str {
    if mode == Mode::Plan { "plan" } else { "build" }
}

/// opencode's permission rules. The last match wins, and they override the user's configuration. Without them, opencode
/// does everything in its directory without asking. Its plan mode obeys the rules too.
fn permissions(mode: Mode) -> Option<Value> {
    let other = match mode {
        Mode::Auto | Mode::Code => return None,
        Mode::Ask => "ask",
        Mode::Plan => "deny",
    };
    // opencode's own default: files with secrets are not readable.
    let read = json!({ "*": "allow", "*.env": other, "*.env.*": other, "*.env.example": "allow" });
    let mut rules = json!({ "*": other, "read": read });
    for read_only_tool in ["glob", "grep", "list", "todoread", "todowrite"] {
        rules[read_only_tool] = json!("allow");
    }
    Some(rules)
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Opencode {
    init_emitted: bool,
    /// The part with cumulative text, and how many bytes of it were emitted.
    part: String,
    emitted_bytes: usize,
}

#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(rename = "sessionID", default)]
    session_id: Option<String>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    part: Option<Part>,
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    error: Option<Value>,
    #[serde(default)]
    message: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Part {
    #[serde(rename = "type")]
    kind: Option<String>,
    id: Option<String>,
    text: Option<String>,
    content: Option<String>,
    tool: Option<String>,
    name: Option<String>,
    state: Option<Value>,
    status: Option<String>,
    input: Option<Value>,
    output: Option<Value>,
    error: Option<Value>,
    reason: Option<String>,
}

impl Interface for Opencode {
    fn on_line(&mut self, text: &str, _: &TurnRequest, out: &mut Output) {
        let Ok(line) = serde_json::from_str::<Line>(text) else { return out.unknown_line(text) };
        if let Some(id) = &line.session_id {
            out.set_conversation_id(id);
        }
        let part = line.part.unwrap_or_default();
        match line.kind.as_deref() {
            Some("step_start") => {
                // Steps repeat within a turn, and a step after an error means that opencode retries.
                out.reopen();
                if !std::mem::replace(&mut self.init_emitted, true) {
                    out.emit(&Event::init(line.session_id.unwrap_or_default(), line.model));
                }
            }
            Some("text") => {
                let text = part.text.or(line.content).or(part.content).unwrap_or_default();
                out.emit(&Event::text(text));
            }
            Some("tool_use") => tool_use(&part, out),
            Some("message.part.updated") => self.on_part_updated(&part, out),
            Some("step_finish") => {
                // Probably the last line of the turn. The exit status confirms it.
                if part.reason.as_deref() != Some("tool-calls") {
                    out.end_provisionally(Verdict::Result);
                }
            }
            Some("done") => out.end_provisionally(Verdict::Result),
            Some("error") => {
                let reason = line.error.as_ref().or(line.message.as_ref()).map(reason);
                out.fail(reason.unwrap_or_else(|| "it ended with an error".into()));
            }
            Some("reasoning") => {}
            _ => out.unknown_line(text),
        }
    }
}

impl Opencode {
    /// The flat form: parts with growing text.
    fn on_part_updated(&mut self, part: &Part, out: &mut Output) {
        match part.kind.as_deref() {
            Some("text") => {
                let text = part.text.as_deref().or(part.content.as_deref()).unwrap_or_default();
                let id = part.id.as_deref().unwrap_or_default();
                if id.is_empty() {
                    return out.emit(&Event::partial(text));
                }
                if self.part != id {
                    (self.part, self.emitted_bytes) = (id.to_owned(), 0);
                }
                if let Some(new) = text.get(self.emitted_bytes..).filter(|new| !new.is_empty()) {
                    out.emit(&Event::partial(new));
                }
                self.emitted_bytes = text.len();
            }
            Some("tool") => tool_use(part, out),
            _ => {}
        }
    }
}

/// A call and its result. They are one line, written when the call has ended.
fn tool_use(part: &Part, out: &mut Output) {
    let name = tool_name(part.tool.as_deref().or(part.name.as_deref()).unwrap_or_default());
    let state = part.state.as_ref().filter(|state| state.is_object());
    let member = |name: &str| state.and_then(|state| state.get(name)).cloned();
    let input = member("input").or_else(|| part.input.clone());
    let status = member("status").and_then(|status| status.as_str().map(str::to_owned));
    let status =
        status.or_else(|| part.state.as_ref()?.as_str().map(str::to_owned)).or_else(|| part.status.clone());
    let result = member("output")
        .or_else(|| member("error"))
        .or_else(|| part.output.clone())
        .or_else(|| part.error.clone());
    let is_over = matches!(status.as_deref(), Some("completed" | "error"));
    if !is_over || state.is_some() {
        let input = input.and_then(|input| raw(&input));
        out.emit(&Event { input, ..Event::tool(name.clone()) });
    }
    if is_over {
        let message = result.as_ref().map(text_of).unwrap_or_default();
        out.emit(&Event { message: Some(message.into()), ..Event::tool(name) });
    }
}

/// The message of `{name, data: {message}}`, or of an older form.
fn reason(error: &Value) -> String {
    let data = error.get("data").and_then(|data| data.get("message")).and_then(Value::as_str);
    match (error.get("name").and_then(Value::as_str), data) {
        (_, Some(message)) => without_json(message),
        (Some(name), None) => name.to_owned(),
        (None, None) => json::reason(error),
    }
}

/// The tool name that all adapters use.
fn tool_name(name: &str) -> String {
    match name.to_lowercase().as_str() {
        "write" | "multiedit" => "edit".into(),
        "task" => "subagent".into(),
        other => other.to_owned(),
    }
}
