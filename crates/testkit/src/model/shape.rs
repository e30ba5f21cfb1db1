//! What differs between the model APIs, so that one server implements them all.

use super::conversation::Conversation;
use super::plan::Reply;
use serde_json::Value;

/// Token counts reported in every answer.
pub(super) const TOKENS_IN: u64 = 10;
pub(super) const TOKENS_OUT: u64 = 7;

/// How an error in the middle of a stream calls itself.
pub(super) const STREAM_ERROR: &str = "scripted stream error";

/// One event of a stream.
pub(super) struct Frame {
    pub(super) text: String,
    /// Part of the answer's words: it waits for its time.
    pub(super) is_delta: bool,
}

impl Frame {
    pub(super) fn data(data: &Value, is_delta: bool) -> Frame {
        Frame { text: format!("data: {data}\n\n"), is_delta }
    }

    /// Named after the event's own `type`, as Anthropic and OpenAI's Responses have it.
    pub(super) fn event(data: &Value, is_delta: bool) -> Frame {
        let name = data["type"].as_str().unwrap_or_default();
        Frame { text: format!("event: {name}\ndata: {data}\n\n"), is_delta }
    }
}

pub(super) trait Shape: Sync {
    fn conversation(&self, path: &str, body: &Value) -> Conversation;

    /// The answer to a request that does not stream.
    fn whole(&self, reply: &Reply) -> Value;

    fn stream(&self, reply: &Reply) -> Vec<Frame>;

    /// Instead of the rest of a stream.
    fn stream_error(&self, reply: &Reply) -> Frame;

    fn refusal(&self, status: u16, message: &str) -> Value;
}

/// In two halves, as a model would stream it.
pub(super) fn halves(text: &str) -> [&str; 2] {
    let mut middle = text.len() / 2;
    while !text.is_char_boundary(middle) {
        middle -= 1;
    }
    let (first, second) = text.split_at(middle);
    [first, second]
}
