//! The fake model over real HTTP, whole and streamed, in every API that it speaks.

use super::Model;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const KEY: &str = "sk-fake";

fn post(model: &Model, path: &str, key: &str, body: &Value) -> (u16, Result<String, ureq::Error>) {
    let agent: ureq::Agent =
        ureq::Agent::config_builder().http_status_as_error(false).proxy(None).build().into();
    let request = agent.post(format!("{}{path}", model.url())).header("x-api-key", key);
    let mut response = request.content_type("application/json").send(body.to_string()).unwrap();
    (response.status().as_u16(), response.body_mut().read_to_string())
}

fn whole(model: &Model, path: &str, body: &Value) -> Value {
    let (status, text) = post(model, path, KEY, body);
    let text = text.unwrap();
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// The data of a stream's events.
fn events(text: &str) -> Vec<Value> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

fn stream(model: &Model, path: &str, body: &Value) -> Vec<Value> {
    let (status, text) = post(model, path, KEY, body);
    let text = text.unwrap();
    assert_eq!(status, 200, "{text}");
    events(&text)
}

/// Texts at this place of the events that have one.
fn texts<'a>(events: &'a [Value], pointer: &str) -> Vec<&'a str> {
    events.iter().filter_map(|event| event.pointer(pointer)?.as_str()).collect()
}

fn messages(prompt: &str, streams: bool) -> Value {
    json!({"model": "m", "stream": streams, "messages": [{"role": "user", "content": prompt}]})
}

#[test]
fn anthropic_messages() {
    let model = Model::start();
    let path = "/v1/messages";
    let answer = whole(&model, path, &messages("[[think]] hello there", false));
    assert_eq!(answer.pointer("/content/0/thinking"), Some(&json!("Let me think about it.")));
    assert_eq!(answer.pointer("/content/1/text"), Some(&json!("You wrote: hello there")));
    assert_eq!(answer["stop_reason"], "end_turn");

    let seen = stream(&model, path, &messages("hello there", true));
    assert_eq!(texts(&seen, "/delta/text"), ["You ", "wrote: ", "hello ", "there"]);
    assert_eq!(texts(&seen, "/delta/stop_reason"), ["end_turn"]);
    assert_eq!(seen.first().unwrap()["type"], "message_start");
    assert_eq!(seen.last().unwrap()["type"], "message_stop");

    let mut call = messages("[[sh: ls]]", true);
    call["tools"] = json!([{"name": "Bash"}]);
    let seen = stream(&model, path, &call);
    let input = texts(&seen, "/delta/partial_json").concat();
    let input: Value = serde_json::from_str(&input).unwrap();
    assert_eq!(input["command"], "ls");
    assert_eq!(texts(&seen, "/delta/stop_reason"), ["tool_use"]);

    let reminder = json!({"type": "text", "text": "<system-reminder>[[status: 500]]</system-reminder>"});
    let result =
        json!({"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "a\nb"}]});
    let blocks = call["messages"].as_array_mut().unwrap();
    blocks.push(json!({"role": "user", "content": [result, reminder]}));
    let seen = stream(&model, path, &call);
    assert_eq!(texts(&seen, "/delta/text").concat(), "Tool returned: a b. Done.");

    let count = whole(&model, "/v1/messages/count_tokens", &messages("x", false));
    assert_eq!(count, json!({"input_tokens": 10}));
}

#[test]
fn openai_responses() {
    let model = Model::start();
    let path = "/v1/responses";
    let answer = whole(&model, path, &json!({"model": "m", "input": "hello there"}));
    assert_eq!(answer.pointer("/output/0/content/0/text"), Some(&json!("You wrote: hello there")));
    assert_eq!(answer["status"], "completed");

    let prompt = json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "[[think]] hi"}]});
    let seen = stream(&model, path, &json!({"model": "m", "stream": true, "input": [prompt]}));
    let deltas: Vec<&Value> =
        seen.iter().filter(|event| event["type"] == "response.output_text.delta").collect();
    assert_eq!(deltas.len(), 3);
    assert_eq!(texts(&seen, "/type").last(), Some(&"response.completed"));
    assert!(texts(&seen, "/type").contains(&"response.reasoning_summary_text.delta"));

    let tools =
        json!([{"type": "function", "name": "exec_command"}, {"type": "custom", "name": "apply_patch"}]);
    let input = "[[sh: ls]] [[write: a | b]]";
    let mut call = json!({"model": "m", "input": input, "tools": tools});
    let answer = whole(&model, path, &call);
    let [_, shell, patch] = answer["output"].as_array().unwrap().as_slice() else { panic!("{answer}") };
    assert_eq!(shell["arguments"], r#"{"cmd":"ls"}"#);
    assert_eq!(patch["type"], "custom_tool_call");
    assert_eq!(patch["input"], "*** Begin Patch\n*** Add File: a\n+b\n*** End Patch\n");

    let prompt = json!({"role": "user", "content": [{"type": "input_text", "text": input}]});
    let outputs = ["one", "two"].map(|output| json!({"type": "function_call_output", "output": output}));
    call["input"] = json!([prompt, outputs[0], outputs[1]]);
    let answer = whole(&model, path, &call);
    assert_eq!(answer.pointer("/output/0/content/0/text"), Some(&json!("Tool returned: one | two. Done.")));
}

