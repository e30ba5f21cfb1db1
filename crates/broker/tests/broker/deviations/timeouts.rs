//! The output of commands that time out, leave descendants behind, or are killed by a signal.

use crate::kit::{base64, broker, decoded, original_part, plain, sh};
use outpost_testkit::{Broker, BrokerOptions};
use serde_json::{Value, json};
use std::time::Duration;

fn one_second() -> Broker {
    Broker::start(&BrokerOptions::default().env("SUDO_PROXY_EXEC_TIMEOUT_SECS", "1"))
}

/// Asserts an error response with the output so far and `timed_out`.
#[track_caller]
fn check_timed_out(answer: &str, stages: &[(i32, &str)], stdout: &str, message: &str) {
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
fn the_output_of_a_timed_out_command_is_returned() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let answer = one_second().run(&sh("a", "echo out; echo err >&2; exec sleep 600"));
    check_timed_out(&answer, &[(-1, "err\n")], "out\n", "command timed out after 1s");
}

#[test]
fn the_output_of_a_timed_out_pipeline_is_returned() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let pipeline = json!([
        ["sh", "-c", "echo e0 >&2; exit 3"],
        ["sh", "-c", "cat; echo out; echo e1 >&2; exec sleep 600"]
    ]);
    let answer = one_second().run(&plain("a", pipeline));
    check_timed_out(&answer, &[(3, "e0\n"), (-1, "e1\n")], "out\n", "pipeline timed out after 1s");
}

#[test]
fn a_descendant_that_holds_stdout_does_not_delay_the_response() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let mut broker = broker();
    let mut client = broker.send(&sh("a", "echo out; sleep 40 & exit 5"));
    broker.approve();
    let answer: Value = serde_json::from_str(&client.answer_within(Duration::from_secs(15))).unwrap();
    assert_eq!((&answer["status"], &answer["stages"][0]["exit_code"]), (&json!("ok"), &json!(5)));
    assert_eq!(decoded(&answer["stdout"]), b"out\n");
}

#[test]
fn the_signal_that_killed_a_command_is_reported() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let answer: Value = serde_json::from_str(&broker().run(&sh("a", "kill -TERM $$"))).unwrap();
    let signal = answer["stages"][0]["signal"].as_str().unwrap_or_default();
    assert_eq!(signal.trim_start_matches("SIG"), "TERM", "{answer}");
    assert_eq!(answer["stages"][0]["exit_code"], -1);
}
