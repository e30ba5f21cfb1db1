//! Prints the events of a session as text or JSON.

use super::print_line;
use crate::console;
use serde_json::Value;

pub(super) struct Printer {
    as_json: bool,
    /// The cursor is not at the start of a line.
    is_open: bool,
    /// Deltas since the last `text` event, which repeats them as a whole.
    streamed: String,
    /// The last turn failed.
    pub(super) has_failed: bool,
}

impl Printer {
    pub(super) fn new(as_json: bool) -> Printer {
        Printer { as_json, is_open: false, streamed: String::new(), has_failed: false }
    }

    pub(super) fn print(&mut self, event: &Value, text: &str) {
        let member = |name: &str| event.get(name).and_then(Value::as_str).unwrap_or_default();
        let kind = member("type");
        if let "error" | "interrupted" | "result" = kind {
            self.has_failed = kind != "result";
            self.streamed.clear();
        }
        if self.as_json {
            if kind != "ping" {
                print_line(&console::json(text));
            }
            return;
        }
        match kind {
            "partial" => {
                self.write(member("content"));
                self.streamed.push_str(member("content"));
                self.is_open = true;
            }
            "text" => self.text(member("content")),
            "tool_use" => self.tool(event),
            "approval" => {
                let (state, tool, id) = (member("state"), member("tool"), member("approval"));
                self.note(&match state {
                    "asked" => format!(
                        "approval needed for {tool}: answer with `outpost approve` (details: outpost approvals show {id})"
                    ),
                    state => format!("{tool} {state} (outpost approvals show {id})"),
                });
            }
            "queued" => self.note("the session is busy; the message is queued (outpost sessions watch)"),
            "error" => self.note(&format!("error: {}", member("message"))),
            "interrupted" => self.note("interrupted"),
            "result" => self.end(),
            _ => {}
        }
    }

    /// Prints a complete text. It usually equals the streamed deltas; if it differs, it replaces them.
    fn text(&mut self, text: &str) {
        let streamed = std::mem::take(&mut self.streamed);
        if streamed.trim() == text.trim() {
            return self.end();
        }
        match text.strip_prefix(&streamed).filter(|_| self.is_open) {
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
        print_line(text);
    }

    fn write(&self, text: &str) {
        console::out(text);
    }

    pub(super) fn end(&mut self) {
        if std::mem::take(&mut self.is_open) {
            print_line("");
        }
    }
}
