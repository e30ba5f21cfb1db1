//! Tests of the adapters with recorded output of the real CLIs (`tests/recorded`) and with the flat lines of older
//! ones.

use super::*;
use crate::turn::output::{TurnEnd, Verdict};
use serde_json::{Value, json};

fn request(cli: Cli, mode: Mode, is_interactive: bool) -> TurnRequest {
    let (path, message) = ("/project".into(), "hello".into());
    TurnRequest {
        cli,
        mode,
        model: None,
        conversation_id: None,
        path,
        message,
        is_interactive,
        keep_process: false,
    }
}

/// The events for these lines, each in short form. Permission requests (`ask`) are allowed at once. Input for the CLI
/// is ignored.
fn events_for(request: &TurnRequest, lines: &str) -> Vec<String> {
    let mut adapter = request.invocation().adapter;
    let mut out = Output::detached(1);
    let mut events = Vec::new();
    for line in lines.lines() {
        adapter.on_line(line.as_bytes(), request, &mut out);
        let encoded = std::mem::take(&mut out.events);
        for event in String::from_utf8(encoded).unwrap().split_terminator("\n\n") {
            events.push(brief(&serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap()));
        }
        for permission in std::mem::take(&mut out.permission_requests) {
            events.push(format!("ask {} {}", permission.tool, permission.input));
            adapter.on_decision(
                &permission,
                &PermissionDecision { allow: true, note: String::new() },
                &mut out,
            );
        }
    }
    match out.checkpoint.end {
        TurnEnd::Provisional(Verdict::Result) => events.push("provisional result".into()),
        TurnEnd::Provisional(Verdict::Failure(reason)) => events.push(format!("fails: {reason}")),
        TurnEnd::Open => events.push("open".into()),
        TurnEnd::Final => {}
    }
    events
}

fn brief(event: &Value) -> String {
    let kind = event["type"].as_str().unwrap();
    let members = ["subtype", "tool", "session_id", "model", "content", "input", "message", "unknownLines"];
    let members = members.into_iter().filter_map(|name| match (name, &event[name]) {
        (_, Value::Null) => None,
        ("session_id", Value::String(id)) => id.get(..8).map(str::to_owned),
        ("message", Value::String(text)) => Some(format!("= {text}")),
        (_, Value::String(text)) => Some(text.clone()),
        (_, other) => Some(other.to_string()),
    });
    let words: Vec<String> = std::iter::once(kind.to_owned()).chain(members).collect();
    words.join(" ")
}

macro_rules! recorded {
    ($name:literal) => {
        include_str!(concat!("../../tests/recorded/", $name, ".jsonl"))
    };
}

#[test]
fn claude_emits_deltas_then_the_text_and_tools_with_their_results() {
    let request = request(Cli::Claude, Mode::Code, true);
    let expected = [
        "system init 36b661fd claude-opus-5-5",
        "system status 36b661fd",
        "partial Hello",
        "partial  from the",
        "partial  fake",
        "partial  model",
        "partial .",
        "text Hello from the fake model.",
        "result 36b661fd",
    ];
    assert_eq!(events_for(&request, recorded!("claude-plain")), expected);
    let expected = [
        "system init 35de528a claude-opus-5-5",
        "system status 35de528a",
        "partial I will",
        "partial  use a tool.",
        "text I will use a tool.",
        "tool_use Bash",
        r#"tool_use Bash {"command":"ls","description":"Run a command"}"#,
        "tool_use Bash = a.txt\nb.txt",
        "system status 35de528a",
        "partial Tool said: ",
        "partial a.txt b.txt",
        "partial . ",
        "partial Done.",
        "text Tool said: a.txt b.txt. Done.",
        "result 35de528a",
    ];
    assert_eq!(events_for(&request, recorded!("claude-tool-ls")), expected);
}

#[test]
fn claude_asks_between_a_call_and_its_result() {
    let events = events_for(&request(Cli::Claude, Mode::Ask, true), recorded!("claude-ask"));
    let input = r#"{"command":"touch perm-allowed","description":"Run a command"}"#;
    let expected = [
        format!("tool_use Bash {input}"),
        format!("ask Bash {input}"),
        "tool_use Bash = (Bash completed with no output)".into(),
    ];
    assert_eq!(events[6..9], expected, "{events:#?}");
    assert_eq!(events.last().unwrap(), "result e681d02c");
}

