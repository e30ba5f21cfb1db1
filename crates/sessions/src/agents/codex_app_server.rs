//! Adapter for codex from 0.120 on: `app-server`, with text deltas and permission requests.

use super::codex_exec::CodexExec;
use super::json::{Message, raw, reason, text_of};
use super::{Adapter, Interface, Invocation, Mode, PermissionDecision, TurnRequest};
use crate::event::Event;
use crate::turn::output::{Output, PermissionRequest};
use crate::turn::permission_quota::INPUT_BYTES_MAX;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::VecDeque;

/// Ids of the daemon's requests. Each is sent once.
const INITIALIZE: u64 = 1;
const THREAD: u64 = 2;
const TURN: u64 = 3;

/// Maximum number of file changes kept. Permission requests name them by id.
const CHANGES_MAX: usize = 16;
const CHANGES_BYTES_MAX: usize = 2 * INPUT_BYTES_MAX;

/// Shells that codex wraps around a command. The wrapper is not shown to approvers.
const SHELLS: [&str; 6] =
    ["/bin/bash", "/usr/bin/bash", "/bin/zsh", "/usr/bin/zsh", "/bin/sh", "/usr/bin/sh"];

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CodexAppServer {
    thread: String,
    changes: VecDeque<(String, Value)>,
    last_error: Option<String>,
    /// For lines of `codex exec`: a substitute program may print them whatever its arguments.
    exec: CodexExec,
}

pub(super) fn invocation() -> Invocation {
    Invocation {
        arguments: vec!["app-server".into()],
        environment: Vec::new(),
        adapter: Adapter::CodexAppServer(CodexAppServer::default()),
    }
}

impl Interface for CodexAppServer {
    fn start(&mut self, _: &TurnRequest, out: &mut Output) {
        let client = json!({ "name": "outpost", "title": "Outpost", "version": env!("CARGO_PKG_VERSION") });
        out.send_line(
            &json!({ "id": INITIALIZE, "method": "initialize", "params": { "clientInfo": client } }),
        );
    }

    fn on_line(&mut self, text: &str, request: &TurnRequest, out: &mut Output) {
        let Ok(message) = serde_json::from_str::<Message>(text) else { return out.unknown_line(text) };
        match (message.id, message.method) {
            (None, None) => self.exec.parse(text, out),
            (Some(id), None) => match message.error {
                Some(error) => {
                    out.fail(reason(&error));
                    out.close_stdin();
                }
                None => self.on_result(&id, &message.result.unwrap_or_default(), request, out),
            },
            (Some(id), Some(method)) => self.on_request(id, &method, &message.params, out),
            (None, Some(method)) => self.on_notification(&method, &message.params, out),
        }
    }

    fn on_decision(&mut self, request: &PermissionRequest, decision: &PermissionDecision, out: &mut Output) {
        send_decision(&request.id, if decision.allow { "accept" } else { "decline" }, out);
    }

    fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref().or_else(|| self.exec.last_error())
    }
}

impl CodexAppServer {
    fn on_result(&mut self, id: &Value, result: &Value, request: &TurnRequest, out: &mut Output) {
        match id.as_u64() {
            Some(INITIALIZE) => {
                out.send_line(&json!({ "method": "initialized" }));
                out.send_line(&thread_request(request));
            }
            Some(THREAD) => {
                let id = result.pointer("/thread/id").and_then(Value::as_str).unwrap_or_default();
                self.thread = id.to_owned();
                out.set_conversation_id(id);
                let model = result.get("model").and_then(Value::as_str).map(str::to_owned);
                out.emit(&Event::init(id.to_owned(), model));
                let input = json!([{ "type": "text", "text": request.message }]);
                let params = json!({ "threadId": id, "input": input });
                out.send_line(&json!({ "id": TURN, "method": "turn/start", "params": params }));
            }
            _ => {}
        }
    }

