//! One record as one line for people: when, what happened, to what, by whom. All of it is printable ASCII.

use outpost_approvals::audit::Record;
use outpost_approvals::display::{claim, command};
use serde_json::Value;

/// Of the input of a tool. `audit export` has all of it.
const INPUT_CHARS_MAX: usize = 4000;

pub(super) fn line(record: &Record) -> String {
    let what = match record.event.as_str() {
        "received" => received(&record.data),
        "refused" => refused(&record.data),
        "shown" => Words::of(&record.data).named("question").named("digest").then("to", "to").text(),
        "decided" => decided(&record.data),
        "started" => Words::of(&record.data).named("request").named("digest").then("by", "allowed by").text(),
        "key" => key(&record.data),
        "ended" => ended(&record.data),
        "withdrawn" => Words::of(&record.data).named("question").named("digest").text(),
        _ => claim(&record.data.to_string(), usize::MAX),
    };
    format!("{:.3} {:>6} {:<9} {what}", record.time, record.seq, claim(&record.event, 40))
}

fn received(data: &Value) -> String {
    let words = Words::of(data).named("request").named("question").named("digest");
    words.word(&asked(data)).word(&peer(data)).text()
}

/// The command or the tool call that was asked for, with which rights or by which agent.
fn asked(data: &Value) -> String {
    if let Some(tool) = data.get("tool").and_then(Value::as_str) {
        return tool_call(data, tool);
    }
    if let Some(command) = data.get("command").and_then(Value::as_str) {
        return claim(command, usize::MAX);
    }
    let stages = data.get("pipeline").cloned().unwrap_or_default();
    let stages: Vec<Vec<String>> = serde_json::from_value(stages).unwrap_or_default();
    let rights =
        if data.get("privileged") == Some(&Value::Bool(true)) { "as ROOT" } else { "with own rights" };
    if stages.is_empty() { String::new() } else { format!("{rights} {}", command(&stages)) }
}

/// What an agent wants to do.
fn tool_call(data: &Value, tool: &str) -> String {
    let input = match data.get("input") {
        None | Some(Value::Null) => String::new(),
        Some(input) => format!(" input {}", claim(&input.to_string(), INPUT_CHARS_MAX)),
    };
    let words = Words::of(data).word(&format!("tool {}{input}", claim(tool, usize::MAX)));
    words.then("cli", "of").then("session", "session").then("cwd", "in").text()
}

fn refused(data: &Value) -> String {
    let words = Words::of(data).named("id").word(&asked(data)).then("approver", "approver");
    words.then("why", "because").then("denied", "because").word(&peer(data)).text()
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
    words.then("decision", "by").then("by", "by").then("note", "note").then("remember", "remember").text()
}

/// What happened to a key, and by which client.
fn key(data: &Value) -> String {
    let words = Words::of(data).then("action", "").then("name", "").named("fingerprint").then("by", "by");
    match data.get("first") == Some(&Value::Bool(true)) {
        true => words.word("as the first key, without an earlier one's signature").text(),
        false => words.text(),
    }
}

fn ended(data: &Value) -> String {
    let codes = data.get("stages").and_then(Value::as_array).map(|stages| {
        let code = |stage: &Value| match stage.get("signal").and_then(Value::as_str) {
            Some(signal) => claim(signal, 40),
            None => stage.get("exit_code").map(Value::to_string).unwrap_or_default(),
        };
        stages.iter().map(code).collect::<Vec<_>>().join(",")
    });
    let codes = codes.filter(|codes| !codes.is_empty()).map(|codes| format!("exit {codes}"));
    let words = Words::of(data).named("request").named("digest").then("status", "status");
    words.word(&codes.unwrap_or_default()).then("message", "message").text()
}

fn peer(data: &Value) -> String {
    let Some(peer) = data.get("peer") else { return String::new() };
    let number = |field: &str| peer.get(field).map(Value::to_string).unwrap_or_default();
    let program = peer.get("program").and_then(Value::as_str).unwrap_or_default();
    let (uid, pid) = (claim(&number("uid"), 40), claim(&number("pid"), 40));
    format!("from uid {uid} pid {pid} ({})", claim(program, usize::MAX))
}

/// Words of a line, those that are there.
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

    /// A field under its own name.
    fn named(self, field: &str) -> Words<'a> {
        self.then(field, field)
    }

    /// A field with a word before it.
    fn then(self, field: &str, before: &str) -> Words<'a> {
        let value = match self.data.get(field) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => claim(text, usize::MAX),
            Some(other) => claim(&other.to_string(), usize::MAX),
        };
        match value.is_empty() {
            true => self,
            false if before.is_empty() => self.word(&value),
            false => self.word(&format!("{before} {value}")),
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
    fn a_tool_call_of_an_agent_is_printed_with_its_input_in_printable_ascii() {
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
