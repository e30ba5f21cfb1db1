//! Anthropic's Messages.

use super::conversation::{Conversation, list, named, string, texts};
use super::plan::{Piece, Reply};
use super::shape::{Frame, STREAM_ERROR, Shape, TOKENS_IN, TOKENS_OUT, halves};
use serde_json::{Value, json};

pub(super) struct Anthropic;

impl Shape for Anthropic {
    fn conversation(&self, _path: &str, body: &Value) -> Conversation {
        let mut conversation = Conversation {
            model: string(&body["model"]),
            streams: body["stream"] == true,
            has_system: !texts(&body["system"]).is_empty(),
            tools: named(list(&body["tools"]).iter().map(|tool| &tool["name"])),
            messages: Vec::new(),
        };
        for message in list(&body["messages"]).iter().filter(|message| message["role"] == "user") {
            let content = &message["content"];
            if let Some(text) = content.as_str() {
                conversation.prompt(text);
            }
            // A new prompt may stand behind old results in the same message.
            for block in list(content) {
                match block["type"].as_str() {
                    Some("tool_result") => conversation.result(&block["content"]),
                    _ => conversation.prompt(block["text"].as_str().unwrap_or_default()),
                }
            }
        }
        conversation
    }

    fn whole(&self, reply: &Reply) -> Value {
        let content: Vec<Value> = reply.pieces.iter().map(block).collect();
        json!({
            "id": id(reply), "type": "message", "role": "assistant", "model": reply.model, "content": content,
            "stop_reason": stop_reason(reply), "stop_sequence": null, "usage": usage(TOKENS_OUT),
        })
    }

    fn stream(&self, reply: &Reply) -> Vec<Frame> {
        let message = json!({
            "id": id(reply), "type": "message", "role": "assistant", "model": reply.model, "content": [],
            "stop_reason": null, "stop_sequence": null, "usage": usage(1),
        });
        let mut frames = vec![Frame::event(&json!({"type": "message_start", "message": message}), false)];
        for (index, piece) in reply.pieces.iter().enumerate() {
            let start = json!({"type": "content_block_start", "index": index, "content_block": empty(piece)});
            frames.push(Frame::event(&start, false));
            for (delta, is_delta) in deltas(piece) {
                let delta = json!({"type": "content_block_delta", "index": index, "delta": delta});
                frames.push(Frame::event(&delta, is_delta));
            }
            frames.push(Frame::event(&json!({"type": "content_block_stop", "index": index}), false));
        }
        let delta = json!({"stop_reason": stop_reason(reply), "stop_sequence": null});
        let end = json!({"type": "message_delta", "delta": delta, "usage": usage(TOKENS_OUT)});
        frames.push(Frame::event(&end, false));
        frames.push(Frame::event(&json!({"type": "message_stop"}), false));
        frames
    }

    fn stream_error(&self, _reply: &Reply) -> Frame {
        Frame::event(&self.refusal(529, STREAM_ERROR), false)
    }

    fn refusal(&self, status: u16, message: &str) -> Value {
        let kind = match status {
            400 => "invalid_request_error",
            401 => "authentication_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            529 => "overloaded_error",
            _ => "api_error",
        };
        json!({"type": "error", "error": {"type": kind, "message": message}})
    }
}

fn id(reply: &Reply) -> String {
    format!("msg_{}", reply.id)
}

fn usage(out: u64) -> Value {
    json!({
        "input_tokens": TOKENS_IN, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
        "output_tokens": out,
    })
}

fn stop_reason(reply: &Reply) -> &'static str {
    if reply.calls() { "tool_use" } else { "end_turn" }
}

fn block(piece: &Piece) -> Value {
    match piece {
        Piece::Thought(words) => json!({"type": "thinking", "thinking": words.concat(), "signature": "fake"}),
        Piece::Text(words) => json!({"type": "text", "text": words.concat()}),
        Piece::Call { id, tool, arguments, .. } => {
            json!({"type": "tool_use", "id": id, "name": tool, "input": arguments})
        }
    }
}

/// A block before its first delta.
fn empty(piece: &Piece) -> Value {
    match piece {
        Piece::Thought(_) => json!({"type": "thinking", "thinking": "", "signature": ""}),
        Piece::Text(_) => json!({"type": "text", "text": ""}),
        Piece::Call { id, tool, .. } => json!({"type": "tool_use", "id": id, "name": tool, "input": {}}),
    }
}

fn deltas(piece: &Piece) -> Vec<(Value, bool)> {
    match piece {
        Piece::Thought(words) => {
            let words = words.iter().map(|word| (json!({"type": "thinking_delta", "thinking": word}), true));
            words.chain([(json!({"type": "signature_delta", "signature": "fake"}), false)]).collect()
        }
        Piece::Text(words) => {
            words.iter().map(|word| (json!({"type": "text_delta", "text": word}), true)).collect()
        }
        Piece::Call { arguments, .. } => {
            let json = arguments.to_string();
            let parts = ["", halves(&json)[0], halves(&json)[1]];
            parts.map(|part| (json!({"type": "input_json_delta", "partial_json": part}), true)).into()
        }
    }
}
