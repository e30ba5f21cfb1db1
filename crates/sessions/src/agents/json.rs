//! JSON helpers that several adapters share: messages, results and error texts.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use std::borrow::Cow;

/// A JSON-RPC message. With a method it is a request or a notification, with only an id it is a response.
#[derive(Deserialize)]
pub(super) struct Message {
    #[serde(default)]
    pub(super) id: Option<Value>,
    #[serde(default)]
    pub(super) method: Option<String>,
    #[serde(default)]
    pub(super) params: Value,
    #[serde(default)]
    pub(super) result: Option<Value>,
    #[serde(default)]
    pub(super) error: Option<Value>,
}

/// A value as a member of an event.
pub(super) fn raw(value: &Value) -> Option<Cow<'static, RawValue>> {
    to_raw_value(value).ok().map(Cow::Owned)
}

/// The text of a tool result: a string, the `message` of an object, the texts of its content, or the value as JSON.
pub(super) fn text_of(value: &Value) -> String {
    if let Some(text) = value.as_str().or_else(|| value.get("message").and_then(Value::as_str)) {
        return text.to_owned();
    }
    let texts = value.get("content").and_then(Value::as_array).into_iter().flatten();
    let texts: Vec<&str> = texts.filter_map(|block| block.get("text").and_then(Value::as_str)).collect();
    if texts.is_empty() { value.to_string() } else { texts.join("\n") }
}

/// Members with the text of an error or a notice, and members with additional details.
const HEADLINES: [&str; 4] = ["message", "summary", "error", "detail"];
const DETAILS: [&str; 2] = ["details", "additionalDetails"];

/// A longer text is not searched for JSON.
const EMBEDDED_BYTES_MAX: usize = 64 * 1024;

/// The text of an error or a notice for people, never JSON. API errors arrive as JSON in a string, also nested.
pub(super) fn reason(value: &Value) -> String {
    known_text(value).unwrap_or_else(|| listed(value))
}

fn known_text(value: &Value) -> Option<String> {
    if let Some(text) = value.as_str() {
        return Some(without_json(text));
    }
    let headline = HEADLINES.into_iter().find_map(|name| known_text(value.get(name)?))?;
    let details = DETAILS.into_iter().find_map(|name| known_text(value.get(name)?));
    match details.filter(|details| !details.is_empty()) {
        Some(details) => Some(format!("{headline}: {details}")),
        None => Some(headline),
    }
}

/// Replaces each JSON object in a text by its message. An object without a message stays.
pub(super) fn without_json(text: &str) -> String {
    if text.len() > EMBEDDED_BYTES_MAX {
        return text.to_owned();
    }
    let (mut plain, mut rest) = (String::new(), text);
    while let Some((before, from)) = rest.find('{').and_then(|at| rest.split_at_checked(at)) {
        plain.push_str(before);
        let mut objects = serde_json::Deserializer::from_str(from).into_iter::<Value>();
        let message = objects.next().and_then(Result::ok).and_then(|object| known_text(&object));
        let length = if message.is_some() { objects.byte_offset() } else { 1 };
        let (object, behind) = from.split_at_checked(length).unwrap_or((from, ""));
        plain.push_str(message.as_deref().unwrap_or(object));
        rest = behind;
    }
    plain.push_str(rest);
    plain
}

/// The leaves of a value with unknown members: `code: 5, kind: quota`.
fn listed(value: &Value) -> String {
    let leaf = |(name, value): (&String, &Value)| match value {
        Value::Null => None,
        Value::Object(_) | Value::Array(_) => Some(listed(value)),
        value => Some(format!("{name}: {}", listed(value))),
    };
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Object(members) => members.iter().filter_map(leaf).collect::<Vec<_>>().join(", "),
        Value::Array(values) => values.iter().map(reason).collect::<Vec<_>>().join(", "),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn errors_and_notices_become_text_and_never_json() {
        let api =
            r#"{"error": {"message": "scripted error 400", "type": "invalid_request_error", "code": null}}"#;
        let cases = [
            (json!("plain"), "plain"),
            (json!({ "threadId": "1", "message": "no metadata" }), "no metadata"),
            (json!({ "summary": "no bubblewrap on PATH", "details": null }), "no bubblewrap on PATH"),
            (json!({ "summary": "unknown key", "details": "line 3", "path": "/c" }), "unknown key: line 3"),
            (json!({ "message": "Reconnecting", "additionalDetails": "refused" }), "Reconnecting: refused"),
            (json!({ "message": api }), "scripted error 400"),
            (json!({ "message": { "message": api } }), "scripted error 400"),
            (json!(format!("Reconnecting... 1/1 ({api})")), "Reconnecting... 1/1 (scripted error 400)"),
            (json!(json!({ "detail": api }).to_string()), "scripted error 400"),
            (json!({ "error": "overloaded" }), "overloaded"),
            (json!({ "code": 5, "kind": "quota", "more": null }), "code: 5, kind: quota"),
            (json!([{ "message": "one" }, "two"]), "one, two"),
            (json!({ "error": { "code": -32600 } }), "code: -32600"),
            (Value::Null, ""),
        ];
        for (value, expected) in cases {
            assert_eq!(reason(&value), expected, "{value}");
        }
    }

    #[test]
    fn braces_that_are_no_error_stay() {
        for text in ["use ${HOME} or {a}", "{\"a\":1} is no error", "{", "a { b { c", "{}", ""] {
            assert_eq!(without_json(text), text);
        }
        let nested = "{\"a\":".repeat(EMBEDDED_BYTES_MAX / 5);
        assert_eq!(without_json(&nested), nested);
    }

    #[test]
    fn the_text_of_a_tool_is_unchanged() {
        let result = r#"{"message":"from a tool"}"#;
        assert_eq!(text_of(&json!(result)), result);
    }
}
