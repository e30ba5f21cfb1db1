//! codex: `app-server`, which tells its text as it comes and asks before it does something.

use super::codex::Codex;
use super::json::{Message, raw, reason, words};
use super::{Agent, Answer, Call, Mode, Task};
use crate::event::Event;
use crate::output::{Ask, Output};
use crate::room::INPUT_BYTES_MAX;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::VecDeque;

/// Ids of our requests, one each.
const INITIALIZE: u64 = 1;
const THREAD: u64 = 2;
const TURN: u64 = 3;

/// Changes of files are remembered for questions about them, so many.
const CHANGES_MAX: usize = 16;
const CHANGES_BYTES_MAX: usize = 2 * INPUT_BYTES_MAX;

/// Programs around a command that a human need not be shown.
const SHELLS: [&str; 6] =
    ["/bin/bash", "/usr/bin/bash", "/bin/zsh", "/usr/bin/zsh", "/bin/sh", "/usr/bin/sh"];

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct AppServer {
    thread: String,
    changes: VecDeque<(String, Value)>,
    complaint: Option<String>,
    /// For lines of the other interface, which a stand-in may print whatever it is asked.
    plain: Codex,
}

pub(super) fn call() -> Call {
    Call {
        arguments: vec!["app-server".into()],
        environment: Vec::new(),
        agent: Agent::AppServer(AppServer::default()),
    }
}

impl AppServer {
    pub(super) fn begin(&self, out: &mut Output) {
        let client = json!({ "name": "outpost", "title": "Outpost", "version": env!("CARGO_PKG_VERSION") });
        out.say(&json!({ "id": INITIALIZE, "method": "initialize", "params": { "clientInfo": client } }));
    }

    pub(super) fn hear(&mut self, text: &str, task: &Task, out: &mut Output) {
        let Ok(message) = serde_json::from_str::<Message>(text) else { return out.unknown(text) };
        match (message.id, message.method) {
            (None, None) => self.plain.hear(text, out),
            (Some(id), None) => self.replied(&id, message.result, message.error, task, out),
            (Some(id), Some(method)) => self.asked(id, &method, &message.params, out),
            (None, Some(method)) => self.notified(&method, &message.params, out),
        }
    }

    fn replied(
        &mut self,
        id: &Value,
        result: Option<Value>,
        error: Option<Value>,
        task: &Task,
        out: &mut Output,
    ) {
        if let Some(error) = error {
            out.fail(reason(&error));
            out.hushed = true;
            return;
        }
        match id.as_u64() {
            Some(INITIALIZE) => {
                out.say(&json!({ "method": "initialized" }));
                out.say(&thread(task));
            }
            Some(THREAD) => {
                let result = result.unwrap_or_default();
                let id = result.pointer("/thread/id").and_then(Value::as_str).unwrap_or_default();
                self.thread = id.to_owned();
                out.converses(id);
                let model = result.get("model").and_then(Value::as_str).map(str::to_owned);
                out.tell(&Event::init(id.to_owned(), model));
                let input = json!([{ "type": "text", "text": task.message }]);
                let params = json!({ "threadId": id, "input": input });
                out.say(&json!({ "id": TURN, "method": "turn/start", "params": params }));
            }
            _ => {}
        }
    }

