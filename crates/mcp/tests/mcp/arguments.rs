//! Calls that are refused before anyone is asked, and what the human is shown of the others.

use crate::kit::{Client, broker, sh, with};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn wrong_arguments_are_named_and_nobody_is_asked() {
    let broker = broker();
    let client = Client::start(&broker.socket()).await;
    for (arguments, why) in [
        (json!({"argv": ["id"]}), "missing field `reason`"),
        (json!({"argv": ["id"], "reason": ""}), "`reason` is empty"),
        (json!({"reason": "why"}), "neither is there"),
        (json!({"argv": ["id"], "pipeline": [["id"]], "reason": "why"}), "not both"),
        (json!({"argv": ["id"], "reason": "why", "shell": true}), "unknown field `shell`"),
        (json!({"argv": "id", "reason": "why"}), "expected a sequence"),
        (
            json!({"argv": ["id", "x".repeat(1_100_000)], "reason": "why"}),
            "bytes long and the broker takes 1048576",
        ),
    ] {
        let told = client.execute(arguments.clone()).result().await;
        assert!(told.is_error && told.text.contains(why), "{arguments:.200}: {told:?}");
    }
    assert!(!broker.has_prompt());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_human_sees_who_asks_and_why() {
    let mut broker = broker();
    let client = Client::start(&broker.socket()).await;
    let asked =
        client.execute(with(sh("true"), json!({"session": "web server", "reason": "because of tests"})));
    broker.wait_prompt();
    let screen = broker.unread();
    for words in ["web server (the-tests 7.0, pid ", "because of tests"] {
        assert!(screen.contains(words), "{screen}");
    }
    broker.deny();
    asked.result().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_say_otherwise_is_asked_for_as_root() {
    let mut broker = broker();
    let client = Client::start(&broker.socket()).await;
    // The broker refuses an agent for what is privileged, so its words tell what it was sent.
    let call = json!({"argv": ["true"], "reason": "a test", "forward_agent": true});
    let told = client.execute(call.clone()).result().await;
    assert!(told.text.contains("forward_agent is only allowed for unprivileged commands"), "{told:?}");
    let asked = client.execute(with(call, json!({"privileged": false})));
    broker.deny();
    assert_eq!(asked.result().await.fields["status"], "denied");
}
