//! A command that runs too long, or leaves something behind, still tells what it said.

use crate::kit::{base64, broker, decoded, original_part, plain, sh};
use outpost_testkit::{Broker, BrokerOptions};
use serde_json::{Value, json};
use std::time::Duration;

fn one_second() -> Broker {
    Broker::start(&BrokerOptions::default().env("SUDO_PROXY_EXEC_TIMEOUT_SECS", "1"))
}

/// An error with the output so far, and marked as what it is.
#[track_caller]
fn timed_out(answer: &str, stages: &[(i32, &str)], stdout: &str, message: &str) {
    let stages: Vec<Value> =
        stages.iter().map(|(code, stderr)| json!({"exit_code": code, "stderr": base64(stderr)})).collect();
    let expected = json!({
        "id": "a", "status": "error", "stages": stages, "stdout": base64(stdout), "message": message, "version": "1.2.0"
    });
    assert_eq!(original_part(answer), expected.to_string());
    let fields: Value = serde_json::from_str(answer).unwrap();
    assert_eq!(fields["timed_out"], true, "{answer}");
}

#[test]
fn what_a_command_said_before_its_time_was_up_is_kept() {
    outpost_testkit::require!(crate::kit::ours());
    let answer = one_second().run(&sh("a", "echo out; echo err >&2; exec sleep 600"));
    timed_out(&answer, &[(-1, "err\n")], "out\n", "command timed out after 1s");
}

#[test]
fn what_a_pipeline_said_before_its_time_was_up_is_kept() {
    outpost_testkit::require!(crate::kit::ours());
    let pipeline = json!([
        ["sh", "-c", "echo e0 >&2; exit 3"],
        ["sh", "-c", "cat; echo out; echo e1 >&2; exec sleep 600"]
    ]);
    let answer = one_second().run(&plain("a", pipeline));
    timed_out(&answer, &[(3, "e0\n"), (-1, "e1\n")], "out\n", "pipeline timed out after 1s");
}

#[test]
fn a_grandchild_that_holds_the_output_does_not_hold_the_answer() {
    outpost_testkit::require!(crate::kit::ours());
    let mut broker = broker();
    let mut client = broker.send(&sh("a", "echo out; sleep 40 & exit 5"));
    broker.approve();
    let answer: Value = serde_json::from_str(&client.answer_within(Duration::from_secs(15))).unwrap();
    assert_eq!((&answer["status"], &answer["stages"][0]["exit_code"]), (&json!("ok"), &json!(5)));
    assert_eq!(decoded(&answer["stdout"]), b"out\n");
}

#[test]
fn a_command_that_is_stopped_by_a_signal_says_by_which() {
    outpost_testkit::require!(crate::kit::ours());
    let answer: Value = serde_json::from_str(&broker().run(&sh("a", "kill -TERM $$"))).unwrap();
    let signal = answer["stages"][0]["signal"].as_str().unwrap_or_default();
    assert_eq!(signal.trim_start_matches("SIG"), "TERM", "{answer}");
    assert_eq!(answer["stages"][0]["exit_code"], -1);
}
