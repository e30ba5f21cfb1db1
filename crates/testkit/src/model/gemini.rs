//! Gemini's generateContent and streamGenerateContent.

use super::conversation::{Conversation, list, named, texts};
use super::plan::{Piece, Reply};
use super::shape::{Frame, STREAM_ERROR, Shape, TOKENS_IN, TOKENS_OUT};
use serde_json::{Value, json};

pub(super) struct Gemini;

impl Shape for Gemini {
    fn conversation(&self, path: &str, body: &Value) -> Conversation {
        let (model, method) =
            path.rsplit('/').next().and_then(|last| last.split_once(':')).unwrap_or_default();
        let declarations = list(&body["tools"]).iter().flat_map(|tool| list(&tool["functionDeclarations"]));
        let mut conversation = Conversation {
            model: model.to_owned(),
            streams: method.starts_with("stream"),
            has_system: !texts(&body["systemInstruction"]["parts"]).is_empty(),
            tools: named(declarations.map(|declaration| &declaration["name"])),
            messages: Vec::new(),
        };
        let contents = list(&body["contents"]).iter().filter(|content| content["role"] != "model");
        // Prompts that follow each other are parts of one content.
        for part in contents.flat_map(|content| list(&content["parts"])) {
            let response = &part["functionResponse"]["response"];
            if response.is_null() {
                conversation.prompt(part["text"].as_str().unwrap_or_default());
            } else {
                conversation.result(response.get("output").or(response.get("error")).unwrap_or(response));
            }
        }
        conversation
    }

    fn whole(&self, reply: &Reply) -> Value {
        let parts = reply.pieces.iter().map(|piece| part(piece, &words(piece).concat()));
        chunk(reply, &parts.collect::<Vec<_>>(), true)
    }

    fn stream(&self, reply: &Reply) -> Vec<Frame> {
        let mut frames = Vec::new();
        for piece in &reply.pieces {
            for word in words(piece) {
                frames.push(Frame::data(&chunk(reply, &[part(piece, &word)], false), true));
            }
        }
        frames.push(Frame::data(&chunk(reply, &[json!({"text": ""})], true), false));
        frames
    }

    fn stream_error(&self, _reply: &Reply) -> Frame {
        Frame::data(&self.refusal(500, STREAM_ERROR), false)
    }

    fn refusal(&self, status: u16, message: &str) -> Value {
        let name = match status {
            400 => "INVALID_ARGUMENT",
            401 => "UNAUTHENTICATED",
            404 => "NOT_FOUND",
            429 => "RESOURCE_EXHAUSTED",
            503 => "UNAVAILABLE",
            _ => "INTERNAL",
        };
        json!({"error": {"code": status, "message": message, "status": name}})
    }
}

/// A call has no deltas: it comes as one.
fn words(piece: &Piece) -> Vec<String> {
    match piece {
        Piece::Thought(words) | Piece::Text(words) => words.clone(),
        Piece::Call { .. } => vec![String::new()],
    }
}

fn part(piece: &Piece, word: &str) -> Value {
    match piece {
        Piece::Thought(_) => json!({"text": word, "thought": true}),
        Piece::Text(_) => json!({"text": word}),
        Piece::Call { tool, arguments, .. } => json!({"functionCall": {"name": tool, "args": arguments}}),
    }
}

fn chunk(reply: &Reply, parts: &[Value], is_last: bool) -> Value {
    let mut candidate = json!({"content": {"role": "model", "parts": parts}, "index": 0});
    if is_last {
        candidate["finishReason"] = json!("STOP");
    }
    let usage = json!({
        "promptTokenCount": TOKENS_IN, "candidatesTokenCount": TOKENS_OUT,
        "totalTokenCount": TOKENS_IN + TOKENS_OUT,
    });
    json!({
        "candidates": [candidate], "usageMetadata": usage, "modelVersion": reply.model,
        "responseId": reply.id,
    })
}
