//! Adapter for codex before 0.120: `exec --json`, with its nested items and the flat ones of older versions.

use super::json::{raw, reason, text_of, without_json};
use super::profile::Flags;
use super::{Adapter, Interface, Invocation, TurnRequest};
use crate::event::Event;
use crate::turn::output::Output;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CodexExec {
    /// Bytes of the current message that were emitted.
    emitted_bytes: usize,
    /// The last error line. It is fatal only if codex then exits without finishing the turn.
    last_error: Option<String>,
}

pub(super) fn invocation(request: &TurnRequest, flags: &Flags) -> Invocation {
    let mut arguments = flags.command();
    arguments.extend(flags.mode(request.mode));
    arguments.extend(flags.model(request));
    arguments.extend(["--cd".into(), request.path.clone().into()]);
    // The options of `exec` precede `resume`, which does not accept them.
    arguments.extend(flags.resume(request));
    arguments.push("-".into());
    Invocation { arguments, environment: Vec::new(), adapter: Adapter::CodexExec(CodexExec::default()) }
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
    /// The flat form has the item's members here.
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

impl Interface for CodexExec {
    fn on_line(&mut self, text: &str, _: &TurnRequest, out: &mut Output) {
        self.parse(text, out);
    }

    fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }
}

impl CodexExec {
    pub(super) fn parse(&mut self, text: &str, out: &mut Output) {
        let Ok(line) = serde_json::from_str::<Line>(text) else { return out.unknown_line(text) };
        let Some(kind) = line.kind.as_deref() else { return out.unknown_line(text) };
        let (item, is_nested) = match line.item {
            Some(item) => (item, true),
            None => (line.flat, false),
        };
        match kind {
            "thread.started" => {
                let id = line.thread_id.unwrap_or_default();
                out.set_conversation_id(&id);
                out.emit(&Event::init(id, line.model));
            }
            "item.started" => self.on_item_started(&item, is_nested, out),
            "item.updated" => self.on_item_updated(&item, out),
            "item.completed" => {
                if !self.on_item_completed(&item, out) {
                    out.unknown_line(text);
                }
            }
            "turn.completed" => {
                self.last_error = None;
                out.succeed(serde_json::from_str::<&RawValue>(text).ok());
            }
            "turn.failed" => {
                let reason = line.error.as_ref().map(reason).or_else(|| self.last_error.take());
                out.fail(reason.unwrap_or_else(|| "Turn failed".into()));
            }
            // "`error` lines are not fatal, only `turn.failed` is": most of them report a retry.
            "error" => {
                let message = line.message.as_ref().map(reason).unwrap_or_default();
                out.emit(&Event::notice("warning", message.clone()));
                self.last_error = Some(message);
            }
            "turn.started" | "item.plan.delta" => {}
            _ => out.unknown_line(text),
        }
    }

    fn on_item_started(&mut self, item: &Item, is_nested: bool, out: &mut Output) {
        match item.name() {
            "command_execution" => {
                let input = item.command.as_ref().map(|command| match is_nested {
                    true => serde_json::json!({ "command": command }),
                    false => command.clone(),
                });
                out.emit(&Event { input: input.as_ref().and_then(raw), ..Event::tool("bash") });
            }
            "file_change" => {
                let input = item.changes.as_ref().or(item.file.as_ref()).and_then(raw);
                out.emit(&Event { input, ..Event::tool("edit") });
            }
            "mcp_tool_call" => {
                let input = item.arguments.as_ref().or(item.parameters.as_ref()).and_then(raw);
                out.emit(&Event { input, ..Event::tool(item.tool_name()) });
            }
            "web_search" => {
                let input = item.query.as_ref().and_then(|query| raw(&Value::from(query.as_str())));
                out.emit(&Event { input, ..Event::tool("web_search") });
            }
            "agent_message" => self.emitted_bytes = 0,
            _ => {}
        }
    }

    /// Each update repeats the whole text. Only its new tail is emitted.
    fn on_item_updated(&mut self, item: &Item, out: &mut Output) {
        if item.name() != "agent_message" {
            return;
        }
        let text = item.text.as_deref().unwrap_or_default();
        // A rewritten text may be cut within a character; then it has no valid tail.
        if let Some(new) = text.get(self.emitted_bytes..).filter(|new| !new.is_empty()) {
            out.emit(&Event::partial(new));
        }
        self.emitted_bytes = text.len();
    }

    fn on_item_completed(&mut self, item: &Item, out: &mut Output) -> bool {
        let message = |text: Option<String>| text.map(Cow::Owned);
        match item.name() {
            "agent_message" => {
                self.emitted_bytes = 0;
                out.emit(&Event::text(item.text.clone().unwrap_or_default()));
            }
            "command_execution" => {
                let output = item.aggregated_output.clone().or_else(|| item.output.clone());
                out.emit(&Event { message: message(output), ..Event::tool("bash") });
            }
            "file_change" => {
                let changed = item.changes.as_ref().map(describe_changes);
                let summary = item.summary.clone().or(changed).or_else(|| item.status.clone());
                out.emit(&Event { message: message(summary), ..Event::tool("edit") });
            }
            "mcp_tool_call" => {
                let result = item.error.as_ref().or(item.result.as_ref()).map(text_of);
                out.emit(&Event { message: message(result), ..Event::tool(item.tool_name()) });
            }
            // "`item` type `error` is not fatal".
            "error" => {
                let text = item.message.as_deref().map(without_json).unwrap_or_default();
                out.emit(&Event::notice("warning", text));
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
fn describe_changes(changes: &Value) -> String {
    let each = changes.as_array().into_iter().flatten().map(|change| {
        let member = |name: &str| change.get(name).and_then(Value::as_str).unwrap_or("?").to_owned();
        format!("{} {}", member("kind"), member("path"))
    });
    each.collect::<Vec<_>>().join(", ")
}