#[test]
fn openai_chat_completions() {
    let model = Model::start();
    let path = "/v1/chat/completions";
    let answer = whole(&model, path, &messages("hello there", false));
    assert_eq!(answer.pointer("/choices/0/message/content"), Some(&json!("You wrote: hello there")));
    assert_eq!(answer.pointer("/choices/0/finish_reason"), Some(&json!("stop")));

    let seen = stream(&model, path, &messages("[[think]] hi", true));
    assert_eq!(texts(&seen, "/choices/0/delta/reasoning_content").concat(), "Let me think about it.");
    assert_eq!(texts(&seen, "/choices/0/delta/content"), ["", "You ", "wrote: ", "hi"]);

    let mut call = messages("[[call: read {\"a\": 1}]]", true);
    call["tools"] = json!([{"type": "function", "function": {"name": "read"}}]);
    let seen = stream(&model, path, &call);
    assert_eq!(texts(&seen, "/choices/0/delta/tool_calls/0/function/name"), ["read"]);
    assert_eq!(texts(&seen, "/choices/0/delta/tool_calls/0/function/arguments").concat(), r#"{"a":1}"#);
    assert_eq!(texts(&seen, "/choices/0/finish_reason"), ["tool_calls"]);

    call["messages"].as_array_mut().unwrap().push(json!({"role": "tool", "content": "x"}));
    let seen = stream(&model, path, &call);
    assert_eq!(texts(&seen, "/choices/0/delta/content").concat(), "Tool returned: x. Done.");
}

#[test]
fn gemini_generate_content() {
    let model = Model::start();
    let (path, streamed) =
        ("/v1beta/models/m:generateContent", "/v1beta/models/m:streamGenerateContent?alt=sse");
    let mut body = json!({"contents": [{"role": "user", "parts": [{"text": "[[think]] hello there"}]}]});
    let answer = whole(&model, path, &body);
    assert_eq!(answer.pointer("/candidates/0/content/parts/0/thought"), Some(&json!(true)));
    assert_eq!(answer.pointer("/candidates/0/content/parts/1/text"), Some(&json!("You wrote: hello there")));

    let seen = stream(&model, streamed, &body);
    assert_eq!(texts(&seen, "/candidates/0/finishReason"), ["STOP"]);
    assert_eq!(seen.len(), 7, "{seen:?}");

    body["tools"] = json!([{"functionDeclarations": [{"name": "run_shell_command"}]}]);
    body["contents"] = json!([{"role": "user", "parts": [{"text": "old"}, {"text": "[[sh: ls]]"}]}]);
    let seen = stream(&model, streamed, &body);
    assert_eq!(texts(&seen, "/candidates/0/content/parts/0/functionCall/args/command"), ["ls"]);

    let response = json!({"functionResponse": {"name": "run_shell_command", "response": {"output": "x"}}});
    body["contents"].as_array_mut().unwrap().push(json!({"role": "user", "parts": [response]}));
    let answer = whole(&model, path, &body);
    assert_eq!(answer.pointer("/candidates/0/content/parts/0/text"), Some(&json!("Tool returned: x. Done.")));
}

const PATHS: [&str; 4] = [
    "/v1/messages",
    "/v1/responses",
    "/v1/chat/completions",
    "/v1beta/models/m:streamGenerateContent?alt=sse",
];

/// The same prompt in the words of every API.
fn any(prompt: &str) -> Value {
    let mut body = messages(prompt, true);
    body["input"] = json!(prompt);
    body["contents"] = json!([{"role": "user", "parts": [{"text": prompt}]}]);
    body
}

#[test]
fn refusals_have_the_status_that_was_asked_for() {
    let model = Model::start();
    for path in PATHS {
        assert_eq!(post(&model, path, "sk-bad", &any("x")).0, 401, "{path}");
        let (status, text) = post(&model, path, KEY, &any("[[status: 429]]"));
        let refusal: Value = serde_json::from_str(&text.unwrap()).unwrap();
        assert_eq!(status, 429);
        assert_eq!(refusal.pointer("/error/message"), Some(&json!("scripted status 429")));
        let prompt = format!("[[flaky: 503 2]] {path}");
        let tries = [(); 3].map(|()| post(&model, path, KEY, &any(&prompt)).0);
        assert_eq!(tries, [503, 503, 200], "{path}");
    }
    let mut missing = any("x");
    missing["model"] = json!("no-such-model");
    assert_eq!(post(&model, "/v1/messages", KEY, &missing).0, 404);
    assert_eq!(post(&model, "/v1beta/models/no-such:generateContent", KEY, &any("x")).0, 404);
    assert_eq!(post(&model, "/elsewhere", KEY, &any("x")).0, 404);
}

#[test]
fn a_stream_breaks_in_its_middle() {
    let model = Model::start();
    for path in PATHS {
        let (status, text) = post(&model, path, KEY, &any("[[cut]] a b c end"));
        assert_eq!(status, 200);
        assert!(text.is_err(), "{path}: {text:?}");
        let seen = stream(&model, path, &any("[[sseerror]] a b c end"));
        let seen_text = seen.iter().map(Value::to_string).collect::<String>();
        assert!(seen_text.contains("You ") && !seen_text.contains("\"end\""), "{path}: {seen_text}");
        assert!(seen.last().unwrap().to_string().contains("scripted stream error"), "{path}: {seen_text}");
    }
}

#[test]
fn a_side_request_of_a_cli_carries_out_no_directive() {
    let model = Model::start();
    let mut title = messages("[[status: 500]]", false);
    title["system"] = json!("Make a title.");
    let answer = whole(&model, "/v1/messages", &title);
    assert_eq!(answer.pointer("/content/0/text"), Some(&json!("A fake title")));
}

#[test]
fn history_lists_the_earlier_prompts_and_replies() {
    let model = Model::start();
    let seen_text = ["first", "<environment_context>x", "second", "[[history]]"];
    let messages = seen_text.map(|text| json!({"role": "user", "content": text}));
    let answer = whole(&model, "/v1/messages", &json!({"model": "m", "messages": messages}));
    assert_eq!(answer.pointer("/content/0/text"), Some(&json!("I saw 3 prompts; the first was: first")));
}

#[test]
fn slow_answers_take_their_time_and_hanging_ones_are_seen_before_they_are_answered() {
    let model = Model::start();
    let begun = Instant::now();
    let seen = stream(&model, "/v1/messages", &messages("[[slow: 3 0.1]]", true));
    assert_eq!(texts(&seen, "/delta/text"), ["word0 ", "word1 ", "word2 "]);
    assert!(begun.elapsed() >= Duration::from_millis(300), "{:?}", begun.elapsed());

    let url = model.url();
    let hanging = std::thread::spawn(move || {
        let agent: ureq::Agent = ureq::Agent::config_builder().proxy(None).build().into();
        agent.post(format!("{url}/v1/messages")).send(messages("[[hang: 600]]", false).to_string()).is_err()
    });
    let request = model.wait_request(|request| request.body.to_string().contains("[[hang"));
    assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/v1/messages"));
    drop(model);
    assert!(hanging.join().unwrap(), "the connection outlived the model");
}

#[test]
fn requests_are_kept_as_they_came() {
    let model = Model::start();
    let body = messages("hello", false);
    whole(&model, "/v1/messages?beta=true", &body);
    let requests = model.requests();
    let [request] = requests.as_slice() else { panic!("{requests:?}") };
    assert_eq!(request.path, "/v1/messages?beta=true");
    assert_eq!(request.header("x-api-key"), Some(KEY));
    assert_eq!(request.body, body);
}