    /// It wants an answer. To what we do not know it gets one too, or it would wait for ever.
    fn asked(&mut self, id: Value, method: &str, params: &Value, out: &mut Output) {
        let id = id.to_string();
        match method {
            "item/commandExecution/requestApproval" => {
                let mut input = json!({ "command": command(params), "cwd": params.get("cwd") });
                for name in ["reason", "networkApprovalContext", "additionalPermissions"] {
                    if let Some(value) = params.get(name).filter(|value| !value.is_null()) {
                        input[name] = value.clone();
                    }
                }
                // What cannot be shown is not asked about.
                match input["command"].is_string() || input.get("networkApprovalContext").is_some() {
                    true => out.asks.push(Ask { id, tool: "bash".into(), input }),
                    false => decide(&id, "decline", out),
                }
            }
            "item/fileChange/requestApproval" => {
                let item = params.get("itemId").and_then(Value::as_str).unwrap_or_default();
                let known = self.changes.iter().rev().find(|(known, _)| known == item);
                match known {
                    Some((_, changes)) => {
                        out.asks.push(Ask { id, tool: "edit".into(), input: json!({ "changes": changes }) });
                    }
                    None => {
                        let why = "changes of files were declined without asking: they are unknown or too large to be shown";
                        out.tell(&Event::notice("warning", why));
                        decide(&id, "decline", out);
                    }
                }
            }
            _ => {
                let error = json!({ "code": -32601, "message": "not supported here" });
                out.say(&json!({ "id": number(&id), "error": error }));
            }
        }
    }

    fn notified(&mut self, method: &str, params: &Value, out: &mut Output) {
        let item = params.get("item").unwrap_or(&Value::Null);
        match method {
            "item/agentMessage/delta" => {
                if let Some(delta) = params.get("delta").and_then(Value::as_str) {
                    out.tell(&Event::partial(delta));
                }
            }
            "item/started" => self.started(item, out),
            "item/completed" => completed(item, out),
            "warning" | "configWarning" | "guardianWarning" | "deprecationNotice" => {
                out.tell(&Event::notice("warning", reason(params)));
            }
            "error" => {
                let said = params.get("error").map(reason).unwrap_or_default();
                out.tell(&Event::notice("warning", said.clone()));
                self.complaint = Some(said);
            }
            "turn/completed" => {
                let turn = params.get("turn").unwrap_or(&Value::Null);
                match turn.get("status").and_then(Value::as_str) {
                    Some("completed") => out.succeed(serde_json::value::to_raw_value(params).ok().as_deref()),
                    Some("interrupted") => out.fail("the turn was interrupted"),
                    _ => {
                        let reason = turn.get("error").filter(|error| !error.is_null()).map(reason);
                        out.fail(
                            reason.or_else(|| self.complaint.take()).unwrap_or_else(|| "Turn failed".into()),
                        );
                    }
                }
                out.hushed = true;
            }
            // Many more come, and newer versions have others: they change nothing here.
            _ => {}
        }
    }

    fn started(&mut self, item: &Value, out: &mut Output) {
        match item.get("type").and_then(Value::as_str) {
            Some("commandExecution") => {
                let input = json!({ "command": command(item) });
                out.tell(&Event { input: raw(&input), ..Event::tool("bash") });
            }
            Some("fileChange") => {
                let changes = item.get("changes").cloned().unwrap_or_default();
                out.tell(&Event { input: raw(&changes), ..Event::tool("edit") });
                let id = item.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
                self.remember(id, changes);
            }
            Some("mcpToolCall") => {
                let input = item.get("arguments").and_then(raw);
                out.tell(&Event { input, ..Event::tool(tool_name(item)) });
            }
            Some("webSearch") => {
                let input = item.get("query").and_then(raw);
                out.tell(&Event { input, ..Event::tool("web_search") });
            }
            _ => {}
        }
    }

    /// Keeps changes for a question about them, within what a question may have.
    fn remember(&mut self, id: String, changes: Value) {
        let bytes = |changes: &Value| changes.to_string().len();
        self.changes.push_back((id, changes));
        let sizes = self.changes.iter().rev().map(|(_, changes)| bytes(changes));
        let mut sum = 0usize;
        let fitting = sizes.take_while(|bytes| {
            sum = sum.saturating_add(*bytes);
            sum <= CHANGES_BYTES_MAX
        });
        let kept = fitting.count().min(CHANGES_MAX);
        self.changes.drain(..self.changes.len() - kept);
    }

