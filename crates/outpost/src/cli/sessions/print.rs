//! A session's events as a human reads them in a shell.

use super::say;
use crate::console;
use serde_json::Value;

pub(super) struct Printer {
    as_json: bool,
    /// A line has been begun.
    is_open: bool,
    /// Deltas since the last text, which repeats them as a whole.
    told: String,
    /// The last turn did.
    pub(super) has_failed: bool,
}

impl Printer {
    pub(super) fn new(as_json: bool) -> Printer {
        Printer { as_json, is_open: false, told: String::new(), has_failed: false }
    }

    pub(super) fn print(&mut self, event: &Value, text: &str) {
        let member = |name: &str| event.get(name).and_then(Value::as_str).unwrap_or_default();
        let kind = member("type");
        if let "error" | "interrupted" | "result" = kind {
            self.has_failed = kind != "result";
            self.told.clear();
        }
        if self.as_json {
            if kind != "ping" {
                say(&console::json(text));
            }
            return;
        }
        match kind {
            "partial" => {
                self.write(member("content"));
                self.told.push_str(member("content"));
                self.is_open = true;
            }
            "text" => self.text(member("content")),
            "tool_use" => self.tool(event),
            "approval" => {
                let (state, tool, id) = (member("state"), member("tool"), member("approval"));
                self.note(&format!("{state}: use of {tool} (outpost approvals show {id})"));
            }
            "queued" => self.note("the session is busy; the message waits (outpost sessions watch)"),
            "error" => self.note(&format!("error: {}", member("message"))),
            "interrupted" => self.note("interrupted"),
            "result" => self.end(),
            _ => {}
        }
    }

    /// A whole text, most often of what deltas have told. They can be withdrawn, and then it is what counts.
    fn text(&mut self, text: &str) {
        let told = std::mem::take(&mut self.told);
        if told.trim() == text.trim() {
            return self.end();
        }
        match text.strip_prefix(&told).filter(|_| self.is_open) {
            Some(rest) => {
                self.write(rest);
                self.end();
            }
            None => self.note(text),
        }
    }

    fn tool(&mut self, event: &Value) {
        let tool = event.get("tool").and_then(Value::as_str).unwrap_or_default();
        if let Some(input) = event.get("input") {
            let command = input.get("command").and_then(Value::as_str).map(str::to_owned);
            self.note(&format!("[{tool}] {}", command.unwrap_or_else(|| input.to_string())));
        } else if let Some(message) = event.get("message").and_then(Value::as_str) {
            for line in message.lines().take(20) {
                self.note(&format!("  {line}"));
            }
        }
    }

    fn note(&mut self, text: &str) {
        self.end();
        say(text);
    }

    fn write(&self, text: &str) {
        console::out(text);
    }

    pub(super) fn end(&mut self) {
        if std::mem::take(&mut self.is_open) {
            say("");
        }
    }
}
