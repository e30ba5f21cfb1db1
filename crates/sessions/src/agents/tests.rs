//! Streams of the real CLIs, recorded and shortened (`tests/recorded`), and the flat lines of older ones: what they become.

use super::*;
use crate::output::{End, Held};
use serde_json::{Value, json};

fn task(cli: Cli, mode: Mode, is_rich: bool) -> Task {
    let (path, message) = ("/project".into(), "hello".into());
    Task { cli, mode, model: None, sdk_id: None, path, message, is_rich, keeps: false }
}

/// What a CLI's lines become, each event in a few words. Questions (`ask`) are answered with yes at once, and what is said
/// to the CLI is left out.
fn told(task: &Task, lines: &str) -> Vec<String> {
    let mut agent = task.call().agent;
    let mut out = Output::new(1, 1);
    let mut told = Vec::new();
    for line in lines.lines() {
        agent.hear(line.as_bytes(), task, &mut out);
        let events = std::mem::take(&mut out.events);
        for event in String::from_utf8(events).unwrap().split_terminator("\n\n") {
            told.push(brief(&serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap()));
        }
        for ask in std::mem::take(&mut out.asks) {
            told.push(format!("ask {} {}", ask.tool, ask.input));
            agent.answer(&ask, &Answer { allow: true, note: String::new() }, &mut out);
        }
    }
    match out.end {
        End::Held(Held::Result) => told.push("held".into()),
        End::Held(Held::Failure(reason)) => told.push(format!("fails: {reason}")),
        End::Open => told.push("open".into()),
        End::Told => {}
    }
    told
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
fn claude_tells_pieces_then_the_whole_and_tools_with_their_results() {
    let task = task(Cli::Claude, Mode::Code, true);
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
    assert_eq!(told(&task, recorded!("claude-plain")), expected);
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
    assert_eq!(told(&task, recorded!("claude-tool-ls")), expected);
}

#[test]
fn claudes_question_stands_between_the_call_and_its_result() {
    let told = told(&task(Cli::Claude, Mode::Ask, true), recorded!("claude-ask"));
    let input = r#"{"command":"touch perm-allowed","description":"Run a command"}"#;
    let expected = [
        format!("tool_use Bash {input}"),
        format!("ask Bash {input}"),
        "tool_use Bash = (Bash completed with no output)".into(),
    ];
    assert_eq!(told[6..9], expected, "{told:#?}");
    assert_eq!(told.last().unwrap(), "result e681d02c");
}

/// "error hidden in a success": `subtype` says so, `is_error` does not.
#[test]
fn claudes_failures_are_failures_whatever_their_subtype() {
    let task = task(Cli::Claude, Mode::Code, true);
    let failed = told(&task, recorded!("claude-500-retries2"));
    let expected = ["system api_retry 6b9b3b9b", "system api_retry 6b9b3b9b"];
    assert_eq!(failed[2..4], expected, "{failed:#?}");
    let last = failed.last().unwrap();
    assert!(last.starts_with("fails: API Error: 500"), "{failed:#?}");
    let unknown = told(&task, recorded!("claude-resume-unknown"));
    assert_eq!(
        unknown,
        ["fails: No conversation found with session ID: 11111111-2222-4333-8444-555555555555"]
    );
    let cut = told(&task, recorded!("claude-cut"));
    let whole = ["text Hello from the fake model.", "result 58302ee2"];
    assert_eq!(cut[cut.len() - 2..], whole, "{cut:#?}");
}

#[test]
fn codex_exec_has_nested_items() {
    let task = task(Cli::Codex, Mode::Code, false);
    let warning = "system warning = Model metadata for `fake-model` not found. Defaulting to fallback metadata; this can \
                   degrade performance and cause issues.";
    let expected = ["system init 01a1e08d", warning, "text Hello from the fake model.", "result 01a1e08d"];
    assert_eq!(told(&task, recorded!("codex-plain")), expected);
    let expected = [
        "text I will use a tool.",
        r#"tool_use bash {"command":"/bin/bash -lc ls"}"#,
        "tool_use bash = a.txt\n",
    ];
    assert_eq!(told(&task, recorded!("codex-tool-ls"))[2..5], expected);
    let expected = [
        r#"tool_use edit [{"path":"/project/patched.txt","kind":"add"}]"#,
        "tool_use edit = add /project/patched.txt",
    ];
    assert_eq!(told(&task, recorded!("codex-patch-ws"))[3..5], expected);
    let failed = told(&task, recorded!("codex-500"));
    let reason = "We’re currently experiencing high demand, which may cause temporary errors.";
    assert_eq!(failed[2], format!("system warning = Reconnecting... 1/1 ({reason})"));
    assert_eq!(*failed.last().unwrap(), format!("fails: {reason}"));
    let missing = told(&task, recorded!("codex-404-model"));
    assert_eq!(missing.last().unwrap(), "fails: model: no-such-model does not exist");
}

#[test]
fn codex_app_server_has_deltas_and_questions() {
    let plain = told(&task(Cli::Codex, Mode::Auto, true), recorded!("codex-app-server-plain"));
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
    let asked = told(&task(Cli::Codex, Mode::Ask, true), recorded!("codex-app-server-ask"));
    let expected = [
        "text I will use a tool.",
        r#"tool_use bash {"command":"touch approved-by-appserver"}"#,
        r#"ask bash {"command":"touch approved-by-appserver","cwd":"/project"}"#,
        "tool_use bash = ",
    ];
    assert_eq!(asked[4..8], expected, "{asked:#?}");
    assert_eq!(asked.last().unwrap(), "result 01a1e090");
}

/// The actions are codex's own reading of a command, and only the first of them was once shown.
#[test]
fn codex_app_server_asks_about_the_whole_command() {
    let shown = |command: &str, actions: &[&str]| {
        let actions: Vec<Value> = actions.iter().map(|action| json!({ "command": action })).collect();
        let about = json!({ "type": "commandExecution", "command": command, "commandActions": actions });
        let started = json!({ "method": "item/started", "params": { "item": about } });
        let asked = json!({ "id": 7, "method": "item/commandExecution/requestApproval", "params": about });
        told(&task(Cli::Codex, Mode::Ask, true), &format!("{started}\n{asked}"))
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
    let unsaid = r#"{"id":7,"method":"item/commandExecution/requestApproval","params":{"commandActions":[{"command":"ls"}]}}"#;
    assert_eq!(told(&task(Cli::Codex, Mode::Ask, true), unsaid), ["open"], "it is declined");
}

#[test]
fn gemini_tells_the_whole_after_its_pieces() {
    let task = task(Cli::Gemini, Mode::Auto, true);
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
    assert_eq!(told(&task, recorded!("gemini-plain")), expected);
    let expected = [
        "text I will use a tool.",
        r#"tool_use bash {"command":"ls","description":"Run a command"}"#,
        "tool_use bash = a.txt",
    ];
    assert_eq!(told(&task, recorded!("gemini-tool-ls-yolo"))[3..6], expected);
}

#[test]
fn geminis_warning_is_not_the_end_and_its_result_may_be_an_error() {
    let task = task(Cli::Gemini, Mode::Auto, true);
    let told_of = told(&task, recorded!("gemini-sseerror"));
    let reason = "Model stream ended without a finish reason.";
    let expected = [format!("system warning = {reason}"), format!("fails: {reason}")];
    let whole = "text Hello from theHello from theHello from theHello from the".to_owned();
    assert!(told_of.contains(&whole) && told_of.contains(&expected[0]), "{told_of:#?}");
    assert_eq!(*told_of.last().unwrap(), expected[1]);
    let failed = told(&task, recorded!("gemini-500-max2"));
    assert!(failed.last().unwrap().contains("scripted error 500"), "{failed:#?}");
}

#[test]
fn opencode_run_ends_with_its_last_step_and_goes_on_after_others() {
    let task = task(Cli::Opencode, Mode::Auto, false);
    let expected = ["system init ses_e1f6", "text Hello from the fake model.", "held"];
    assert_eq!(told(&task, recorded!("opencode-plain")), expected);
    let expected = [
        "system init ses_e1f6",
        "text I will use a tool.",
        r#"tool_use bash {"command":"ls","description":"Run a command"}"#,
        "tool_use bash = a.txt\n",
        "text Tool said: a.txt. Done.",
        "held",
    ];
    assert_eq!(told(&task, recorded!("opencode-tool-ls")), expected);
    assert_eq!(told(&task, recorded!("opencode-401")), ["fails: invalid api key"]);
    assert_eq!(told(&task, recorded!("opencode-cut")), ["system init ses_e1f6", "open"]);
}

/// As the original has them, whoever prints them.
#[test]
fn flat_lines_of_older_versions_are_understood() {
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
    assert_eq!(told(&task(Cli::Codex, Mode::Code, false), &codex.join("\n")), expected);
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
        "held",
    ];
    assert_eq!(told(&task(Cli::Opencode, Mode::Code, false), &opencode.join("\n")), expected);
}

#[test]
fn what_nobody_understands_is_kept_and_counted() {
    let lines = "no json\n{\"type\":\"turn.invented\"}\n{\"type\":\"turn.completed\"}";
    let expected = ["raw", "raw", "result 2"];
    assert_eq!(told(&task(Cli::Codex, Mode::Code, false), lines), expected);
}

/// The lines of ACP as they were seen, shortened; ids are those of our requests.
#[test]
fn acp_drops_what_comes_before_the_prompt_and_tells_calls_once() {
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
    assert_eq!(told(&task(Cli::Opencode, Mode::Ask, true), &lines.join("\n")), expected);
}
