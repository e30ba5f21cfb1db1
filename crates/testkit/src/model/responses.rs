//! OpenAI's Responses.

use super::conversation::{Conversation, Tool, list, string, texts};
use super::plan::{Piece, Reply};
use super::shape::{Frame, STREAM_ERROR, Shape, TOKENS_IN, TOKENS_OUT, halves};
use serde_json::{Value, json};

pub(super) struct Responses;

impl Shape for Responses {
    fn conversation(&self, _path: &str, body: &Value) -> Conversation {
        let tools = list(&body["tools"]).iter().filter_map(|tool| {
            Some(Tool { name: tool["name"].as_str()?.to_owned(), freeform: tool["type"] == "custom" })
        });
        let input = list(&body["input"]);
        let is_system = |item: &Value| item["role"] == "system" || item["role"] == "developer";
        let mut conversation = Conversation {
            model: string(&body["model"]),
            streams: body["stream"] == true,
            has_system: !texts(&body["instructions"]).is_empty() || input.iter().any(is_system),
            tools: tools.collect(),
            messages: Vec::new(),
        };
        if let Some(text) = body["input"].as_str() {
            conversation.prompt(text);
        }
        for item in input {
            match item["type"].as_str() {
                Some("function_call_output" | "custom_tool_call_output") => {
                    conversation.result(&item["output"])
                }
                _ if item["role"] == "user" => {
                    texts(&item["content"]).into_iter().for_each(|text| conversation.prompt(text));
                }
                _ => {}
            }
        }
        conversation
    }

    fn whole(&self, reply: &Reply) -> Value {
        let items: Vec<Value> =
            reply.pieces.iter().enumerate().map(|(index, piece)| finished(reply, index, piece)).collect();
        response(reply, "completed", &json!(items), &Value::Null)
    }

    fn stream(&self, reply: &Reply) -> Vec<Frame> {
        let begun = response(reply, "in_progress", &json!([]), &Value::Null);
        let mut events = vec![
            (json!({"type": "response.created", "response": begun}), false),
            (json!({"type": "response.in_progress", "response": begun}), false),
        ];
        for (index, piece) in reply.pieces.iter().enumerate() {
            events.extend(item_events(reply, index, piece));
        }
        events.push((json!({"type": "response.completed", "response": self.whole(reply)}), false));
        let numbered = events.into_iter().enumerate().map(|(number, (mut event, is_delta))| {
            event["sequence_number"] = json!(number);
            Frame::event(&event, is_delta)
        });
        numbered.collect()
    }

    fn stream_error(&self, reply: &Reply) -> Frame {
        let error = json!({"code": "server_error", "message": STREAM_ERROR});
        let failed = response(reply, "failed", &json!([]), &error);
        Frame::event(&json!({"type": "response.failed", "response": failed}), false)
    }

    fn refusal(&self, status: u16, message: &str) -> Value {
        refusal(status, message)
    }
}

/// The same in all APIs of OpenAI.
pub(super) fn refusal(status: u16, message: &str) -> Value {
    let (kind, code) = match status {
        401 => ("invalid_request_error", json!("invalid_api_key")),
        404 => ("invalid_request_error", json!("model_not_found")),
        429 => ("rate_limit_error", json!("rate_limit_exceeded")),
        400..500 => ("invalid_request_error", Value::Null),
        _ => ("server_error", Value::Null),
    };
    json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
}

fn response(reply: &Reply, status: &str, output: &Value, error: &Value) -> Value {
    let usage = json!({
        "input_tokens": TOKENS_IN, "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": TOKENS_OUT, "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": TOKENS_IN + TOKENS_OUT,
    });
    json!({
        "id": format!("resp_{}", reply.id), "object": "response", "created_at": 1, "status": status,
        "error": error, "incomplete_details": null, "model": reply.model, "output": output,
        "usage": if status == "completed" { usage } else { Value::Null },
    })
}

fn item_id(reply: &Reply, index: usize, piece: &Piece) -> String {
    let kind = match piece {
        Piece::Thought(_) => "rs",
        Piece::Text(_) => "msg",
        Piece::Call { freeform: true, .. } => "ctc",
        Piece::Call { .. } => "fc",
    };
    format!("{kind}_{}_{index}", reply.id)
}

