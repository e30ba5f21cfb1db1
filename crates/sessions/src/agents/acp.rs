//! gemini and opencode over the Agent Client Protocol: text as it comes, and questions before something is done.

use super::calls::Calls;
use super::json::{self, Message, raw, without_json, words};
use super::spoken::Spoken;
use super::{Agent, Answer, Call, Cli, Mode, Task};
use crate::event::Event;
use crate::output::{Ask, Output};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Ids of our requests, one each.
const INITIALIZE: u64 = 1;
const SESSION: u64 = 2;
const MODE: u64 = 3;
const MODEL: u64 = 4;
const PROMPT: u64 = 5;
const LIST: u64 = 6;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Acp {
    cli: Cli,
    /// Under which name the agent has the conversation now.
    session: String,
    /// The prompt is on its way; what came before was said about other things.
    is_prompted: bool,
    spoken: Spoken,
    /// Those that have been told.
    calls: Calls,
    /// Questions that wait: their ids, and which option means yes and which no.
    options: Vec<(String, String, String)>,
    /// Why the conversation could not be resumed.
    failure: Option<String>,
}

pub(super) fn call(task: &Task) -> Call {
    let mut arguments = Vec::new();
    let mut environment = Vec::new();
    match task.cli {
        Cli::Gemini => {
            arguments.push("--acp".into());
            if let Some(model) = &task.model {
                arguments.extend(["--model".into(), model.into()]);
            }
            environment = super::gemini::environment();
        }
        _ => {
            arguments.push("acp".into());
            environment.extend(permissions(task.mode).map(|asks| ("OPENCODE_PERMISSION", asks.to_string())));
        }
    }
    let acp = Acp {
        cli: task.cli,
        session: String::new(),
        is_prompted: false,
        spoken: Spoken::default(),
        calls: Calls::default(),
        options: Vec::new(),
        failure: None,
    };
    Call { arguments, environment, agent: Agent::Acp(acp) }
}

/// opencode's rules, of which the last that fits counts. They go over what is configured. Without them it does everything
/// in its directory unasked; also its plan mode does what the rules allow.
fn permissions(mode: Mode) -> Option<Value> {
    let other = match mode {
        Mode::Auto | Mode::Code => return None,
        Mode::Ask => "ask",
        Mode::Plan => "deny",
    };
    // As it has it by itself: secrets are not for everyone.
    let read = json!({ "*": "allow", "*.env": other, "*.env.*": other, "*.env.example": "allow" });
    let mut rules = json!({ "*": other, "read": read });
    for harmless in ["glob", "grep", "list", "todoread", "todowrite"] {
        rules[harmless] = json!("allow");
    }
    Some(rules)
}

/// gemini begins an empty record for the name that a conversation is loaded by, and only then looks for the conversation. In
/// the minute in which that began both are one file, and it is spoilt; later, its clean-up removes both for being of one
/// name. It looks without the space, and names its record with it.
fn alias(id: &str) -> String {
    format!(" {id}")
}

