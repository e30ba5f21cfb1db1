//! While a human thinks: progress, cancelling, leaving, and a broker that goes away.

use crate::kit::{Client, Lines, PATIENCE, Told, broker, object, sh};
use outpost_sys::signal::Signal;
use outpost_testkit::Broker;
use rmcp::model::{CallToolRequest, CallToolRequestParams, ClientRequest};
use rmcp::service::PeerRequestOptions;
use serde_json::{Value, json};
use std::time::Duration;

/// rmcp alone would take five seconds.
const PROMPTLY: Duration = Duration::from_secs(3);

/// The original neither notices nor says so.
fn wait_withdrawn(broker: &Broker) {
    if !Broker::is_original() {
        broker.wait_screen("Withdrawn");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_told_again_and_again_that_its_call_waits() {
    let mut broker = broker();
    let mut client = Client::start(&broker.socket()).await;
    let asked = client.execute(sh("echo done"));
    let mut last = 0.0;
    for _ in 0..2 {
        let told = tokio::time::timeout(PATIENCE, client.progress.recv()).await.unwrap().unwrap();
        assert!(told.progress > last, "{told:?}");
        assert!(told.message.unwrap().starts_with("waiting for a human to approve"));
        last = told.progress;
    }
    broker.approve();
    assert_eq!(asked.result().await.fields["stdout"], "done\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_call_is_withdrawn_and_the_next_one_is_asked_for() {
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
fn a_client_that_closes_our_input_ends_us_and_its_request() {
    let broker = broker();
    let mut client = Lines::initialized(&broker.socket());
    client.call(1, "execute", &sh("true"));
    broker.wait_prompt();
    assert!(client.close(PROMPTLY).success());
    wait_withdrawn(&broker);
}

#[test]
fn a_client_that_leaves_without_a_word_is_no_failure() {
    let client = Lines::start("/nowhere".as_ref());
    assert!(client.close(PROMPTLY).success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_dies_leaves_it_open_whether_the_command_ran() {
    let mut broker = broker();
    let client = Client::start(&broker.socket()).await;
    let asked = client.execute(sh("exec sleep 600"));
    broker.approve();
    broker.terminal().signal(Signal::KILL);
    let told = asked.result().await;
    assert!(
        told.is_error && told.text.contains("The command may have run: look before you repeat it"),
        "{told:?}"
    );
    assert_eq!(Told::of(client.status().await).fields["running"], false);
}

/// One more than may wait at a time.
#[test]
fn too_many_calls_at_once_are_refused_not_queued() {
    let broker = broker();
    let mut client = Lines::initialized(&broker.socket());
    for id in 1..=17 {
        client.call(id, "execute", &sh("true"));
    }
    let answer: Value = client.next();
    assert_eq!((&answer["id"], &answer["result"]["isError"]), (&json!(17), &json!(true)));
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("16 calls are waiting already"), "{text}");
    // The others do not keep anyone from asking how things are.
    client.call(18, "status", &json!({}));
    assert_eq!(client.next()["result"]["structuredContent"]["running"], true);
}
