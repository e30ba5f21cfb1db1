//! opencode: `run --format json`, its parts and the flat lines of older versions.

use super::json::{self, raw, without_json, words};
use super::{Agent, Call, Mode, Task};
use crate::event::Event;
use crate::output::{Held, Output};
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Opencode {
    begun: bool,
    /// The part whose text comes cumulatively, and how many bytes of it have been told.
    part: String,
    told: usize,
}

pub(crate) fn call(task: &Task) -> Call {
    let mut arguments: Vec<std::ffi::OsString> = vec!["run".into()];
    arguments.extend(["--format", "json"].map(Into::into));
    arguments.extend(mode(task.mode).iter().map(Into::into));
    arguments.extend(task.choices("--session"));
    Call { arguments, environment: Vec::new(), agent: Agent::Opencode(Opencode::default()) }
}

fn mode(mode: Mode) -> &'static [&'static str] {
    match mode {
        Mode::Auto => &["--auto"],
        Mode::Code => &[],
        // Without a way to ask, what would be asked about is not done.
        Mode::Plan | Mode::Ask => &["--agent", "plan"],
    }
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

impl Opencode {
    pub(crate) fn hear(&mut self, text: &str, out: &mut Output) {
        let Ok(line) = serde_json::from_str::<Line>(text) else { return out.unknown(text) };
        if let Some(id) = &line.session_id {
            out.converses(id);
        }
        let part = line.part.unwrap_or_default();
        match line.kind.as_deref() {
            Some("step_start") => {
                // Steps repeat within a turn, and begin anew after a failure that it gets over.
                out.go_on();
                if !std::mem::replace(&mut self.begun, true) {
                    out.tell(&Event::init(line.session_id.unwrap_or_default(), line.model));
                }
            }
            Some("text") => {
                let text = part.text.or(line.content).or(part.content).unwrap_or_default();
                out.tell(&Event::text(text));
            }
            Some("tool_use") => tool_use(&part, out),
            Some("message.part.updated") => self.updated(&part, out),
            Some("step_finish") => {
                // The last line of a turn; its exit tells whether it was.
                if part.reason.as_deref() != Some("tool-calls") {
                    out.hold(Held::Result);
                }
            }
            Some("done") => out.hold(Held::Result),
            Some("error") => {
                let reason = line.error.as_ref().or(line.message.as_ref()).map(reason);
                out.fail(reason.unwrap_or_else(|| "it ended with an error".into()));
            }
            Some("reasoning") => {}
            _ => out.unknown(text),
        }
    }

    /// The flat shape: parts as they grow.
    fn updated(&mut self, part: &Part, out: &mut Output) {
        match part.kind.as_deref() {
            Some("text") => {
                let text = part.text.as_deref().or(part.content.as_deref()).unwrap_or_default();
                let id = part.id.as_deref().unwrap_or_default();
                if id.is_empty() {
                    return out.tell(&Event::partial(text));
                }
                if self.part != id {
                    (self.part, self.told) = (id.to_owned(), 0);
                }
                if let Some(new) = text.get(self.told..).filter(|new| !new.is_empty()) {
                    out.tell(&Event::partial(new));
                }
                self.told = text.len();
            }
            Some("tool") => tool_use(part, out),
            _ => {}
        }
    }
}

/// A call and its result, which come together when the call is over.
fn tool_use(part: &Part, out: &mut Output) {
    let name = tool(part.tool.as_deref().or(part.name.as_deref()).unwrap_or_default());
    let state = part.state.as_ref().filter(|state| state.is_object());
    let member = |name: &str| state.and_then(|state| state.get(name)).cloned();
    let input = member("input").or_else(|| part.input.clone());
    let status = member("status").and_then(|status| status.as_str().map(str::to_owned));
    let status =
        status.or_else(|| part.state.as_ref()?.as_str().map(str::to_owned)).or_else(|| part.status.clone());
    let said = member("output")
        .or_else(|| member("error"))
        .or_else(|| part.output.clone())
        .or_else(|| part.error.clone());
    let is_over = matches!(status.as_deref(), Some("completed" | "error"));
    if !is_over || state.is_some() {
        let input = input.and_then(|input| raw(&input));
        out.tell(&Event { input, ..Event::tool(name.clone()) });
    }
    if is_over {
        let message = said.as_ref().map(words).unwrap_or_default();
        out.tell(&Event { message: Some(message.into()), ..Event::tool(name) });
    }
}

/// The message of `{name, data: {message}}`, or of what older versions have.
fn reason(error: &Value) -> String {
    let data = error.get("data").and_then(|data| data.get("message")).and_then(Value::as_str);
    match (error.get("name").and_then(Value::as_str), data) {
        (_, Some(message)) => without_json(message),
        (Some(name), None) => name.to_owned(),
        (None, None) => json::reason(error),
    }
}

/// One name for what all agents have.
fn tool(name: &str) -> String {
    match name.to_lowercase().as_str() {
        "write" | "multiedit" => "edit".into(),
        "task" => "subagent".into(),
        other => other.to_owned(),
    }
}