/// "error hidden in a success": `is_error` is set, although `subtype` is `success`.
#[test]
fn a_failure_of_claude_is_one_whatever_its_subtype() {
    let request = request(Cli::Claude, Mode::Code, true);
    let failed = events_for(&request, recorded!("claude-500-retries2"));
    let expected = ["system api_retry 6b9b3b9b", "system api_retry 6b9b3b9b"];
    assert_eq!(failed[2..4], expected, "{failed:#?}");
    let last = failed.last().unwrap();
    assert!(last.starts_with("fails: API Error: 500"), "{failed:#?}");
    let unknown = events_for(&request, recorded!("claude-resume-unknown"));
    assert_eq!(
        unknown,
        ["fails: No conversation found with session ID: 11111111-2222-4333-8444-555555555555"]
    );
    let cut = events_for(&request, recorded!("claude-cut"));
    let whole = ["text Hello from the fake model.", "result 58302ee2"];
    assert_eq!(cut[cut.len() - 2..], whole, "{cut:#?}");
}

#[test]
fn codex_exec_has_nested_items() {
    let request = request(Cli::Codex, Mode::Code, false);
    let warning = "system warning = Model metadata for `fake-model` not found. Defaulting to fallback metadata; this can \
                   degrade performance and cause issues.";
    let expected = ["system init 01a1e08d", warning, "text Hello from the fake model.", "result 01a1e08d"];
    assert_eq!(events_for(&request, recorded!("codex-plain")), expected);
    let expected = [
        "text I will use a tool.",
        r#"tool_use bash {"command":"/bin/bash -lc ls"}"#,
        "tool_use bash = a.txt\n",
    ];
    assert_eq!(events_for(&request, recorded!("codex-tool-ls"))[2..5], expected);
    let expected = [
        r#"tool_use edit [{"path":"/project/patched.txt","kind":"add"}]"#,
        "tool_use edit = add /project/patched.txt",
    ];
    assert_eq!(events_for(&request, recorded!("codex-patch-ws"))[3..5], expected);
    let failed = events_for(&request, recorded!("codex-500"));
    let reason = "We’re currently experiencing high demand, which may cause temporary errors.";
    assert_eq!(failed[2], format!("system warning = Reconnecting... 1/1 ({reason})"));
    assert_eq!(*failed.last().unwrap(), format!("fails: {reason}"));
    let missing = events_for(&request, recorded!("codex-404-model"));
    assert_eq!(missing.last().unwrap(), "fails: model: no-such-model does not exist");
}

#[test]
fn codex_app_server_has_deltas_and_permission_requests() {
    let plain = events_for(&request(Cli::Codex, Mode::Auto, true), recorded!("codex-app-server-plain"));
    let expected = [
        "partial Hello",
        "partial  from the",
        "partial  fake",
        "partial  model",
        "partial .",
        "text Hello from the fake model.",
        "result 01a1e090",
    ];
    assert_eq!(plain[0], "system init 01a1e090 fake-model");
    assert_eq!(plain[2..], expected);
    let asked = events_for(&request(Cli::Codex, Mode::Ask, true), recorded!("codex-app-server-ask"));
    let expected = [
        "text I will use a tool.",
        r#"tool_use bash {"command":"touch approved-by-appserver"}"#,
        r#"ask bash {"command":"touch approved-by-appserver","cwd":"/project"}"#,
        "tool_use bash = ",
    ];
    assert_eq!(asked[4..8], expected, "{asked:#?}");
    assert_eq!(asked.last().unwrap(), "result 01a1e090");
}

