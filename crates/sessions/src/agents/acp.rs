//! Adapter for the Agent Client Protocol, which gemini and opencode speak: text deltas and permission requests.
//!
//! The types of `agent-client-protocol-schema` do not fit: one unknown kind of option fails a whole permission request,
//! unknown kinds of tools lose their name, unknown content is dropped, and gemini's `models` is not a member. A client
//! receives all of these.

use super::json::{self, Message, raw, text_of, without_json};
use super::text_accumulator::TextAccumulator;
use super::tool_calls::ToolCalls;
use super::{Adapter, Cli, Interface, Mode, PermissionDecision, TurnRequest};
use crate::event::Event;
use crate::turn::output::{Output, PermissionRequest};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Ids of the daemon's requests. Each is sent once.
const INITIALIZE: u64 = 1;
const SESSION: u64 = 2;
const MODE: u64 = 3;
const MODEL: u64 = 4;
const PROMPT: u64 = 5;
const LIST: u64 = 6;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Acp {
    cli: Cli,
    /// The CLI's name of the session.
    session: String,
    /// The prompt was sent. Updates before it do not belong to this turn.
    is_prompted: bool,
    #[serde(rename = "spoken")]
    text: TextAccumulator,
    /// Tool calls that were emitted.
    #[serde(rename = "calls")]
    tool_calls: ToolCalls,
    /// Pending permission requests: id, and the options that allow and reject.
    options: Vec<(String, String, String)>,
    /// The error of a failed resume, while the list of sessions is requested.
    #[serde(rename = "failure")]
    resume_error: Option<String>,
}

/// How one CLI speaks the protocol.
pub(crate) struct Dialect {
    /// The method that continues a conversation.
    pub(super) resume_method: &'static str,
    /// The name by which a conversation is requested.
    pub(super) session_name: fn(&str) -> String,
    pub(super) mode: ModeRequest,
    /// The model is a config option rather than a flag.
    pub(super) model_is_option: bool,
    /// The CLI has one error for every failed resume. Its list of sessions shows whether the conversation exists.
    pub(super) lists_sessions: bool,
    /// The CLI does not store a conversation without an answer.
    pub(super) forgets_unanswered: bool,
}

