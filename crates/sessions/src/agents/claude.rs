//! claude: `-p` with stream-json output; where it asks, or stays for the next message, stream-json input as well.

use super::calls::Calls;
use super::{Agent, Answer, Call, Mode, Task};
use crate::event::{Event, Kind};
use crate::output::{Ask, Output};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::borrow::Cow;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Claude {
    /// It reads messages and answers as lines of JSON.
    pub(crate) converses: bool,
    /// It does not end with the turn.
    pub(crate) stays: bool,
    /// It has said something that a result is still to come for.
    #[serde(default)]
    pub(crate) is_busy: bool,
    calls: Calls,
}

pub(crate) fn call(task: &Task) -> Call {
    let converses = task.mode == Mode::Ask || task.keeps;
    let mut arguments = vec!["-p".into()];
    arguments.extend(
        ["--output-format", "stream-json", "--include-partial-messages", "--verbose"].map(Into::into),
    );
    arguments.extend(mode(task.mode).iter().map(Into::into));
    if converses {
        arguments.extend(["--input-format", "stream-json"].map(Into::into));
    }
    if task.mode == Mode::Ask {
        arguments.extend(["--permission-prompt-tool", "stdio"].map(Into::into));
    }
    arguments.extend(task.choices("--resume"));
    Call {
        arguments,
        environment: Vec::new(),
        agent: Agent::Claude(Claude { converses, stays: task.keeps, ..Claude::default() }),
    }
}

fn mode(mode: Mode) -> &'static [&'static str] {
    match mode {
        Mode::Auto => &["--dangerously-skip-permissions"],
        Mode::Code => &["--permission-mode", "acceptEdits"],
        // By default a model judges in plan mode which commands may run: what would be asked about shall not be done.
        Mode::Plan => &["--permission-mode", "plan", "--settings", "{\"useAutoModeDuringPlan\":false}"],
        Mode::Ask => &["--permission-mode", "default"],
    }
}

/// The members of a line that mean something to us.
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

/// A block of a message, by the model or by a tool.
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

impl Claude {
    pub(crate) fn begin(&mut self, task: &Task, out: &mut Output) {
        if self.converses {
            let content = json!([{ "type": "text", "text": task.message }]);
            out.say(&json!({ "type": "user", "message": { "role": "user", "content": content } }));
        } else {
            out.said.extend_from_slice(task.message.as_bytes());
            out.hushed = true;
        }
    }

