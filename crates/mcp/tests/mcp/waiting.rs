//! Calls in progress: notifications, cancels, disconnects, and a broker that dies.

use crate::kit::{Client, Lines, TIMEOUT, ToolResult, broker, object, sh};
use outpost_sys::signal::Signal;
use outpost_testkit::Broker;
use rmcp::model::{CallToolRequest, CallToolRequestParams, ClientRequest};
use rmcp::service::PeerRequestOptions;
use serde_json::{Value, json};
use std::time::Duration;

/// Below the five seconds that rmcp itself would wait.
const PROMPTLY: Duration = Duration::from_secs(3);

/// The original does not detect the disconnect.
fn wait_withdrawn(broker: &Broker) {
    if !Broker::is_original() {
        broker.wait_screen("Withdrawn");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_call_sends_progress_notifications() {
    let mut broker = broker();
    let mut client = Client::start(&broker.socket()).await;
    let asked = client.execute(sh("echo done"));
    let mut last = 0.0;
    for _ in 0..2 {
        let update = tokio::time::timeout(TIMEOUT, client.progress.recv()).await.unwrap().unwrap();
        assert!(update.progress > last, "{update:?}");
        assert!(update.message.unwrap().starts_with("waiting for a human to approve"));
        last = update.progress;
    }
    broker.approve();
    assert_eq!(asked.result().await.fields["stdout"], "done\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_call_is_withdrawn_and_the_next_one_works() {
    let mut broker = broker();
    let client = Client::start(&broker.socket()).await;
    let params = CallToolRequestParams::new("execute").with_arguments(object(sh("echo one")));
    let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
    let handle =
        client.service.send_cancellable_request(request, PeerRequestOptions::no_options()).await.unwrap();
    broker.wait_prompt();
    handle.cancel(Some("thought better of it".into())).await.unwrap();
    wait_withdrawn(&broker);
    if !Broker::is_original() {
        broker.skip_screen();
        let asked = client.execute(sh("echo two"));
        broker.approve();
        assert_eq!(asked.result().await.fields["stdout"], "two\n");
    }
}

#[test]
fn eof_on_stdin_stops_the_server_and_withdraws_the_request() {
    let broker = broker();
    let mut client = Lines::initialized(&broker.socket());
    client.call(1, "execute", &sh("true"));
    broker.wait_prompt();
    assert!(client.close(PROMPTLY).success());
    wait_withdrawn(&broker);
}

#[test]
fn eof_before_any_message_is_not_an_error() {
    let client = Lines::start("/nowhere".as_ref());
    assert!(client.close(PROMPTLY).success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_broker_is_reported_as_may_have_run() {
    let mut broker = broker();
    let client = Client::start(&broker.socket()).await;
    let asked = client.execute(sh("exec sleep 600"));
    broker.approve();
    broker.terminal().signal(Signal::KILL);
    let result = asked.result().await;
    assert!(
        result.is_error && result.text.contains("The command may have run: check before you repeat it"),
        "{result:?}"
    );
    assert_eq!(ToolResult::of(client.status().await).fields["running"], false);
}

/// One call more than the limit.
#[test]
fn too_many_concurrent_calls_are_refused() {
    let broker = broker();
    let mut client = Lines::initialized(&broker.socket());
    for id in 1..=17 {
        client.call(id, "execute", &sh("true"));
    }
    let answer: Value = client.next();
    assert_eq!((&answer["id"], &answer["result"]["isError"]), (&json!(17), &json!(true)));
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("16 calls are waiting already"), "{text}");
    // `status` still works.
    client.call(18, "status", &json!({}));
    assert_eq!(client.next()["result"]["structuredContent"]["running"], true);
}
