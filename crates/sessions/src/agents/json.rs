//! What the messages of several agents have in common.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use std::borrow::Cow;

/// A message of JSON-RPC, either way: with a method it asks or tells, with an id only it answers.
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

/// A value as it stands in an event.
pub(super) fn raw(value: &Value) -> Option<Cow<'static, RawValue>> {
    to_raw_value(value).ok().map(Cow::Owned)
}

/// What a value says in words: a string, the `message` of an object, the texts of its content, or itself.
pub(super) fn words(value: &Value) -> String {
    if let Some(text) = value.as_str().or_else(|| value.get("message").and_then(Value::as_str)) {
        return text.to_owned();
    }
    let texts = value.get("content").and_then(Value::as_array).into_iter().flatten();
    let texts: Vec<&str> = texts.filter_map(|block| block.get("text").and_then(Value::as_str)).collect();
    if texts.is_empty() { value.to_string() } else { texts.join("\n") }
}
