//! claude: its profile, and the adapter for `-p` with stream-json output. In ask mode and for a warm process, input is stream-json too.

use super::profile::{AgentDir, ConversationStore, EntryPolicy, Flags, Login, Profile};
use super::tool_calls::ToolCalls;
use super::{Adapter, Interface, Invocation, Mode, PermissionDecision, TurnRequest};
use crate::event::{Event, Kind};
use crate::turn::output::{Output, PermissionRequest};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::borrow::Cow;

/// claude's properties.
pub(super) static PROFILE: Profile = Profile {
    name: "claude",
    title: "Claude",
    packages: &["@anthropic-ai/claude-code"],
    interactive_since: None,
    can_stay_warm: true,
    login: Login { command: "`claude` and /login", key: "ANTHROPIC_API_KEY" },
    instructions: "CLAUDE.md",
    skills: &[".claude", "skills"],
    flags: Flags {
        command: &["-p", "--output-format", "stream-json", "--include-partial-messages", "--verbose"],
        auto: &["--dangerously-skip-permissions"],
        code: &["--permission-mode", "acceptEdits"],
        // By default, a model decides in plan mode which commands run. With this setting, they are denied.
        plan: &["--permission-mode", "plan", "--settings", "{\"useAutoModeDuringPlan\":false}"],
        ask: &["--permission-mode", "default"],
        model: "--model",
        resume: "--resume",
    },
    acp: None,
    conversations: Some(ConversationStore {
        variable: "CLAUDE_CONFIG_DIR",
        default: ".claude",
        subdir: "projects",
    }),
    dirs: &[
        AgentDir {
            variable: Some("CLAUDE_CONFIG_DIR"),
            default: Some(".claude"),
            subdir: None,
            entries: DIR_ENTRIES,
            is_hidden: false,
        },
        AgentDir {
            variable: None,
            default: Some(".claude.json"),
            subdir: None,
            entries: &[(".claude.json", EntryPolicy::Copy)],
            is_hidden: false,
        },
    ],
    project_dir: None,
    invocation,
};

const DIR_ENTRIES: &[(&str, EntryPolicy)] = &[
    ("projects", EntryPolicy::Conversations),
    (".credentials.json", EntryPolicy::Login),
    (".claude.json", EntryPolicy::Copy),
    ("backups", EntryPolicy::SessionOnly),
    ("cache", EntryPolicy::SessionOnly),
    ("debug", EntryPolicy::SessionOnly),
    ("file-history", EntryPolicy::SessionOnly),
    ("history.jsonl", EntryPolicy::SessionOnly),
    ("ide", EntryPolicy::SessionOnly),
    ("paste-cache", EntryPolicy::SessionOnly),
    ("plans", EntryPolicy::SessionOnly),
    // The socket and the token of a relay.
    ("remote", EntryPolicy::SessionOnly),
    ("session-env", EntryPolicy::SessionOnly),
    ("sessions", EntryPolicy::SessionOnly),
    ("shell-snapshots", EntryPolicy::SessionOnly),
    ("statsig", EntryPolicy::SessionOnly),
    ("stats-cache.json", EntryPolicy::SessionOnly),
    ("tasks", EntryPolicy::SessionOnly),
    ("telemetry", EntryPolicy::SessionOnly),
    ("todos", EntryPolicy::SessionOnly),
];

