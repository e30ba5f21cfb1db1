//! The tools' descriptions and schemas, and the tool `status`.

use crate::kit::{Client, Lines, ToolResult, broker, outpost, sh, with};
use outpost_testkit::{Broker, BrokerOptions, Daemon, require};
use rmcp::model::Tool;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

async fn tools(client: &Client) -> Vec<Tool> {
    client.service.list_all_tools().await.unwrap()
}

fn tool<'a>(tools: &'a [Tool], name: &str) -> &'a Tool {
    tools.iter().find(|tool| tool.name == name).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tools_have_descriptions_and_hints() {
    let client = Client::start(Path::new("/nowhere")).await;
    let tools = tools(&client).await;
    assert_eq!(tools.len(), 2);
    let execute = tool(&tools, "execute");
    assert!(execute.description.as_ref().unwrap().contains("Runs as root unless `privileged` is false"));
    assert!(execute.title.is_some());
    let hints = serde_json::to_value(execute.annotations.as_ref().unwrap()).unwrap();
    let expected = json!({"readOnlyHint": false, "destructiveHint": true, "idempotentHint": false, "openWorldHint": true});
    assert_eq!(with(hints.clone(), expected), hints);
    let status = tool(&tools, "status");
    assert_eq!(status.annotations.as_ref().unwrap().read_only_hint, Some(true));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_schema_accepts_valid_arguments_only() {
    let client = Client::start(Path::new("/nowhere")).await;
    let tools = tools(&client).await;
    let schema = Value::Object(tool(&tools, "execute").input_schema.as_ref().clone());
    assert_eq!((&schema["type"], &schema["required"]), (&json!("object"), &json!(["reason"])));
    let text = schema.to_string();
    // Some clients reject these keywords.
    assert!(!text.contains("oneOf") && !text.contains("null"), "{schema:#}");
    let valid = jsonschema::validator_for(&schema).unwrap();
    let full = json!({
        "argv": ["id"], "pipeline": [["a"], ["b"]], "reason": "why", "env": {"LANG": "C"}, "cwd": "/tmp",
        "privileged": false, "forward_agent": true, "session": "web",
    });
    assert!(valid.is_valid(&full), "{schema:#}");
    for wrong in [
        json!({"argv": ["id"]}),
        json!({"argv": "id", "reason": "why"}),
        json!({"argv": [], "reason": "why"}),
        json!({"argv": ["id"], "reason": ""}),
        json!({"argv": ["id"], "reason": "why", "command": "id"}),
    ] {
        assert!(!valid.is_valid(&wrong), "{wrong}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_result_matches_its_schema() {
    let mut broker = broker();
    let client = Client::start(&broker.socket()).await;
    let tools = tools(&client).await;
    let schema = |name: &str| {
        let schema = tool(&tools, name).output_schema.as_ref().unwrap().as_ref().clone();
        jsonschema::validator_for(&Value::Object(schema)).unwrap()
    };
    let (execute, status) = (schema("execute"), schema("status"));
    let asked = client.execute(sh("echo out; echo err >&2; exit 3"));
    broker.approve();
    let ran = asked.result().await.fields;
    let asked = client.execute(sh("true"));
    broker.deny();
    let denied = asked.result().await.fields;
    let failed = client.execute(json!({"reason": "why"})).result().await.fields;
    for fields in [ran, denied, failed] {
        let errors: Vec<String> = execute.iter_errors(&fields).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{fields:#}: {errors:?}");
    }
    assert!(status.is_valid(&ToolResult::of(client.status().await).fields));
}

#[tokio::test(flavor = "multi_thread")]
async fn status_finds_a_broker_without_a_prompt() {
    let broker = broker();
    let client = Client::start(&broker.socket()).await;
    let result = ToolResult::of(client.status().await);
    assert!(!result.is_error);
    assert_eq!(result.fields["running"], true);
    assert_eq!(result.fields["socket"], broker.socket().display().to_string());
    assert_eq!(result.fields["version"], "1.2.0");
    assert!(!broker.has_prompt());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_broker_both_tools_name_the_command_to_start() {
    let client = Client::start(Path::new("/nowhere/broker.sock")).await;
    let result = ToolResult::of(client.status().await);
    assert!(!result.is_error, "a missing broker is a valid result of `status`");
    assert_eq!(result.fields["running"], false);
    let ran = client.execute(sh("true")).result().await;
    assert!(ran.is_error);
    assert_eq!(ran.fields["status"], "error");
    for text in [result.text, ran.text] {
        for word in ["/nowhere/broker.sock", "`outpost serve`", "`outpost approve`", "Nothing was run"] {
            assert!(text.contains(word), "{text}");
        }
    }
}

#[test]
fn the_default_broker_is_the_daemons() {
    let daemon = Daemon::start(&outpost());
    let mut command = Command::new(outpost());
    command.args(["--state-dir", "state", "--runtime-dir", "run", "mcp"]).current_dir(daemon.dir());
    let mut client = Lines::launch(command);
    client.initialize("2025-06-18");
    client.call(1, "status", &json!({}));
    let fields = client.next()["result"]["structuredContent"].clone();
    assert_eq!(fields["socket"], daemon.dir().join("run/broker.sock").display().to_string());
    assert_eq!(fields["running"], true, "{fields}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_to_a_socket_of_another_user() {
    require!(outpost_testkit::root());
    let broker = Broker::start(&BrokerOptions::default().uid(65534));
    let client = Client::start(&broker.socket()).await;
    for text in [ToolResult::of(client.status().await).text, client.execute(sh("true")).result().await.text] {
        assert!(text.contains("nothing was sent to") && text.contains("other users can change"), "{text}");
    }
    assert!(!broker.has_prompt());
}