fn request(id: u64, method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

impl Acp {
    pub(super) fn begin(&self, out: &mut Output) {
        let params = json!({
            "protocolVersion": 1,
            "clientCapabilities": { "fs": { "readTextFile": false, "writeTextFile": false }, "terminal": false },
            "clientInfo": { "name": "outpost", "version": env!("CARGO_PKG_VERSION") },
        });
        out.say(&request(INITIALIZE, "initialize", params));
    }

    pub(super) fn hear(&mut self, text: &str, task: &Task, out: &mut Output) {
        let Ok(message) = serde_json::from_str::<Message>(text) else { return out.unknown(text) };
        match (message.id, message.method) {
            (Some(id), None) => self.replied(&id, message.result, message.error, task, out),
            (Some(id), Some(method)) => self.asked(&id, &method, &message.params, task, out),
            (None, Some(method)) if method == "session/update" => {
                if let Some(update) = message.params.get("update").filter(|_| self.is_prompted) {
                    self.updated(update, out);
                }
            }
            (None, Some(_)) => {}
            (None, None) => out.unknown(text),
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
            return self.refused(id, &error, task, out);
        }
        let result = result.unwrap_or_default();
        match id.as_u64() {
            Some(INITIALIZE) => {
                let place = json!({ "cwd": task.path, "mcpServers": [] });
                out.say(&match &task.sdk_id {
                    None => request(SESSION, "session/new", place),
                    Some(known) => {
                        // One replays what was said, the other does not.
                        let (name, method) = match self.cli {
                            Cli::Gemini => (alias(known), "session/load"),
                            _ => (known.clone(), "session/resume"),
                        };
                        let params = json!({ "sessionId": name, "cwd": task.path, "mcpServers": [] });
                        self.session = name;
                        request(SESSION, method, params)
                    }
                });
            }
            Some(SESSION) => {
                if let Some(id) = result.get("sessionId").and_then(Value::as_str) {
                    self.session = id.to_owned();
                }
                let id = self.session.trim().to_owned();
                out.converses(&id);
                let model = model(&result).map(str::to_owned);
                out.tell(&Event::init(id, task.model.clone().or(model)));
                match (self.cli, task.mode) {
                    (Cli::Opencode, Mode::Plan) => out.say(&self.option(MODE, "mode", "plan")),
                    (Cli::Opencode, _) => out.say(&self.option(MODE, "mode", "build")),
                    (_, mode) => {
                        let mode = match mode {
                            Mode::Auto => "yolo",
                            Mode::Code => "autoEdit",
                            Mode::Plan => "plan",
                            Mode::Ask => "default",
                        };
                        let params = json!({ "sessionId": self.session, "modeId": mode });
                        out.say(&request(MODE, "session/set_mode", params));
                    }
                }
            }
            Some(MODE) => match &task.model {
                Some(model) if self.cli == Cli::Opencode => out.say(&self.option(MODEL, "model", model)),
                _ => self.prompt(task, out),
            },
            Some(MODEL) => self.prompt(task, out),
            Some(LIST) => self.not_resumed(&result, task, out),
            Some(PROMPT) => {
                self.spoken.over(out);
                match result.get("stopReason").and_then(Value::as_str) {
                    Some("refusal") => out.fail("the model refused to go on"),
                    Some("cancelled") => out.fail("the turn was interrupted"),
                    _ => out.succeed(serde_json::value::to_raw_value(&result).ok().as_deref()),
                }
                out.hushed = true;
            }
            _ => {}
        }
    }

    fn refused(&mut self, id: &Value, error: &Value, task: &Task, out: &mut Output) {
        let reason = reason(error);
        // opencode says the same whatever is wrong with a conversation; it may just not be there.
        let is_resumed = id.as_u64() == Some(SESSION) && task.sdk_id.is_some();
        if is_resumed && self.cli == Cli::Opencode {
            self.failure = Some(reason);
            out.say(&request(LIST, "session/list", json!({ "cwd": task.path })));
            return;
        }
        self.spoken.over(out);
        // gemini does not find a conversation again that has no answer in it.
        out.is_lost |= self.cli == Cli::Gemini && task.sdk_id.is_none();
        out.fail(self.failure.take().unwrap_or(reason));
        out.hushed = true;
    }

    /// Tells whether the conversation that could not be resumed is among all there are.
    fn not_resumed(&mut self, listed: &Value, task: &Task, out: &mut Output) {
        let mut reason = self.failure.take().unwrap_or_default();
        let sessions = listed.get("sessions").and_then(Value::as_array);
        let known = task.sdk_id.as_deref().unwrap_or_default();
        let is_listed = |sessions: &Vec<Value>| {
            sessions.iter().any(|session| session.get("sessionId").is_some_and(|id| id == known))
        };
        let are_all = listed.get("nextCursor").is_none_or(Value::is_null);
        if are_all && sessions.is_some_and(|sessions| !is_listed(sessions)) {
            reason = format!("{reason}: session not found: {known}");
        }
        out.fail(reason);
        out.hushed = true;
    }

    fn option(&self, id: u64, name: &str, value: &str) -> Value {
        let params = json!({ "sessionId": self.session, "configId": name, "value": value });
        request(id, "session/set_config_option", params)
    }

    fn prompt(&mut self, task: &Task, out: &mut Output) {
        self.is_prompted = true;
        let prompt = json!([{ "type": "text", "text": task.message }]);
        out.say(&request(PROMPT, "session/prompt", json!({ "sessionId": self.session, "prompt": prompt })));
    }

    fn asked(&mut self, id: &Value, method: &str, params: &Value, task: &Task, out: &mut Output) {
        if method != "session/request_permission" {
            let error = json!({ "code": -32601, "message": "not supported here" });
            out.say(&json!({ "jsonrpc": "2.0", "id": id, "error": error }));
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
        let ask = Ask { id: id.to_string(), tool: kind(call), input: about(call) };
        match task.mode {
            Mode::Ask => out.asks.push(ask),
            Mode::Auto => self.answer(&ask, &Answer { allow: true, note: String::new() }, out),
            Mode::Code | Mode::Plan => self.answer(&ask, &Answer { allow: false, note: String::new() }, out),
        }
    }

    pub(super) fn answer(&mut self, ask: &Ask, answer: &Answer, out: &mut Output) {
        let Some(at) = self.options.iter().position(|(id, _, _)| *id == ask.id) else { return };
        let (id, yes, no) = self.options.swap_remove(at);
        let option = if answer.allow { yes } else { no };
        let outcome = match option.is_empty() {
            true => json!({ "outcome": "cancelled" }),
            false => json!({ "outcome": "selected", "optionId": option }),
        };
        let id: Value = serde_json::from_str(&id).unwrap_or_default();
        out.say(&json!({ "jsonrpc": "2.0", "id": id, "result": { "outcome": outcome } }));
    }

    fn updated(&mut self, update: &Value, out: &mut Output) {
        match update.get("sessionUpdate").and_then(Value::as_str) {
            Some("agent_message_chunk") => {
                let Some(text) = update.pointer("/content/text").and_then(Value::as_str) else { return };
                self.spoken.piece(text, out);
            }
            Some("tool_call" | "tool_call_update") => {
                self.spoken.over(out);
                self.tool(update, out);
            }
            _ => {}
        }
    }

    /// A call is told when its input is known, and when it is over.
    fn tool(&mut self, update: &Value, out: &mut Output) {
        let id = update.get("toolCallId").and_then(Value::as_str).unwrap_or_default();
        let status = update.get("status").and_then(Value::as_str).unwrap_or_default();
        let known = self.calls.tool(id).map(str::to_owned);
        if known.is_none() && status != "pending" {
            let name = kind(update);
            out.tell(&Event { input: raw(&about(update)), ..Event::tool(name.clone()) });
            self.calls.remember(id, name);
        }
        if matches!(status, "completed" | "failed") {
            let name = known.unwrap_or_else(|| kind(update));
            out.tell(&Event { message: Some(said(update).into()), ..Event::tool(name) });
        }
    }
}

/// The model in use, as the one and the other tell it.
fn model(session: &Value) -> Option<&str> {
    let options = session.get("configOptions").and_then(Value::as_array).into_iter().flatten();
    let mut chosen = options.filter(|option| option.get("id").is_some_and(|id| id == "model"));
    let model = session.pointer("/models/currentModelId").or_else(|| chosen.next()?.get("currentValue"));
    model.and_then(Value::as_str)
}

/// One name for what all agents have.
fn kind(call: &Value) -> String {
    match call.get("kind").and_then(Value::as_str) {
        Some("execute") => "bash".into(),
        Some(kind) => kind.to_owned(),
        None => "tool".into(),
    }
}

/// What a call is about: its input, or its title and what it shows.
fn about(call: &Value) -> Value {
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

/// What a call has come to.
fn said(call: &Value) -> String {
    if let Some(output) = call.pointer("/rawOutput/output").or_else(|| call.pointer("/rawOutput/error")) {
        return words(output);
    }
    let pieces = call.get("content").and_then(Value::as_array).into_iter().flatten();
    let text = |piece: &Value| piece.pointer("/content/text").and_then(Value::as_str).map(str::to_owned);
    pieces.filter_map(text).collect::<Vec<_>>().join("\n")
}

/// The message of an error, and what stands behind it.
fn reason(error: &Value) -> String {
    let details = error.pointer("/data/details").and_then(Value::as_str);
    match details {
        Some(details) => format!("{}: {}", json::reason(error), without_json(details)),
        None => json::reason(error),
    }
}