    pub(crate) fn hear(&mut self, text: &str, out: &mut Output) {
        let Ok(line) = serde_json::from_str::<Line<'_>>(text) else { return out.unknown(text) };
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
                out.tell(&Event { message: message.map(Cow::Owned), raw: raw(text), ..event });
                Some(())
            }
            Some("result") => {
                self.result(&line, text, out);
                Some(())
            }
            Some("control_request") => {
                control(&line, out);
                Some(())
            }
            Some("control_cancel_request") => {
                out.taken_back.extend(line.request_id);
                Some(())
            }
            Some("control_response" | "keep_alive") => Some(()),
            _ => None,
        };
        if understood.is_none() {
            out.unknown(text);
        }
    }

    fn streamed(&mut self, line: &Line<'_>, out: &mut Output) -> Option<()> {
        let streamed: Streamed = serde_json::from_str(line.event?.get()).ok()?;
        match streamed.kind.as_deref()? {
            "content_block_delta" => {
                if let Some(text) = streamed.delta.and_then(|delta| delta.text) {
                    out.tell(&Event::partial(text));
                }
            }
            "content_block_start" => {
                let block = streamed.content_block?;
                if let (Some("tool_use"), Some(name)) = (block.kind.as_deref(), block.name) {
                    out.tell(&Event::tool(name));
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
                        self.calls.remember(id, name.clone());
                    }
                    out.tell(&Event { input: block.input.map(Cow::Owned), ..Event::tool(name) });
                }
                Some("text") => text.push_str(&block.text.unwrap_or_default()),
                _ => {}
            }
        }
        if !text.is_empty() {
            out.tell(&Event::text(text));
        }
        Some(())
    }

    /// What a tool has answered stands in a message of the user.
    fn tool_results(&self, line: &Line<'_>, out: &mut Output) -> Option<()> {
        let message: Message<'_> = serde_json::from_str(line.message?.get()).ok()?;
        // A prompt that is repeated to us is text, not a list of blocks.
        let blocks: Vec<Block> = serde_json::from_str(message.content?.get()).unwrap_or_default();
        for block in blocks.into_iter().filter(|block| block.kind.as_deref() == Some("tool_result")) {
            let id = block.tool_use_id.unwrap_or_default();
            let name = self.calls.tool(&id).map(str::to_owned);
            let message = block.content.map(|content| plain(&content)).unwrap_or_default();
            let event = Event::tool(name.unwrap_or_default());
            out.tell(&Event { message: Some(message.into()), ..event });
        }
        Some(())
    }

    fn result(&mut self, line: &Line<'_>, text: &str, out: &mut Output) {
        if let Some(id) = &line.session_id {
            out.converses(id);
        }
        let subtype = line.subtype.as_deref().unwrap_or_default();
        if line.is_error == Some(true) || subtype.starts_with("error") {
            out.fail(reason(line, subtype));
        } else {
            out.succeed(serde_json::from_str(text).ok());
        }
        if self.converses && !self.stays {
            out.hushed = true;
        }
    }
}

/// Why it failed, in the CLI's own words.
fn reason(line: &Line<'_>, subtype: &str) -> String {
    let said = line.result.and_then(|result| serde_json::from_str::<String>(result.get()).ok());
    let errors = line.errors.and_then(|errors| serde_json::from_str::<Vec<String>>(errors.get()).ok());
    let said = said.filter(|text| !text.trim().is_empty());
    said.or_else(|| errors.map(|errors| errors.join("; ")).filter(|text| !text.is_empty()))
        .unwrap_or_else(|| format!("it ended with {}", if subtype.is_empty() { "an error" } else { subtype }))
}

fn raw(text: &str) -> Option<Cow<'_, RawValue>> {
    serde_json::from_str::<&RawValue>(text).ok().map(Cow::Borrowed)
}

fn system(line: &Line<'_>, text: &str, out: &mut Output) {
    if let Some(id) = &line.session_id {
        out.converses(id);
    }
    let own = |text: &Option<String>| text.clone().map(Cow::Owned);
    out.tell(&Event {
        subtype: own(&line.subtype),
        session_id: own(&line.session_id),
        model: own(&line.model),
        raw: raw(text),
        ..Event::new(Kind::System)
    });
}

/// The CLI wants something of us: most often leave to use a tool.
fn control(line: &Line<'_>, out: &mut Output) {
    let Some(id) = line.request_id.clone() else { return };
    let request = line.request.and_then(|request| serde_json::from_str::<Request>(request.get()).ok());
    match request {
        Some(request) if request.subtype.as_deref() == Some("can_use_tool") => {
            out.asks.push(Ask { id, tool: request.tool_name.unwrap_or_default(), input: request.input });
        }
        _ => {
            let error = json!({ "subtype": "error", "request_id": id, "error": "unsupported here" });
            out.say(&json!({ "type": "control_response", "response": error }));
        }
    }
}

pub(crate) fn answer(ask: &Ask, answer: &Answer, out: &mut Output) {
    let decision = match answer.allow {
        true => json!({ "behavior": "allow", "updatedInput": ask.input }),
        false => json!({ "behavior": "deny", "message": answer.note }),
    };
    let response = json!({ "subtype": "success", "request_id": ask.id, "response": decision });
    out.say(&json!({ "type": "control_response", "response": response }));
}

/// The text in a tool's answer: a string, or blocks of text.
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