/// The request that sets the mode, and its value by mode.
pub(super) enum ModeRequest {
    SetMode(fn(Mode) -> &'static str),
    ConfigOption(fn(Mode) -> &'static str),
}

/// The protocol as specified, for a CLI whose profile has no dialect.
static PLAIN: Dialect = Dialect {
    resume_method: "session/load",
    session_name: str::to_owned,
    mode: ModeRequest::SetMode(Mode::name),
    model_is_option: false,
    lists_sessions: false,
    forgets_unanswered: false,
};

/// An adapter at the start of a turn.
pub(super) fn adapter(cli: Cli) -> Adapter {
    Adapter::Acp(Acp {
        cli,
        session: String::new(),
        is_prompted: false,
        text: TextAccumulator::default(),
        tool_calls: ToolCalls::default(),
        options: Vec::new(),
        resume_error: None,
    })
}

fn rpc_request(id: u64, method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

impl Interface for Acp {
    fn start(&mut self, _: &TurnRequest, out: &mut Output) {
        let params = json!({
            "protocolVersion": 1,
            "clientCapabilities": { "fs": { "readTextFile": false, "writeTextFile": false }, "terminal": false },
            "clientInfo": { "name": "outpost", "version": env!("CARGO_PKG_VERSION") },
        });
        out.send_line(&rpc_request(INITIALIZE, "initialize", params));
    }

    fn on_line(&mut self, text: &str, request: &TurnRequest, out: &mut Output) {
        let Ok(message) = serde_json::from_str::<Message>(text) else { return out.unknown_line(text) };
        match (message.id, message.method) {
            (Some(id), None) => match message.error {
                Some(error) => self.on_error(&id, &error, request, out),
                None => self.on_result(&id, &message.result.unwrap_or_default(), request, out),
            },
            (Some(id), Some(method)) => self.on_request(&id, &method, &message.params, request, out),
            (None, Some(method)) if method == "session/update" => {
                if let Some(update) = message.params.get("update").filter(|_| self.is_prompted) {
                    self.on_update(update, out);
                }
            }
            (None, Some(_)) => {}
            (None, None) => out.unknown_line(text),
        }
    }

    fn on_decision(&mut self, request: &PermissionRequest, decision: &PermissionDecision, out: &mut Output) {
        let Some(at) = self.options.iter().position(|(id, _, _)| *id == request.id) else { return };
        let (id, allow, reject) = self.options.swap_remove(at);
        let option = if decision.allow { allow } else { reject };
        let outcome = match option.is_empty() {
            true => json!({ "outcome": "cancelled" }),
            false => json!({ "outcome": "selected", "optionId": option }),
        };
        let id: Value = serde_json::from_str(&id).unwrap_or_default();
        out.send_line(&json!({ "jsonrpc": "2.0", "id": id, "result": { "outcome": outcome } }));
    }
}

impl Acp {
    fn on_result(&mut self, id: &Value, result: &Value, request: &TurnRequest, out: &mut Output) {
        match id.as_u64() {
            Some(INITIALIZE) => {
                let cwd = json!({ "cwd": request.path, "mcpServers": [] });
                out.send_line(&match &request.conversation_id {
                    None => rpc_request(SESSION, "session/new", cwd),
                    Some(known) => {
                        let name = (self.dialect().session_name)(known);
                        let params = json!({ "sessionId": name, "cwd": request.path, "mcpServers": [] });
                        self.session = name;
                        rpc_request(SESSION, self.dialect().resume_method, params)
                    }
                });
            }
            Some(SESSION) => {
                if let Some(id) = result.get("sessionId").and_then(Value::as_str) {
                    self.session = id.to_owned();
                }
                let id = self.session.trim().to_owned();
                out.set_conversation_id(&id);
                let model = model(result).map(str::to_owned);
                out.emit(&Event::init(id, request.model.clone().or(model)));
                out.send_line(&self.mode_request(request.mode));
            }
            Some(MODE) => match &request.model {
                Some(model) if self.dialect().model_is_option => {
                    out.send_line(&self.option(MODEL, "model", model));
                }
                _ => self.prompt(request, out),
            },
            Some(MODEL) => self.prompt(request, out),
            Some(LIST) => self.on_session_list(result, request, out),
            Some(PROMPT) => {
                self.text.flush(out);
                match result.get("stopReason").and_then(Value::as_str) {
                    Some("refusal") => out.fail("the model refused to go on"),
                    Some("cancelled") => out.fail("the turn was interrupted"),
                    _ => out.succeed(serde_json::value::to_raw_value(result).ok().as_deref()),
                }
                out.close_stdin();
            }
            _ => {}
        }
    }

    fn on_error(&mut self, id: &Value, error: &Value, request: &TurnRequest, out: &mut Output) {
        let reason = reason(error);
        let is_resumed = id.as_u64() == Some(SESSION) && request.conversation_id.is_some();
        if is_resumed && self.dialect().lists_sessions {
            self.resume_error = Some(reason);
            out.send_line(&rpc_request(LIST, "session/list", json!({ "cwd": request.path })));
            return;
        }
        self.text.flush(out);
        out.conversation_lost |= self.dialect().forgets_unanswered && request.conversation_id.is_none();
        out.fail(self.resume_error.take().unwrap_or(reason));
        out.close_stdin();
    }

    /// Fails the turn after a failed resume. The reason includes whether the conversation is in the list.
    fn on_session_list(&mut self, listed: &Value, request: &TurnRequest, out: &mut Output) {
        let mut reason = self.resume_error.take().unwrap_or_default();
        let sessions = listed.get("sessions").and_then(Value::as_array);
        let known = request.conversation_id.as_deref().unwrap_or_default();
        let is_listed = |sessions: &Vec<Value>| {
            sessions.iter().any(|session| session.get("sessionId").is_some_and(|id| id == known))
        };
        let are_all = listed.get("nextCursor").is_none_or(Value::is_null);
        if are_all && sessions.is_some_and(|sessions| !is_listed(sessions)) {
            reason = format!("{reason}: session not found: {known}");
        }
        out.fail(reason);
        out.close_stdin();
    }

    fn dialect(&self) -> &'static Dialect {
        self.cli.profile().acp.as_ref().unwrap_or(&PLAIN)
    }

    fn mode_request(&self, mode: Mode) -> Value {
        match self.dialect().mode {
            ModeRequest::ConfigOption(value) => self.option(MODE, "mode", value(mode)),
            ModeRequest::SetMode(value) => {
                let params = json!({ "sessionId": self.session, "modeId": value(mode) });
                rpc_request(MODE, "session/set_mode", params)
            }
        }
    }

    fn option(&self, id: u64, name: &str, value: &str) -> Value {
        let params = json!({ "sessionId": self.session, "configId": name, "value": value });
        rpc_request(id, "session/set_config_option", params)
    }

    fn prompt(&mut self, request: &TurnRequest, out: &mut Output) {
        self.is_prompted = true;
        let prompt = json!([{ "type": "text", "text": request.message }]);
        out.send_line(&rpc_request(
            PROMPT,
            "session/prompt",
            json!({ "sessionId": self.session, "prompt": prompt }),
        ));
    }

    fn on_request(
        &mut self,
        id: &Value,
        method: &str,
        params: &Value,
        request: &TurnRequest,
        out: &mut Output,
    ) {
        if method != "session/request_permission" {
            let error = json!({ "code": -32601, "message": "not supported here" });
            out.send_line(&json!({ "jsonrpc": "2.0", "id": id, "error": error }));
            return;
        }
        let options = params.get("options").and_then(Value::as_array);
        let option = |kind: &str| {
            let found = options.into_iter().flatten().find(|option| option.get("kind") == Some(&json!(kind)));
            found
                .and_then(|option| option.get("optionId"))
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        self.options.push((id.to_string(), option("allow_once"), option("reject_once")));
        let call = params.get("toolCall").unwrap_or(&Value::Null);
        let permission =
            PermissionRequest { id: id.to_string(), tool: tool_name(call), input: tool_input(call) };
        match request.mode {
            Mode::Ask => out.permission_requests.push(permission),
            Mode::Auto => {
                self.on_decision(&permission, &PermissionDecision { allow: true, note: String::new() }, out)
            }
            Mode::Code | Mode::Plan => {
                self.on_decision(&permission, &PermissionDecision { allow: false, note: String::new() }, out)
            }
        }
    }

    fn on_update(&mut self, update: &Value, out: &mut Output) {
        match update.get("sessionUpdate").and_then(Value::as_str) {
            Some("agent_message_chunk") => {
                let Some(text) = update.pointer("/content/text").and_then(Value::as_str) else { return };
                self.text.push_delta(text, out);
            }
            Some("tool_call" | "tool_call_update") => {
                self.text.flush(out);
                self.tool(update, out);
            }
            _ => {}
        }
    }

    /// Emits a call once its input is known, and its result.
    fn tool(&mut self, update: &Value, out: &mut Output) {
        let id = update.get("toolCallId").and_then(Value::as_str).unwrap_or_default();
        let status = update.get("status").and_then(Value::as_str).unwrap_or_default();
        let known = self.tool_calls.tool(id).map(str::to_owned);
        if known.is_none() && status != "pending" {
            let name = tool_name(update);
            out.emit(&Event { input: raw(&tool_input(update)), ..Event::tool(name.clone()) });
            self.tool_calls.remember(id, name);
        }
        if matches!(status, "completed" | "failed") {
            let name = known.unwrap_or_else(|| tool_name(update));
            out.emit(&Event { message: Some(result_text(update).into()), ..Event::tool(name) });
        }
    }
}

/// The model in use, as gemini (`models`) or opencode (`configOptions`) reports it.
fn model(session: &Value) -> Option<&str> {
    let options = session.get("configOptions").and_then(Value::as_array).into_iter().flatten();
    let mut chosen = options.filter(|option| option.get("id").is_some_and(|id| id == "model"));
    let model = session.pointer("/models/currentModelId").or_else(|| chosen.next()?.get("currentValue"));
    model.and_then(Value::as_str)
}

/// The tool name that all adapters use.
fn tool_name(call: &Value) -> String {
    match call.get("kind").and_then(Value::as_str) {
        Some("execute") => "bash".into(),
        Some(kind) => kind.to_owned(),
        None => "tool".into(),
    }
}

/// The input of a call, or else its title and content.
fn tool_input(call: &Value) -> Value {
    let title = call.get("title").cloned().unwrap_or_default();
    let mut input = match call.get("rawInput") {
        Some(Value::Object(input)) => Value::Object(input.clone()),
        _ => json!({}),
    };
    let shown = call.get("content").and_then(Value::as_array).filter(|content| !content.is_empty());
    if let Value::Object(members) = &mut input {
        let is_command = call.get("kind") == Some(&json!("execute"));
        members.entry(if is_command { "command" } else { "title" }).or_insert(title);
        if let Some(shown) = shown {
            members.entry("content").or_insert(json!(shown));
        }
    }
    input
}

/// The result of a call.
fn result_text(call: &Value) -> String {
    if let Some(output) = call.pointer("/rawOutput/output").or_else(|| call.pointer("/rawOutput/error")) {
        return text_of(output);
    }
    let pieces = call.get("content").and_then(Value::as_array).into_iter().flatten();
    let text = |piece: &Value| piece.pointer("/content/text").and_then(Value::as_str).map(str::to_owned);
    pieces.filter_map(text).collect::<Vec<_>>().join("\n")
}

/// The message of an error with its details.
fn reason(error: &Value) -> String {
    let details = error.pointer("/data/details").and_then(Value::as_str);
    match details {
        Some(details) => format!("{}: {}", json::reason(error), without_json(details)),
        None => json::reason(error),
    }
}
