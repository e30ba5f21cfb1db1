//! OpenAI's Chat Completions.

use super::conversation::{Conversation, list, named, string, texts};
use super::plan::{Piece, Reply};
use super::responses::refusal;
use super::shape::{Frame, STREAM_ERROR, Shape, TOKENS_IN, TOKENS_OUT, halves};
use serde_json::{Value, json};

pub(super) struct Chat;

impl Shape for Chat {
    fn conversation(&self, _path: &str, body: &Value) -> Conversation {
        let messages = list(&body["messages"]);
        let mut conversation = Conversation {
            model: string(&body["model"]),
            streams: body["stream"] == true,
            has_system: messages.iter().any(|message| message["role"] == "system"),
            tools: named(list(&body["tools"]).iter().map(|tool| &tool["function"]["name"])),
            messages: Vec::new(),
        };
        for message in messages {
            match message["role"].as_str() {
                Some("user") => {
                    texts(&message["content"]).into_iter().for_each(|text| conversation.prompt(text))
                }
                Some("tool") => conversation.result(&message["content"]),
                _ => {}
            }
        }
        conversation
    }

    fn whole(&self, reply: &Reply) -> Value {
        let mut message = json!({"role": "assistant", "content": null});
        for piece in &reply.pieces {
            match piece {
                Piece::Thought(words) => message["reasoning_content"] = json!(words.concat()),
                Piece::Text(words) => {
                    message["content"] = json!(string(&message["content"]) + &words.concat());
                }
                Piece::Call { id, tool, arguments, .. } => {
                    let mut calls = list(&message["tool_calls"]).to_vec();
                    let function = json!({"name": tool, "arguments": arguments.to_string()});
                    calls.push(json!({"id": id, "type": "function", "function": function}));
                    message["tool_calls"] = json!(calls);
                }
            }
        }
        let choice = json!({"index": 0, "message": message, "finish_reason": finish_reason(reply)});
        let mut whole = head(reply, "chat.completion");
        whole["choices"] = json!([choice]);
        whole["usage"] = usage();
        whole
    }

    fn stream(&self, reply: &Reply) -> Vec<Frame> {
        let chunk = |delta: Value, finish: Value, is_delta: bool| {
            let mut chunk = head(reply, "chat.completion.chunk");
            chunk["choices"] = json!([{"index": 0, "delta": delta, "finish_reason": finish}]);
            Frame::data(&chunk, is_delta)
        };
        let mut frames = vec![chunk(json!({"role": "assistant", "content": ""}), Value::Null, false)];
        let mut calls = 0;
        for piece in &reply.pieces {
            let deltas: Vec<Value> = match piece {
                Piece::Thought(words) => {
                    words.iter().map(|word| json!({"reasoning_content": word})).collect()
                }
                Piece::Text(words) => words.iter().map(|word| json!({"content": word})).collect(),
                Piece::Call { id, tool, arguments, .. } => {
                    calls += 1;
                    call_deltas(calls - 1, id, tool, &arguments.to_string())
                }
            };
            frames.extend(deltas.into_iter().map(|delta| chunk(delta, Value::Null, true)));
        }
        frames.push(chunk(json!({}), json!(finish_reason(reply)), false));
        let mut end = head(reply, "chat.completion.chunk");
        end["choices"] = json!([]);
        end["usage"] = usage();
        frames.push(Frame::data(&end, false));
        frames.push(Frame { text: "data: [DONE]\n\n".into(), is_delta: false });
        frames
    }

    fn stream_error(&self, _reply: &Reply) -> Frame {
        Frame::data(&refusal(500, STREAM_ERROR), false)
    }

    fn refusal(&self, status: u16, message: &str) -> Value {
        refusal(status, message)
    }
}

fn head(reply: &Reply, object: &str) -> Value {
    json!({"id": format!("chatcmpl-{}", reply.id), "object": object, "created": 1, "model": reply.model})
}

fn usage() -> Value {
    json!({
        "prompt_tokens": TOKENS_IN, "completion_tokens": TOKENS_OUT, "total_tokens": TOKENS_IN + TOKENS_OUT,
    })
}

fn finish_reason(reply: &Reply) -> &'static str {
    if reply.calls() { "tool_calls" } else { "stop" }
}

/// Its name first, its arguments in pieces.
fn call_deltas(index: usize, id: &str, tool: &str, arguments: &str) -> Vec<Value> {
    let function = json!({"name": tool, "arguments": ""});
    let mut deltas =
        vec![json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]})];
    for half in halves(arguments) {
        deltas.push(json!({"tool_calls": [{"index": index, "function": {"arguments": half}}]}));
    }
    deltas
}
