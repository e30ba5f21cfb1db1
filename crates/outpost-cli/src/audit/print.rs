//! Prints an audit record as one line of printable ASCII: time, event, subject, actor.

use outpost_approvals::display::{command, escape_untrusted};
use outpost_ledger::audit::Record;
use serde_json::Value;

/// Longest excerpt of a tool's input; `audit export` prints all of it.
const INPUT_CHARS_MAX: usize = 4000;

pub(super) fn line(record: &Record) -> String {
    let what = match record.event.as_str() {
        "received" => received(&record.data),
        "refused" => refused(&record.data),
        "shown" => Words::of(&record.data).named("question").named("digest").labelled("to", "to").text(),
        "decided" => decided(&record.data),
        "started" => {
            Words::of(&record.data).named("request").named("digest").labelled("by", "allowed by").text()
        }
        "key" => key(&record.data),
        "ended" => ended(&record.data),
        "withdrawn" => Words::of(&record.data).named("question").named("digest").text(),
        _ => escape_untrusted(&record.data.to_string(), usize::MAX),
    };
    format!("{:.3} {:>6} {:<9} {what}", record.time, record.seq, escape_untrusted(&record.event, 40))
}

fn received(data: &Value) -> String {
    let words = Words::of(data).named("request").named("question").named("digest");
    words.word(&asked(data)).word(&peer(data)).text()
}

/// The requested command with its user, or the tool call with its agent.
fn asked(data: &Value) -> String {
    if let Some(tool) = data.get("tool").and_then(Value::as_str) {
        return tool_call(data, tool);
    }
    if let Some(command) = data.get("command").and_then(Value::as_str) {
        return escape_untrusted(command, usize::MAX);
    }
    let stages = data.get("pipeline").cloned().unwrap_or_default();
    let stages: Vec<Vec<String>> = serde_json::from_value(stages).unwrap_or_default();
    let rights =
        if data.get("privileged") == Some(&Value::Bool(true)) { "as ROOT" } else { "with own rights" };
    if stages.is_empty() { String::new() } else { format!("{rights} {}", command(&stages)) }
}

/// The tool call of an agent.
fn tool_call(data: &Value, tool: &str) -> String {
    let input = match data.get("input") {
        None | Some(Value::Null) => String::new(),
        Some(input) => format!(" input {}", escape_untrusted(&input.to_string(), INPUT_CHARS_MAX)),
    };
    let words = Words::of(data).word(&format!("tool {}{input}", escape_untrusted(tool, usize::MAX)));
    words.labelled("cli", "of").labelled("session", "session").labelled("cwd", "in").text()
}

fn refused(data: &Value) -> String {
    let words = Words::of(data).named("id").word(&asked(data)).labelled("approver", "approver");
    words.labelled("why", "because").labelled("denied", "because").word(&peer(data)).text()
}

fn decided(data: &Value) -> String {
    let is = |field: &str| data.get(field).and_then(Value::as_bool);
    let what = match (is("allow"), is("revoked")) {
        (Some(true), _) => "approved",
        (Some(false), _) => "denied",
        (None, Some(true)) => "revoked",
        (None, _) => "",
    };
    let words = Words::of(data).word(what).named("grant").named("question").named("request").named("digest");
    words
        .labelled("decision", "by")
        .labelled("by", "by")
        .labelled("note", "note")
        .labelled("remember", "remember")
        .text()
}

/// A change of a key, and the client that made it.
fn key(data: &Value) -> String {
    let words =
        Words::of(data).labelled("action", "").labelled("name", "").named("fingerprint").labelled("by", "by");
    match data.get("first") == Some(&Value::Bool(true)) {
        true => words.word("as the first key, without a signature").text(),
        false => words.text(),
    }
}

fn ended(data: &Value) -> String {
    let codes = data.get("stages").and_then(Value::as_array).map(|stages| {
        let code = |stage: &Value| match stage.get("signal").and_then(Value::as_str) {
            Some(signal) => escape_untrusted(signal, 40),
            None => stage.get("exit_code").map(Value::to_string).unwrap_or_default(),
        };
        stages.iter().map(code).collect::<Vec<_>>().join(",")
    });
    let codes = codes.filter(|codes| !codes.is_empty()).map(|codes| format!("exit {codes}"));
    let words = Words::of(data).named("request").named("digest").labelled("status", "status");
    words.word(&codes.unwrap_or_default()).labelled("message", "message").text()
}

fn peer(data: &Value) -> String {
    let Some(peer) = data.get("peer") else { return String::new() };
    let number = |field: &str| peer.get(field).map(Value::to_string).unwrap_or_default();
    let program = peer.get("program").and_then(Value::as_str).unwrap_or_default();
    let (uid, pid) = (escape_untrusted(&number("uid"), 40), escape_untrusted(&number("pid"), 40));
    format!("from uid {uid} pid {pid} ({})", escape_untrusted(program, usize::MAX))
}

/// Builds a line of words and skips absent ones.
struct Words<'a> {
    data: &'a Value,
    words: Vec<String>,
}

impl<'a> Words<'a> {
    fn of(data: &'a Value) -> Words<'a> {
        Words { data, words: Vec::new() }
    }

    fn word(mut self, word: &str) -> Words<'a> {
        self.words.extend(Some(word).filter(|word| !word.is_empty()).map(str::to_owned));
        self
    }

    /// A field with its name.
    fn named(self, field: &str) -> Words<'a> {
        self.labelled(field, field)
    }

    /// A field with another label.
    fn labelled(self, field: &str, label: &str) -> Words<'a> {
        let value = match self.data.get(field) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => escape_untrusted(text, usize::MAX),
            Some(other) => escape_untrusted(&other.to_string(), usize::MAX),
        };
        match value.is_empty() {
            true => self,
            false if label.is_empty() => self.word(&value),
            false => self.word(&format!("{label} {value}")),
        }
    }

    fn text(self) -> String {
        self.words.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn printed(event: &str, data: Value) -> String {
        let time = "2026-11-16T07:05:47Z".parse().unwrap();
        line(&Record { seq: 7, time, boot_ns: 0, event: event.into(), data, line: String::new() })
    }

    #[test]
    fn a_tool_call_is_printed_with_its_escaped_input() {
        let data = json!({
            "request": "q", "face": "sessions", "session": "s", "cli": "claude", "digest": "d",
            "tool": "Bash", "input": {"command": "rm -rf /\u{1b}[2J\u{202e}"}, "cwd": "/work",
        });
        let line = printed("received", data);
        assert!(line.contains(r#"request q digest d tool Bash input {"command":"rm -rf /"#), "{line}");
        assert!(line.ends_with("of claude session s in /work"), "{line}");
        assert!(line.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{line}");
    }

    #[test]
    fn a_refusal_names_the_command() {
        let line = printed("refused", json!({"id": "1", "command": "as ROOT id", "why": "no"}));
        assert!(line.ends_with("refused   id 1 as ROOT id because no"), "{line}");
    }
}