    pub(super) fn complaint(&self) -> Option<&str> {
        self.complaint.as_deref().or_else(|| self.plain.complaint())
    }
}

/// What runs, all of it: without the shell around it only where that is known to change nothing.
fn command(about: &Value) -> Option<&str> {
    let whole = about.get("command")?.as_str()?;
    let actions = about.get("commandActions").and_then(Value::as_array).map(Vec::as_slice);
    let Some([action]) = actions else { return Some(whole) };
    let is_alone = |action: &&str| SHELLS.into_iter().any(|shell| is_wrapped(whole, shell, action));
    action.get("command").and_then(Value::as_str).filter(is_alone).or(Some(whole))
}

/// Whether this is the action as the one argument of a shell, quoted in a way that hides nothing.
fn is_wrapped(whole: &str, shell: &str, action: &str) -> bool {
    let Some(argument) = whole.strip_prefix(shell).and_then(|rest| rest.strip_prefix(" -lc ")) else {
        return false;
    };
    let within =
        |quote: char| argument.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) == Some(action);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte);
    within('\'') && !action.contains('\'')
        || within('"') && !action.contains(['"', '$', '`', '\\', '!'])
        || argument == action && action.bytes().all(is_plain)
}

fn completed(item: &Value, out: &mut Output) {
    let text = |name: &str| item.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    match item.get("type").and_then(Value::as_str) {
        Some("agentMessage") => out.tell(&Event::text(text("text"))),
        Some("commandExecution") => {
            let message =
                if text("status") == "declined" { "declined".into() } else { text("aggregatedOutput") };
            out.tell(&Event { message: Some(message.into()), ..Event::tool("bash") });
        }
        Some("fileChange") => {
            let changes = item.get("changes").and_then(Value::as_array);
            let path = |change: &Value| change.get("path").and_then(Value::as_str).map(str::to_owned);
            let paths: Vec<String> = changes.into_iter().flatten().filter_map(path).collect();
            let message = format!("{}: {}", text("status"), paths.join(", "));
            out.tell(&Event { message: Some(message.into()), ..Event::tool("edit") });
        }
        Some("mcpToolCall") => {
            let said = item.get("error").filter(|error| !error.is_null()).or_else(|| item.get("result"));
            let message = said.map(words).unwrap_or_default();
            out.tell(&Event { message: Some(message.into()), ..Event::tool(tool_name(item)) });
        }
        _ => {}
    }
}

fn tool_name(item: &Value) -> String {
    let text = |name: &str| item.get(name).and_then(Value::as_str).unwrap_or_default();
    format!("{}.{}", text("server"), text("tool"))
}

/// The thread that the task goes on with, or a new one.
fn thread(task: &Task) -> Value {
    let (policy, sandbox) = match task.mode {
        Mode::Auto => ("never", "danger-full-access"),
        Mode::Code => ("never", "workspace-write"),
        Mode::Plan => ("never", "read-only"),
        Mode::Ask => ("untrusted", "workspace-write"),
    };
    let mut params = json!({ "cwd": task.path, "approvalPolicy": policy, "sandbox": sandbox });
    if let Some(model) = &task.model {
        params["model"] = json!(model);
    }
    let method = match &task.sdk_id {
        None => "thread/start",
        Some(id) => {
            params["threadId"] = json!(id);
            params["excludeTurns"] = json!(true);
            "thread/resume"
        }
    };
    json!({ "id": THREAD, "method": method, "params": params })
}

/// The id as the agent wrote it.
fn number(id: &str) -> Value {
    serde_json::from_str(id).unwrap_or_default()
}

fn decide(id: &str, decision: &str, out: &mut Output) {
    out.say(&json!({ "id": number(id), "result": { "decision": decision } }));
}

pub(super) fn answer(ask: &Ask, answer: &Answer, out: &mut Output) {
    decide(&ask.id, if answer.allow { "accept" } else { "decline" }, out);
}