    /// A request of codex. An unknown one gets an error response, or codex would wait forever.
    fn on_request(&mut self, id: Value, method: &str, params: &Value, out: &mut Output) {
        let id = id.to_string();
        match method {
            "item/commandExecution/requestApproval" => {
                let mut input = json!({ "command": command(params), "cwd": params.get("cwd") });
                for name in ["reason", "networkApprovalContext", "additionalPermissions"] {
                    if let Some(value) = params.get(name).filter(|value| !value.is_null()) {
                        input[name] = value.clone();
                    }
                }
                // A command that cannot be shown is declined.
                match input["command"].is_string() || input.get("networkApprovalContext").is_some() {
                    true => {
                        out.permission_requests.push(PermissionRequest { id, tool: "bash".into(), input })
                    }
                    false => send_decision(&id, "decline", out),
                }
            }
            "item/fileChange/requestApproval" => {
                let item = params.get("itemId").and_then(Value::as_str).unwrap_or_default();
                let known = self.changes.iter().rev().find(|(known, _)| known == item);
                match known {
                    Some((_, changes)) => {
                        out.permission_requests.push(PermissionRequest {
                            id,
                            tool: "edit".into(),
                            input: json!({ "changes": changes }),
                        });
                    }
                    None => {
                        let why = "changes of files were declined without asking: they are unknown or too large to be shown";
                        out.emit(&Event::notice("warning", why));
                        send_decision(&id, "decline", out);
                    }
                }
            }
            _ => {
                let error = json!({ "code": -32601, "message": "not supported here" });
                out.send_line(&json!({ "id": raw_id(&id), "error": error }));
            }
        }
    }

    fn on_notification(&mut self, method: &str, params: &Value, out: &mut Output) {
        let item = params.get("item").unwrap_or(&Value::Null);
        match method {
            "item/agentMessage/delta" => {
                if let Some(delta) = params.get("delta").and_then(Value::as_str) {
                    out.emit(&Event::partial(delta));
                }
            }
            "item/started" => self.on_item_started(item, out),
            "item/completed" => on_item_completed(item, out),
            "warning" | "configWarning" | "guardianWarning" | "deprecationNotice" => {
                out.emit(&Event::notice("warning", reason(params)));
            }
            "error" => {
                let message = params.get("error").map(reason).unwrap_or_default();
                out.emit(&Event::notice("warning", message.clone()));
                self.last_error = Some(message);
            }
            "turn/completed" => {
                let turn = params.get("turn").unwrap_or(&Value::Null);
                match turn.get("status").and_then(Value::as_str) {
                    Some("completed") => out.succeed(serde_json::value::to_raw_value(params).ok().as_deref()),
                    Some("interrupted") => out.fail("the turn was interrupted"),
                    _ => {
                        let reason = turn.get("error").filter(|error| !error.is_null()).map(reason);
                        out.fail(
                            reason.or_else(|| self.last_error.take()).unwrap_or_else(|| "Turn failed".into()),
                        );
                    }
                }
                out.close_stdin();
            }
            // Other notifications, also of newer versions, have no event.
            _ => {}
        }
    }

    fn on_item_started(&mut self, item: &Value, out: &mut Output) {
        match item.get("type").and_then(Value::as_str) {
            Some("commandExecution") => {
                let input = json!({ "command": command(item) });
                out.emit(&Event { input: raw(&input), ..Event::tool("bash") });
            }
            Some("fileChange") => {
                let changes = item.get("changes").cloned().unwrap_or_default();
                out.emit(&Event { input: raw(&changes), ..Event::tool("edit") });
                let id = item.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
                self.remember_changes(id, changes);
            }
            Some("mcpToolCall") => {
                let input = item.get("arguments").and_then(raw);
                out.emit(&Event { input, ..Event::tool(tool_name(item)) });
            }
            Some("webSearch") => {
                let input = item.get("query").and_then(raw);
                out.emit(&Event { input, ..Event::tool("web_search") });
            }
            _ => {}
        }
    }

