//! gemini: `-p` with stream-json output.

use super::calls::Calls;
use super::json::{reason, without_json, words};
use super::spoken::Spoken;
use super::{Agent, Call, Mode, Task};
use crate::event::Event;
use crate::output::Output;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Gemini {
    calls: Calls,
    complaint: Option<String>,
    spoken: Spoken,
    /// The conversation began with this turn.
    is_new: bool,
}

pub(crate) fn call(task: &Task) -> Call {
    // What is read goes before what is given here, which is nothing.
    let mut arguments: Vec<std::ffi::OsString> = vec!["--prompt=".into()];
    arguments.extend(["--output-format", "stream-json"].map(Into::into));
    arguments.extend(mode(task.mode).iter().map(Into::into));
    arguments.extend(task.choices("--resume"));
    Call {
        arguments,
        environment: environment(),
        agent: Agent::Gemini(Gemini { is_new: task.sdk_id.is_none(), ..Gemini::default() }),
    }
}

/// It would start a second copy of itself that does not hear our signals, and refuses directories that nobody has
/// confirmed in its own dialog.
pub(super) fn environment() -> Vec<(&'static str, String)> {
    vec![("GEMINI_CLI_NO_RELAUNCH", "true".into()), ("GEMINI_CLI_TRUST_WORKSPACE", "true".into())]
}

fn mode(mode: Mode) -> &'static [&'static str] {
    match mode {
        Mode::Auto => &["--approval-mode", "yolo"],
        Mode::Code => &["--approval-mode", "auto_edit"],
        Mode::Plan => &["--approval-mode", "plan"],
        // Without a way to ask it does nothing that would have to be asked about.
        Mode::Ask => &["--approval-mode", "default"],
    }
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

impl Gemini {
    pub(crate) fn hear(&mut self, text: &str, out: &mut Output) {
        let Ok(line) = serde_json::from_str::<Line<'_>>(text) else { return out.unknown(text) };
        match line.kind.as_deref() {
            Some("init") => {
                let id = line.session_id.unwrap_or_default();
                out.converses(&id);
                out.tell(&Event::init(id, line.model));
            }
            Some("message") if line.role.as_deref() == Some("assistant") => {
                let content = line.content.unwrap_or_default();
                match line.delta {
                    Some(true) => self.spoken.piece(&content, out),
                    _ => out.tell(&Event::text(content)),
                }
            }
            Some("message") => {}
            Some("tool_use") => {
                self.spoken.over(out);
                let tool = tool(line.tool_name.as_deref().unwrap_or_default());
                if let Some(id) = line.tool_id {
                    self.calls.remember(id, tool);
                }
                let input = line.parameters.map(Cow::Borrowed);
                out.tell(&Event { input, ..Event::tool(tool) });
            }
            Some("tool_result") => {
                let id = line.tool_id.unwrap_or_default();
                let name = self.calls.tool(&id).unwrap_or_else(|| named_by(&id));
                // A tool that failed ends nothing: the model is told.
                let said = line.output.as_ref().or(line.error.as_ref()).map(words);
                let said = said.unwrap_or_default();
                out.tell(&Event { message: Some(said.into()), ..Event::tool(name.to_owned()) });
            }
            // "non-fatal by its docs": a result follows.
            Some("error") => {
                let said = line.message.as_deref().map(without_json);
                let said = said.or_else(|| line.error.as_ref().map(reason));
                let said = said.unwrap_or_default();
                out.tell(&Event::notice("warning", said.clone()));
                self.complaint = Some(said);
            }
            Some("result") if line.status.as_deref() == Some("error") => {
                self.spoken.over(out);
                // It does not find a conversation again that has no answer in it.
                out.is_lost |= self.is_new;
                let said = line.error.as_ref().map(reason).or_else(|| self.complaint.take());
                out.fail(said.unwrap_or_else(|| "it ended with an error".into()));
            }
            Some("result") => {
                self.spoken.over(out);
                out.succeed(serde_json::from_str::<&RawValue>(text).ok());
            }
            _ => out.unknown(text),
        }
    }

    pub(crate) fn complaint(&self) -> Option<&str> {
        self.complaint.as_deref()
    }
}

/// Ids of calls begin with the name of the tool: `run_shell_command__run_shell_command_1794768969654_0`.
fn named_by(id: &str) -> &str {
    let name = id.split("__").next().unwrap_or(id);
    tool(name.split('-').next().unwrap_or(name))
}

/// One name for what all agents have.
fn tool(name: &str) -> &str {
    match name {
        "run_shell_command" => "bash",
        "write_file" | "replace" => "edit",
        "read_file" => "read",
        other => other,
    }
}