/// What a tool that takes text is given: the member `input`, as the directive has it.
fn freeform_input(arguments: &Value) -> String {
    arguments["input"].as_str().map_or_else(|| arguments.to_string(), str::to_owned)
}

fn item(reply: &Reply, index: usize, piece: &Piece, words: &str, status: &str) -> Value {
    let id = item_id(reply, index, piece);
    match piece {
        Piece::Thought(_) => {
            let summary: Vec<Value> = match words {
                "" => Vec::new(),
                words => vec![json!({"type": "summary_text", "text": words})],
            };
            json!({"type": "reasoning", "id": id, "summary": summary, "encrypted_content": null})
        }
        Piece::Text(_) => {
            let content: Vec<Value> = match words {
                "" => Vec::new(),
                words => vec![json!({"type": "output_text", "text": words, "annotations": []})],
            };
            json!({"type": "message", "id": id, "role": "assistant", "status": status, "content": content})
        }
        Piece::Call { id: call, tool, freeform: true, .. } => {
            json!({"type": "custom_tool_call", "id": id, "call_id": call, "name": tool, "input": words, "status": status})
        }
        Piece::Call { id: call, tool, .. } => {
            json!({"type": "function_call", "id": id, "call_id": call, "name": tool, "arguments": words, "status": status})
        }
    }
}

fn finished(reply: &Reply, index: usize, piece: &Piece) -> Value {
    item(reply, index, piece, &words(piece), "completed")
}

fn words(piece: &Piece) -> String {
    match piece {
        Piece::Thought(words) | Piece::Text(words) => words.concat(),
        Piece::Call { arguments, freeform: true, .. } => freeform_input(arguments),
        Piece::Call { arguments, .. } => arguments.to_string(),
    }
}

fn item_events(reply: &Reply, index: usize, piece: &Piece) -> Vec<(Value, bool)> {
    let id = item_id(reply, index, piece);
    let all = words(piece);
    let event = |kind: &str, more: Value| {
        let mut event = json!({"type": kind, "output_index": index, "item_id": id});
        if let (Some(event), Value::Object(more)) = (event.as_object_mut(), more) {
            event.extend(more);
        }
        event
    };
    let begun = item(reply, index, piece, "", "in_progress");
    let added = json!({"type": "response.output_item.added", "output_index": index, "item": begun});
    let mut events = vec![(added, false)];
    match piece {
        Piece::Thought(words) => {
            let part =
                |text: &str| json!({"summary_index": 0, "part": {"type": "summary_text", "text": text}});
            events.push((event("response.reasoning_summary_part.added", part("")), false));
            for word in words {
                let delta = json!({"summary_index": 0, "delta": word});
                events.push((event("response.reasoning_summary_text.delta", delta), true));
            }
            let text = json!({"summary_index": 0, "text": all});
            events.push((event("response.reasoning_summary_text.done", text), false));
            events.push((event("response.reasoning_summary_part.done", part(&all)), false));
        }
        Piece::Text(words) => {
            let part = |text: &str| json!({"content_index": 0, "part": {"type": "output_text", "text": text, "annotations": []}});
            events.push((event("response.content_part.added", part("")), false));
            for word in words {
                let delta = json!({"content_index": 0, "delta": word});
                events.push((event("response.output_text.delta", delta), true));
            }
            let text = json!({"content_index": 0, "text": all});
            events.push((event("response.output_text.done", text), false));
            events.push((event("response.content_part.done", part(&all)), false));
        }
        Piece::Call { freeform, .. } => {
            let (kind, member) = match freeform {
                true => ("response.custom_tool_call_input", "input"),
                false => ("response.function_call_arguments", "arguments"),
            };
            for half in halves(&all) {
                events.push((event(&format!("{kind}.delta"), json!({"delta": half})), true));
            }
            let mut done = event(&format!("{kind}.done"), json!({}));
            done[member] = json!(all);
            events.push((done, false));
        }
    }
    let done = finished(reply, index, piece);
    events.push((json!({"type": "response.output_item.done", "output_index": index, "item": done}), false));
    events
}
