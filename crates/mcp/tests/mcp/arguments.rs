//! Argument validation, and the parts of a call that the human sees.

use crate::kit::{Client, broker, sh, with};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn invalid_arguments_are_reported_without_a_prompt() {
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
            "bytes and the limit of the broker is 1048576",
        ),
    ] {
        let result = client.execute(arguments.clone()).result().await;
        assert!(result.is_error && result.text.contains(why), "{arguments:.200}: {result:?}");
    }
    assert!(!broker.has_prompt());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_prompt_shows_client_session_and_reason() {
    let mut broker = broker();
    let client = Client::start(&broker.socket()).await;
    let asked =
        client.execute(with(sh("true"), json!({"session": "web server", "reason": "because of tests"})));
    broker.wait_prompt();
    let screen = broker.unread();
    for text in ["web server (the-tests 7.0, pid ", "because of tests"] {
        assert!(screen.contains(text), "{screen}");
    }
    broker.deny();
    asked.result().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn privileged_is_the_default() {
    let mut broker = broker();
    let client = Client::start(&broker.socket()).await;
    // The broker refuses `forward_agent` for privileged requests, so its error shows the default.
    let call = json!({"argv": ["true"], "reason": "a test", "forward_agent": true});
    let result = client.execute(call.clone()).result().await;
    assert!(result.text.contains("forward_agent is only allowed for unprivileged commands"), "{result:?}");
    let asked = client.execute(with(call, json!({"privileged": false})));
    broker.deny();
    assert_eq!(asked.result().await.fields["status"], "denied");
}
