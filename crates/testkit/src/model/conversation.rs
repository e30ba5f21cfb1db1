//! A conversation with the fake model, independent of its API.

use serde_json::Value;

/// How a CLI begins what it puts among the user's prompts by itself.
const NOT_OF_THE_USER: [&str; 6] = [
    "<system-reminder>",
    "<environment_context>",
    "<session_context>",
    "<turn_aborted>",
    "# AGENTS.md instructions",
    "[Request interrupted",
];

pub(super) enum Message {
    Prompt(String),
    ToolResult(String),
}

pub(super) struct Tool {
    pub(super) name: String,
    /// Takes text as it is instead of JSON.
    pub(super) freeform: bool,
}

pub(super) struct Conversation {
    pub(super) model: String,
    pub(super) streams: bool,
    pub(super) has_system: bool,
    pub(super) tools: Vec<Tool>,
    pub(super) messages: Vec<Message>,
}

impl Conversation {
    /// CLIs ask for titles and summaries beside the conversation. They offer no tools then; what we ask by hand has no
    /// system prompt.
    pub(super) fn is_aside(&self) -> bool {
        self.tools.is_empty() && self.has_system
    }

    pub(super) fn prompts(&self) -> Vec<&str> {
        let prompts = self.messages.iter().filter_map(|message| match message {
            Message::Prompt(text) => Some(text.as_str()),
            Message::ToolResult(_) => None,
        });
        prompts.collect()
    }

    /// Of the tools that were called since the last prompt.
    pub(super) fn results(&self) -> Vec<&str> {
        let since = self.messages.iter().rev().map_while(|message| match message {
            Message::Prompt(_) => None,
            Message::ToolResult(text) => Some(text.as_str()),
        });
        let mut results: Vec<&str> = since.collect();
        results.reverse();
        results
    }

    pub(super) fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    pub(super) fn prompt(&mut self, text: &str) {
        let text = text.trim();
        if !text.is_empty() && !NOT_OF_THE_USER.iter().any(|begin| text.starts_with(begin)) {
            self.messages.push(Message::Prompt(text.to_owned()));
        }
    }

    pub(super) fn result(&mut self, content: &Value) {
        self.messages.push(Message::ToolResult(text_of(content)));
    }
}

/// The texts of a content, which is a string or a list of parts.
pub(super) fn texts(content: &Value) -> Vec<&str> {
    match content {
        Value::String(text) => vec![text],
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => Vec::new(),
    }
}

/// What a tool has returned, in words.
fn text_of(content: &Value) -> String {
    match texts(content).as_slice() {
        [] => content.to_string(),
        texts => texts.join(" "),
    }
}

/// The members of a list; none when there is no list.
pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(super) fn string(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Tools that each have a name and take JSON.
pub(super) fn named<'a>(names: impl Iterator<Item = &'a Value>) -> Vec<Tool> {
    names.filter_map(Value::as_str).map(|name| Tool { name: name.to_owned(), freeform: false }).collect()
}
