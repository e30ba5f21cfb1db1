//! codex: `exec --json`, its nested items and the flat ones of older versions.

use super::json::{raw, reason, without_json, words};
use super::{Agent, Call, Mode, Task};
use crate::event::Event;
use crate::output::Output;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Codex {
    /// Bytes of the message under way that have been told.
    told: usize,
    /// What it last complained of; fatal only if it then ends without having finished.
    complaint: Option<String>,
}

pub(crate) fn call(task: &Task) -> Call {
    let mut arguments: Vec<std::ffi::OsString> =
        ["exec", "--json", "--skip-git-repo-check"].map(Into::into).to_vec();
    arguments.extend(mode(task.mode).iter().map(Into::into));
    if let Some(model) = &task.model {
        arguments.extend(["--model".into(), model.into()]);
    }
    arguments.extend(["--cd".into(), task.path.clone().into()]);
    // Options of `exec` stand before `resume`, which has none of them.
    if let Some(id) = &task.sdk_id {
        arguments.extend(["resume".into(), id.into()]);
    }
    arguments.push("-".into());
    Call { arguments, environment: Vec::new(), agent: Agent::Codex(Codex::default()) }
}

fn mode(mode: Mode) -> &'static [&'static str] {
    match mode {
        Mode::Auto => &["--dangerously-bypass-approvals-and-sandbox"],
        Mode::Code => &["--sandbox", "workspace-write"],
        // Without its richer interface nobody can be asked: what would be asked about is not done.
        Mode::Plan | Mode::Ask => &["--sandbox", "read-only"],
    }
}

#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    thread_id: Option<String>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    item: Option<Item>,
    #[serde(default)]
    error: Option<Value>,
    #[serde(default)]
    message: Option<Value>,
    /// The flat shape has the item's members here.
    #[serde(flatten)]
    flat: Item,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Item {
    #[serde(rename = "type")]
    kind: Option<String>,
    item_type: Option<String>,
    text: Option<String>,
    command: Option<Value>,
    aggregated_output: Option<String>,
    output: Option<String>,
    changes: Option<Value>,
    file: Option<Value>,
    summary: Option<String>,
    server: Option<String>,
    tool: Option<String>,
    tool_name: Option<String>,
    arguments: Option<Value>,
    parameters: Option<Value>,
    result: Option<Value>,
    error: Option<Value>,
    message: Option<String>,
    query: Option<String>,
    status: Option<String>,
}

impl Codex {
    pub(crate) fn hear(&mut self, text: &str, out: &mut Output) {
        let Ok(line) = serde_json::from_str::<Line>(text) else { return out.unknown(text) };
        let Some(kind) = line.kind.as_deref() else { return out.unknown(text) };
        let (item, is_nested) = match line.item {
            Some(item) => (item, true),
            None => (line.flat, false),
        };
        match kind {
            "thread.started" => {
                let id = line.thread_id.unwrap_or_default();
                out.converses(&id);
                out.tell(&Event::init(id, line.model));
            }
            "item.started" => self.started(&item, is_nested, out),
            "item.updated" => self.updated(&item, out),
            "item.completed" => {
                if !self.completed(&item, out) {
                    out.unknown(text);
                }
            }
            "turn.completed" => {
                self.complaint = None;
                out.succeed(serde_json::from_str::<&RawValue>(text).ok());
            }
            "turn.failed" => {
                let said = line.error.as_ref().map(reason).or_else(|| self.complaint.take());
                out.fail(said.unwrap_or_else(|| "Turn failed".into()));
            }
            // "`error` lines are not fatal, only `turn.failed` is": most of them tell of another try.
            "error" => {
                let complaint = line.message.as_ref().map(reason).unwrap_or_default();
                out.tell(&Event::notice("warning", complaint.clone()));
                self.complaint = Some(complaint);
            }
            "turn.started" | "item.plan.delta" => {}
            _ => out.unknown(text),
        }
    }

    /// What to say when it ends without having finished.
    pub(crate) fn complaint(&self) -> Option<&str> {
        self.complaint.as_deref()
    }

    fn started(&mut self, item: &Item, is_nested: bool, out: &mut Output) {
        match item.name() {
            "command_execution" => {
                let input = item.command.as_ref().map(|command| match is_nested {
                    true => serde_json::json!({ "command": command }),
                    false => command.clone(),
                });
                out.tell(&Event { input: input.as_ref().and_then(raw), ..Event::tool("bash") });
            }
            "file_change" => {
                let input = item.changes.as_ref().or(item.file.as_ref()).and_then(raw);
                out.tell(&Event { input, ..Event::tool("edit") });
            }
            "mcp_tool_call" => {
                let input = item.arguments.as_ref().or(item.parameters.as_ref()).and_then(raw);
                out.tell(&Event { input, ..Event::tool(item.tool_name()) });
            }
            "web_search" => {
                let input = item.query.as_ref().and_then(|query| raw(&Value::from(query.as_str())));
                out.tell(&Event { input, ..Event::tool("web_search") });
            }
            "agent_message" => self.told = 0,
            _ => {}
        }
    }

    /// The text so far comes again and again: what is new of it is told.
    fn updated(&mut self, item: &Item, out: &mut Output) {
        if item.name() != "agent_message" {
            return;
        }
        let text = item.text.as_deref().unwrap_or_default();
        // A text that was rewritten in between has no new tail that makes sense.
        if let Some(new) = text.get(self.told..).filter(|new| !new.is_empty()) {
            out.tell(&Event::partial(new));
        }
        self.told = text.len();
    }

    fn completed(&mut self, item: &Item, out: &mut Output) -> bool {
        let message = |text: Option<String>| text.map(Cow::Owned);
        match item.name() {
            "agent_message" => {
                self.told = 0;
                out.tell(&Event::text(item.text.clone().unwrap_or_default()));
            }
            "command_execution" => {
                let output = item.aggregated_output.clone().or_else(|| item.output.clone());
                out.tell(&Event { message: message(output), ..Event::tool("bash") });
            }
            "file_change" => {
                let changed = item.changes.as_ref().map(changes);
                let summary = item.summary.clone().or(changed).or_else(|| item.status.clone());
                out.tell(&Event { message: message(summary), ..Event::tool("edit") });
            }
            "mcp_tool_call" => {
                let said = item.error.as_ref().or(item.result.as_ref()).map(words);
                out.tell(&Event { message: message(said), ..Event::tool(item.tool_name()) });
            }
            // "`item` type `error` is not fatal".
            "error" => {
                let said = item.message.as_deref().map(without_json).unwrap_or_default();
                out.tell(&Event::notice("warning", said));
            }
            "reasoning" | "plan" | "web_search" | "todo_list" | "collab_tool_call" => {}
            _ => return false,
        }
        true
    }
}

impl Item {
    fn name(&self) -> &str {
        self.item_type.as_deref().or(self.kind.as_deref()).unwrap_or_default()
    }

    fn tool_name(&self) -> String {
        match (&self.tool_name, &self.server, &self.tool) {
            (Some(name), _, _) => name.clone(),
            (None, Some(server), Some(tool)) => format!("{server}.{tool}"),
            (None, _, tool) => tool.clone().unwrap_or_default(),
        }
    }
}

/// `add src/a.rs, update src/b.rs`
fn changes(changes: &Value) -> String {
    let each = changes.as_array().into_iter().flatten().map(|change| {
        let member = |name: &str| change.get(name).and_then(Value::as_str).unwrap_or("?").to_owned();
        format!("{} {}", member("kind"), member("path"))
    });
    each.collect::<Vec<_>>().join(", ")
}