    /// Keeps changes for a permission request, within the limits of a question.
    fn remember_changes(&mut self, id: String, changes: Value) {
        let bytes = |changes: &Value| changes.to_string().len();
        self.changes.push_back((id, changes));
        let sizes = self.changes.iter().rev().map(|(_, changes)| bytes(changes));
        let mut sum = 0usize;
        let fitting = sizes.take_while(|bytes| {
            sum = sum.saturating_add(*bytes);
            sum <= CHANGES_BYTES_MAX
        });
        let count = fitting.count().min(CHANGES_MAX);
        self.changes.drain(..self.changes.len() - count);
    }
}

/// The whole command. The shell around it is removed only if that does not change its meaning.
fn command(item: &Value) -> Option<&str> {
    let whole = item.get("command")?.as_str()?;
    let actions = item.get("commandActions").and_then(Value::as_array).map(Vec::as_slice);
    let Some([action]) = actions else { return Some(whole) };
    let is_only_argument = |action: &&str| SHELLS.into_iter().any(|shell| is_wrapped(whole, shell, action));
    action.get("command").and_then(Value::as_str).filter(is_only_argument).or(Some(whole))
}

/// Whether `whole` is the shell with `action` as its only argument, quoted so that the shell expands nothing.
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

fn on_item_completed(item: &Value, out: &mut Output) {
    let text = |name: &str| item.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    match item.get("type").and_then(Value::as_str) {
        Some("agentMessage") => out.emit(&Event::text(text("text"))),
        Some("commandExecution") => {
            let message =
                if text("status") == "declined" { "declined".into() } else { text("aggregatedOutput") };
            out.emit(&Event { message: Some(message.into()), ..Event::tool("bash") });
        }
        Some("fileChange") => {
            let changes = item.get("changes").and_then(Value::as_array);
            let path = |change: &Value| change.get("path").and_then(Value::as_str).map(str::to_owned);
            let paths: Vec<String> = changes.into_iter().flatten().filter_map(path).collect();
            let message = format!("{}: {}", text("status"), paths.join(", "));
            out.emit(&Event { message: Some(message.into()), ..Event::tool("edit") });
        }
        Some("mcpToolCall") => {
            let result = item.get("error").filter(|error| !error.is_null()).or_else(|| item.get("result"));
            let message = result.map(text_of).unwrap_or_default();
            out.emit(&Event { message: Some(message.into()), ..Event::tool(tool_name(item)) });
        }
        _ => {}
    }
}

fn tool_name(item: &Value) -> String {
    let text = |name: &str| item.get(name).and_then(Value::as_str).unwrap_or_default();
    format!("{}.{}", text("server"), text("tool"))
}

/// The request for the thread to resume, or for a new one.
fn thread_request(request: &TurnRequest) -> Value {
    let (policy, sandbox) = match request.mode {
        Mode::Auto => ("never", "danger-full-access"),
        Mode::Code => ("never", "workspace-write"),
        Mode::Plan => ("never", "read-only"),
        Mode::Ask => ("untrusted", "workspace-write"),
    };
    let mut params = json!({ "cwd": request.path, "approvalPolicy": policy, "sandbox": sandbox });
    if let Some(model) = &request.model {
        params["model"] = json!(model);
    }
    let method = match &request.conversation_id {
        None => "thread/start",
        Some(id) => {
            params["threadId"] = json!(id);
            params["excludeTurns"] = json!(true);
            "thread/resume"
        }
    };
    json!({ "id": THREAD, "method": method, "params": params })
}

/// The id as codex sent it, a number or a string.
fn raw_id(id: &str) -> Value {
    serde_json::from_str(id).unwrap_or_default()
}

fn send_decision(id: &str, decision: &str, out: &mut Output) {
    out.send_line(&json!({ "id": raw_id(id), "result": { "decision": decision } }));
}