fn invocation(request: &TurnRequest) -> Invocation {
    let stream_json_input = request.mode == Mode::Ask || request.keep_process;
    let flags = &PROFILE.flags;
    let mut arguments = flags.command();
    arguments.extend(flags.mode(request.mode));
    if stream_json_input {
        arguments.extend(["--input-format", "stream-json"].map(Into::into));
    }
    if request.mode == Mode::Ask {
        arguments.extend(["--permission-prompt-tool", "stdio"].map(Into::into));
    }
    arguments.extend(flags.model(request));
    arguments.extend(flags.resume(request));
    Invocation {
        arguments,
        environment: Vec::new(),
        adapter: Adapter::Claude(Claude {
            stream_json_input,
            keeps_process: request.keep_process,
            ..Claude::default()
        }),
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Claude {
    /// Messages and decisions are sent as lines of JSON.
    stream_json_input: bool,
    /// The process stays after the turn.
    keeps_process: bool,
    /// The CLI has written output whose result has not come yet.
    is_busy: bool,
    tool_calls: ToolCalls,
}

/// The members of a line that the adapter uses.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    subtype: Option<String>,
    #[serde(default)]
    session_id: Option<String>,
    #[serde(default)]
    model: Option<String>,
    #[serde(borrow, default)]
    event: Option<&'a RawValue>,
    #[serde(borrow, default)]
    message: Option<&'a RawValue>,
    #[serde(default)]
    tool_name: Option<String>,
    #[serde(borrow, default)]
    status: Option<&'a RawValue>,
    #[serde(default)]
    is_error: Option<bool>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    errors: Option<&'a RawValue>,
    #[serde(default)]
    request_id: Option<String>,
    #[serde(borrow, default)]
    request: Option<&'a RawValue>,
}

/// A raw event of the model's stream.
#[derive(Deserialize)]
struct Streamed {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    delta: Option<Delta>,
    #[serde(default)]
    content_block: Option<Block>,
}

#[derive(Deserialize)]
struct Delta {
    #[serde(default)]
    text: Option<String>,
}

/// A block of a message.
#[derive(Deserialize)]
struct Block {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    input: Option<Box<RawValue>>,
    #[serde(default)]
    tool_use_id: Option<String>,
    #[serde(default)]
    content: Option<Value>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Request {
    #[serde(default)]
    subtype: Option<String>,
    #[serde(default)]
    tool_name: Option<String>,
    #[serde(default)]
    input: Value,
}

impl Interface for Claude {
    fn start(&mut self, request: &TurnRequest, out: &mut Output) {
        if self.stream_json_input {
            let content = json!([{ "type": "text", "text": request.message }]);
            out.send_line(&json!({ "type": "user", "message": { "role": "user", "content": content } }));
        } else {
            out.send_message(&request.message);
        }
    }

    fn on_line(&mut self, text: &str, _: &TurnRequest, out: &mut Output) {
        let Ok(line) = serde_json::from_str::<Line<'_>>(text) else { return out.unknown_line(text) };
        self.is_busy = match (line.kind.as_deref(), line.subtype.as_deref()) {
            (Some("result"), _) => false,
            (Some("stream_event" | "assistant" | "user" | "tool_progress" | "control_request"), _)
            | (Some("system"), Some("init")) => true,
            _ => self.is_busy,
        };
        let understood = match line.kind.as_deref() {
            Some("stream_event") => self.streamed(&line, out),
            Some("assistant") => self.assistant(&line, out),
            Some("user") => self.tool_results(&line, out),
            Some("system") => {
                system(&line, text, out);
                Some(())
            }
            Some("tool_progress") => {
                let message =
                    line.status.and_then(|status| serde_json::from_str::<String>(status.get()).ok());
                let event = Event::tool(line.tool_name.unwrap_or_default());
                out.emit(&Event { message: message.map(Cow::Owned), raw: raw(text), ..event });
                Some(())
            }
            Some("result") => {
                self.result(&line, text, out);
                Some(())
            }
            Some("control_request") => {
                on_control_request(&line, out);
                Some(())
            }
            Some("control_cancel_request") => {
                out.cancelled_requests.extend(line.request_id);
                Some(())
            }
            Some("control_response" | "keep_alive") => Some(()),
            _ => None,
        };
        if understood.is_none() {
            out.unknown_line(text);
        }
    }

    fn on_decision(&mut self, request: &PermissionRequest, decision: &PermissionDecision, out: &mut Output) {
        let response = match decision.allow {
            true => json!({ "behavior": "allow", "updatedInput": request.input }),
            false => json!({ "behavior": "deny", "message": decision.note }),
        };
        let response = json!({ "subtype": "success", "request_id": request.id, "response": response });
        out.send_line(&json!({ "type": "control_response", "response": response }));
    }

    fn keeps_process(&self) -> bool {
        self.keeps_process
    }

    fn is_busy(&self) -> bool {
        self.is_busy
    }
}

impl Claude {
    fn streamed(&mut self, line: &Line<'_>, out: &mut Output) -> Option<()> {
        let streamed: Streamed = serde_json::from_str(line.event?.get()).ok()?;
        match streamed.kind.as_deref()? {
            "content_block_delta" => {
                if let Some(text) = streamed.delta.and_then(|delta| delta.text) {
                    out.emit(&Event::partial(text));
                }
            }
            "content_block_start" => {
                let block = streamed.content_block?;
                if let (Some("tool_use"), Some(name)) = (block.kind.as_deref(), block.name) {
                    out.emit(&Event::tool(name));
                }
            }
            _ => {}
        }
        Some(())
    }

    fn assistant(&mut self, line: &Line<'_>, out: &mut Output) -> Option<()> {
        let message: Message<'_> = serde_json::from_str(line.message?.get()).ok()?;
        let blocks: Vec<Block> = serde_json::from_str(message.content?.get()).ok()?;
        let mut text = String::new();
        for block in blocks {
            match block.kind.as_deref() {
                Some("tool_use") => {
                    let name = block.name.unwrap_or_default();
                    if let Some(id) = block.id {
                        self.tool_calls.remember(id, name.clone());
                    }
                    out.emit(&Event { input: block.input.map(Cow::Owned), ..Event::tool(name) });
                }
                Some("text") => text.push_str(&block.text.unwrap_or_default()),
                _ => {}
            }
        }
        if !text.is_empty() {
            out.emit(&Event::text(text));
        }
        Some(())
    }

    /// Tool results are in messages of the user.
    fn tool_results(&self, line: &Line<'_>, out: &mut Output) -> Option<()> {
        let message: Message<'_> = serde_json::from_str(line.message?.get()).ok()?;
        // An echoed prompt is a string, not a list of blocks.
        let blocks: Vec<Block> = serde_json::from_str(message.content?.get()).unwrap_or_default();
        for block in blocks.into_iter().filter(|block| block.kind.as_deref() == Some("tool_result")) {
            let id = block.tool_use_id.unwrap_or_default();
            let name = self.tool_calls.tool(&id).map(str::to_owned);
            let message = block.content.map(|content| plain(&content)).unwrap_or_default();
            let event = Event::tool(name.unwrap_or_default());
            out.emit(&Event { message: Some(message.into()), ..event });
        }
        Some(())
    }

    fn result(&mut self, line: &Line<'_>, text: &str, out: &mut Output) {
        if let Some(id) = &line.session_id {
            out.set_conversation_id(id);
        }
        let subtype = line.subtype.as_deref().unwrap_or_default();
        if line.is_error == Some(true) || subtype.starts_with("error") {
            out.fail(reason(line, subtype));
        } else {
            out.succeed(serde_json::from_str(text).ok());
        }
        if self.stream_json_input && !self.keeps_process {
            out.close_stdin();
        }
    }
}

/// The CLI's reason of a failure.
fn reason(line: &Line<'_>, subtype: &str) -> String {
    let text = line.result.and_then(|result| serde_json::from_str::<String>(result.get()).ok());
    let errors = line.errors.and_then(|errors| serde_json::from_str::<Vec<String>>(errors.get()).ok());
    let text = text.filter(|text| !text.trim().is_empty());
    text.or_else(|| errors.map(|errors| errors.join("; ")).filter(|text| !text.is_empty()))
        .unwrap_or_else(|| format!("it ended with {}", if subtype.is_empty() { "an error" } else { subtype }))
}

fn raw(text: &str) -> Option<Cow<'_, RawValue>> {
    serde_json::from_str::<&RawValue>(text).ok().map(Cow::Borrowed)
}

fn system(line: &Line<'_>, text: &str, out: &mut Output) {
    if let Some(id) = &line.session_id {
        out.set_conversation_id(id);
    }
    let own = |text: &Option<String>| text.clone().map(Cow::Owned);
    out.emit(&Event {
        subtype: own(&line.subtype),
        session_id: own(&line.session_id),
        model: own(&line.model),
        raw: raw(text),
        ..Event::new(Kind::System)
    });
}

/// A request of the CLI, mostly for the permission to use a tool. Each gets a response, or the CLI would wait forever.
fn on_control_request(line: &Line<'_>, out: &mut Output) {
    let Some(id) = line.request_id.clone() else { return };
    let request = line.request.and_then(|request| serde_json::from_str::<Request>(request.get()).ok());
    match request {
        Some(request) if request.subtype.as_deref() == Some("can_use_tool") => {
            out.permission_requests.push(PermissionRequest {
                id,
                tool: request.tool_name.unwrap_or_default(),
                input: request.input,
            });
        }
        _ => {
            let error = json!({ "subtype": "error", "request_id": id, "error": "unsupported here" });
            out.send_line(&json!({ "type": "control_response", "response": error }));
        }
    }
}

/// The text of a tool result: a string, or blocks of text.
fn plain(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let texts = blocks.iter().filter_map(|block| block.get("text").and_then(Value::as_str));
            texts.collect::<Vec<_>>().join("\n")
        }
        other => other.to_string(),
    }
}