/// The actions are codex's own interpretation of the command. Showing only the first of them would hide the others.
#[test]
fn codex_app_server_asks_about_the_whole_command() {
    let shown = |command: &str, actions: &[&str]| {
        let actions: Vec<Value> = actions.iter().map(|action| json!({ "command": action })).collect();
        let about = json!({ "type": "commandExecution", "command": command, "commandActions": actions });
        let started = json!({ "method": "item/started", "params": { "item": about } });
        let asked = json!({ "id": 7, "method": "item/commandExecution/requestApproval", "params": about });
        events_for(&request(Cli::Codex, Mode::Ask, true), &format!("{started}\n{asked}"))
    };
    let whole: [(&str, &[&str]); 10] = [
        ("/bin/bash -lc 'ls && cat /etc/shadow'", &["ls", "cat /etc/shadow"]),
        ("/bin/bash -lc 'ls && cat /etc/shadow'", &["ls"]),
        ("/bin/bash -lc ls; reboot", &["ls"]),
        ("/bin/bash -lc 'ls' 'x'", &["ls"]),
        ("/bin/bash -lc 'ls' 'x'", &["ls' 'x"]),
        ("/bin/bash -lc $(reboot)", &["$(reboot)"]),
        ("/tmp/bash -lc ls", &["ls"]),
        ("/bin/bash -lc \"echo $(reboot)\"", &["echo $(reboot)"]),
        ("/bin/bash -lc \"echo it's\" x\"", &["echo it's\" x"]),
        ("ls", &[]),
    ];
    for (command, actions) in whole {
        let command = json!(command);
        let expected = [
            format!("tool_use bash {{\"command\":{command}}}"),
            format!("ask bash {{\"command\":{command},\"cwd\":null}}"),
        ];
        assert_eq!(shown(command.as_str().unwrap(), actions)[..2], expected, "{actions:?}");
    }
    for command in ["/bin/bash -lc ls", "/usr/bin/zsh -lc 'ls'", "/bin/bash -lc \"ls\""] {
        let expected = [r#"tool_use bash {"command":"ls"}"#, r#"ask bash {"command":"ls","cwd":null}"#];
        assert_eq!(shown(command, &["ls"])[..2], expected);
    }
    let without_command = r#"{"id":7,"method":"item/commandExecution/requestApproval","params":{"commandActions":[{"command":"ls"}]}}"#;
    assert_eq!(
        events_for(&request(Cli::Codex, Mode::Ask, true), without_command),
        ["open"],
        "the request is declined"
    );
}

#[test]
fn gemini_emits_the_text_after_its_deltas() {
    let request = request(Cli::Gemini, Mode::Auto, true);
    let expected = [
        "system init 6827c1c7 gemini-2.5-flash",
        "partial Hello",
        "partial  from the",
        "partial  fake",
        "partial  model",
        "partial .",
        "text Hello from the fake model.",
        "result 6827c1c7",
    ];
    assert_eq!(events_for(&request, recorded!("gemini-plain")), expected);
    let expected = [
        "text I will use a tool.",
        r#"tool_use bash {"command":"ls","description":"Run a command"}"#,
        "tool_use bash = a.txt",
    ];
    assert_eq!(events_for(&request, recorded!("gemini-tool-ls-yolo"))[3..6], expected);
}

#[test]
fn a_warning_of_gemini_does_not_end_the_turn_and_its_result_may_be_an_error() {
    let request = request(Cli::Gemini, Mode::Auto, true);
    let events = events_for(&request, recorded!("gemini-sseerror"));
    let reason = "Model stream ended without a finish reason.";
    let expected = [format!("system warning = {reason}"), format!("fails: {reason}")];
    let whole = "text Hello from theHello from theHello from theHello from the".to_owned();
    assert!(events.contains(&whole) && events.contains(&expected[0]), "{events:#?}");
    assert_eq!(*events.last().unwrap(), expected[1]);
    let failed = events_for(&request, recorded!("gemini-500-max2"));
    assert!(failed.last().unwrap().contains("scripted error 500"), "{failed:#?}");
}

#[test]
fn opencode_run_ends_with_its_last_step_only() {
    let request = request(Cli::Opencode, Mode::Auto, false);
    let expected = ["system init ses_e1f6", "text Hello from the fake model.", "provisional result"];
    assert_eq!(events_for(&request, recorded!("opencode-plain")), expected);
    let expected = [
        "system init ses_e1f6",
        "text I will use a tool.",
        r#"tool_use bash {"command":"ls","description":"Run a command"}"#,
        "tool_use bash = a.txt\n",
        "text Tool said: a.txt. Done.",
        "provisional result",
    ];
    assert_eq!(events_for(&request, recorded!("opencode-tool-ls")), expected);
    assert_eq!(events_for(&request, recorded!("opencode-401")), ["fails: invalid api key"]);
    assert_eq!(events_for(&request, recorded!("opencode-cut")), ["system init ses_e1f6", "open"]);
}

/// The line formats that codecast-daemon parses.
#[test]
fn flat_lines_of_older_versions_are_parsed() {
    let codex = [
        r#"{"type":"thread.started","thread_id":"thread-1","model":"o3"}"#,
        r#"{"type":"item.started","item_type":"command_execution","command":"ls -la"}"#,
        r#"{"type":"item.completed","item_type":"command_execution","output":"total 0"}"#,
        r#"{"type":"item.started","item_type":"file_change","file":"a.rs"}"#,
        r#"{"type":"item.completed","item_type":"file_change","summary":"one line"}"#,
        r#"{"type":"item.started","item_type":"mcp_tool_call","tool_name":"find","parameters":{"q":1}}"#,
        r#"{"type":"item.completed","item_type":"mcp_tool_call","tool_name":"find","result":"none"}"#,
        r#"{"type":"item.started","item_type":"agent_message"}"#,
        r#"{"type":"item.updated","item_type":"agent_message","text":"Hé"}"#,
        r#"{"type":"item.updated","item_type":"agent_message","text":"Héllo"}"#,
        r#"{"type":"item.completed","item_type":"agent_message","text":"Héllo"}"#,
        r#"{"type":"turn.completed"}"#,
    ];
    let expected = [
        "system init thread-1 o3",
        "tool_use bash ls -la",
        "tool_use bash = total 0",
        "tool_use edit a.rs",
        "tool_use edit = one line",
        r#"tool_use find {"q":1}"#,
        "tool_use find = none",
        "partial Hé",
        "partial llo",
        "text Héllo",
        "result thread-1",
    ];
    assert_eq!(events_for(&request(Cli::Codex, Mode::Code, false), &codex.join("\n")), expected);
    let opencode = [
        r#"{"type":"step_start","sessionID":"session-1","model":"x/y"}"#,
        r#"{"type":"message.part.updated","part":{"type":"text","content":"Hel"}}"#,
        r#"{"type":"message.part.updated","part":{"type":"tool","name":"Write","state":"running","input":{"a":1}}}"#,
        r#"{"type":"message.part.updated","part":{"type":"tool","name":"Write","state":"completed","output":"ok"}}"#,
        r#"{"type":"text","content":"Hello"}"#,
        r#"{"type":"step_finish"}"#,
    ];
    let expected = [
        "system init session- x/y",
        "partial Hel",
        r#"tool_use edit {"a":1}"#,
        "tool_use edit = ok",
        "text Hello",
        "provisional result",
    ];
    assert_eq!(events_for(&request(Cli::Opencode, Mode::Code, false), &opencode.join("\n")), expected);
}

#[test]
fn unknown_lines_are_kept_and_counted() {
    let lines = "no json\n{\"type\":\"turn.invented\"}\n{\"type\":\"turn.completed\"}";
    let expected = ["raw", "raw", "result 2"];
    assert_eq!(events_for(&request(Cli::Codex, Mode::Code, false), lines), expected);
}

/// Recorded lines of ACP, shortened. The ids are those of the daemon's requests.
#[test]
fn acp_ignores_updates_before_the_prompt_and_emits_calls_once() {
    let update = |update: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"s","update":{update}}}}}"#
        )
    };
    let chunk = |text: &str| {
        update(&format!(
            r#"{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":"{text}"}}}}"#
        ))
    };
    let call = |status: &str, more: &str| {
        let input = r#""kind":"execute","title":"ls","rawInput":{"command":"ls"}"#;
        let kind = if status == "pending" { "tool_call" } else { "tool_call_update" };
        update(&format!(r#"{{"sessionUpdate":"{kind}","toolCallId":"c","status":"{status}",{input}{more}}}"#))
    };
    let permission = r#"{"jsonrpc":"2.0","id":0,"method":"session/request_permission","params":{"sessionId":"s",
        "toolCall":{"toolCallId":"c","title":"ls","kind":"execute","rawInput":{"command":"ls"}},
        "options":[{"optionId":"once","kind":"allow_once"},{"optionId":"reject","kind":"reject_once"}]}}"#;
    let lines = [
        r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1}}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":2,"result":{"sessionId":"ses_0001","configOptions":[{"id":"model","currentValue":"fake/m"}]}}"#.into(),
        chunk("[MODE_UPDATE] build"),
        r#"{"jsonrpc":"2.0","id":3,"result":{}}"#.into(),
        chunk("Hel"),
        chunk("lo"),
        call("pending", ""),
        permission.replace('\n', ""),
        call("in_progress", ""),
        call("in_progress", r#","content":[{"type":"content","content":{"type":"text","text":"a"}}]"#),
        call("completed", r#","rawOutput":{"output":"a.txt\n","metadata":{"exit":0}}"#),
        r#"{"jsonrpc":"2.0","id":1,"method":"fs/write_text_file","params":{}}"#.into(),
        chunk("Done."),
        r#"{"jsonrpc":"2.0","id":5,"result":{"stopReason":"end_turn"}}"#.into(),
    ];
    let expected = [
        "system init ses_0001 fake/m",
        "partial Hel",
        "partial lo",
        "text Hello",
        r#"ask bash {"command":"ls"}"#,
        r#"tool_use bash {"command":"ls"}"#,
        "tool_use bash = a.txt\n",
        "partial Done.",
        "text Done.",
        "result ses_0001",
    ];
    assert_eq!(events_for(&request(Cli::Opencode, Mode::Ask, true), &lines.join("\n")), expected);
}
