//! The limits: output size, run time, and requests in flight.

use crate::kit::{broker, busy, decoded, error, message, ok, ping, plain, pong, privilege, same, sh, with};
use outpost_testkit::{Broker, BrokerOptions, require};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// "the daemon capped the corresponding stream at MAX_OUTPUT_BYTES (16 MiB)"
const OUTPUT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// "64 in flight"
const IN_FLIGHT_MAX: usize = 64;

/// A command that writes this many zero bytes.
fn zeros(bytes: usize) -> String {
    format!("head -c {bytes} /dev/zero")
}

fn one_second() -> Broker {
    Broker::start(&BrokerOptions::default().env("SUDO_PROXY_EXEC_TIMEOUT_SECS", "1"))
}

/// Length and truncation flag of stdout and stderr of a one-stage response. The flags must be absent or true.
fn streams(answer: &str) -> [(usize, bool); 2] {
    let answer: Value = serde_json::from_str(answer).unwrap();
    assert_eq!(answer["status"], "ok");
    let stage = &answer["stages"][0];
    let flag = |fields: &Value, name: &str| {
        let flag = fields.get(name);
        assert!(flag.is_none() || flag == Some(&Value::Bool(true)), "{flag:?}");
        flag.is_some()
    };
    [
        (decoded(&answer["stdout"]).len(), flag(&answer, "stdout_truncated")),
        (decoded(&stage["stderr"]).len(), flag(stage, "stderr_truncated")),
    ]
}

#[test]
fn sixteen_mebibytes_are_not_truncated() {
    let mut broker = broker();
    let answer = broker.run(&sh("a", &format!("{0}; {0} >&2", zeros(OUTPUT_BYTES_MAX))));
    assert_eq!(streams(&answer), [(OUTPUT_BYTES_MAX, false), (OUTPUT_BYTES_MAX, false)]);
}

#[test]
fn one_byte_more_is_truncated_and_flagged() {
    let mut broker = broker();
    let answer = broker.run(&sh("a", &zeros(OUTPUT_BYTES_MAX + 1)));
    assert_eq!(streams(&answer), [(OUTPUT_BYTES_MAX, true), (0, false)]);
    let begin = r#"{"id":"a","status":"ok","stages":[{"exit_code":0,"stderr":"""#;
    assert!(answer.starts_with(begin), "{answer:.200}");
    assert!(answer.contains(r#"","stdout_truncated":true,"version":"1.2.0""#));
    let answer = broker.run(&sh("b", &format!("{} >&2", zeros(OUTPUT_BYTES_MAX + 1))));
    assert_eq!(streams(&answer), [(0, false), (OUTPUT_BYTES_MAX, true)]);
    assert!(answer.contains(r#"","stderr_truncated":true"#));
}

#[test]
fn a_command_with_truncated_output_still_finishes() {
    let mut broker = broker();
    let answer = broker.run(&sh("a", &format!("{}; exit 7", zeros(3 * OUTPUT_BYTES_MAX))));
    assert_eq!(streams(&answer), [(OUTPUT_BYTES_MAX, true), (0, false)]);
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["stages"][0]["exit_code"], 7);
}

#[test]
fn each_stage_has_its_own_cap() {
    let mut broker = broker();
    let loud = format!("cat; {} >&2", zeros(OUTPUT_BYTES_MAX + 1));
    let quiet = "cat; echo quiet >&2; echo end".to_owned();
    let stages: Value = [&loud, &quiet].iter().map(|script| json!(["sh", "-c", script])).collect();
    let answer: Value = serde_json::from_str(&broker.run(&plain("a", stages))).unwrap();
    assert_eq!(decoded(&answer["stages"][0]["stderr"]).len(), OUTPUT_BYTES_MAX);
    assert_eq!(answer["stages"][0]["stderr_truncated"], true);
    assert_eq!(decoded(&answer["stages"][1]["stderr"]), b"quiet\n");
    assert!(answer["stages"][1].get("stderr_truncated").is_none());
    assert_eq!(decoded(&answer["stdout"]), b"end\n");
    assert!(answer.get("stdout_truncated").is_none());
}

#[test]
fn data_between_stages_has_no_cap() {
    let mut broker = broker();
    let bytes = (3 * OUTPUT_BYTES_MAX).to_string();
    let request = plain("a", json!([["head", "-c", bytes, "/dev/zero"], ["wc", "-c"]]));
    same(&broker.run(&request), &ok("a", &[(0, ""), (0, "")], &format!("{bytes}\n")));
}

#[test]
fn a_command_beyond_the_run_timeout_is_an_error_and_killed() {
    let mut broker = one_second();
    let begun = Instant::now();
    let answer = broker.run(&sh("a", "sleep 600 & sleep 600"));
    assert_eq!(message(&answer), "command timed out after 1s");
    assert!(begun.elapsed() >= Duration::from_secs(1));
    broker.wait_childless();
    if Broker::is_original() {
        same(&answer, &error("a", "command timed out after 1s"));
    }
}

#[test]
fn a_pipeline_beyond_the_run_timeout_is_an_error_and_killed() {
    let mut broker = one_second();
    let answer = broker.run(&plain("a", json!([["true"], ["sleep", "600"], ["cat"]])));
    assert_eq!(message(&answer), "pipeline timed out after 1s");
    broker.wait_childless();
    if Broker::is_original() {
        same(&answer, &error("a", "pipeline timed out after 1s"));
    }
}

#[test]
fn a_privileged_command_has_the_same_run_timeout() {
    require!(privilege());
    let mut broker = one_second();
    let answer = broker.run(&with(sh("a", "sleep 600"), json!({"privileged": true})));
    assert_eq!(message(&answer), "command timed out after 1s");
    broker.wait_childless();
}

#[test]
fn a_timeout_that_is_not_a_number_is_ignored() {
    let mut broker = Broker::start(&BrokerOptions::default().env("SUDO_PROXY_EXEC_TIMEOUT_SECS", "soon"));
    same(&broker.run(&sh("a", "echo x")), &ok("a", &[(0, "")], "x\n"));
}

#[test]
fn the_sixty_fifth_request_in_flight_gets_server_busy() {
    let mut broker = broker();
    let request = |number: usize| plain(&number.to_string(), json!([["true"]]));
    let mut waiting: Vec<_> = (0..IN_FLIGHT_MAX).map(|number| broker.send(&request(number))).collect();
    for id in ["a", "b"] {
        same(&broker.request(&ping(id)), &busy());
    }
    // The pending requests continue, and a freed place is usable.
    broker.deny();
    let begun = Instant::now();
    let mut answer = broker.request(&ping("a"));
    while answer == busy() {
        assert!(begun.elapsed() < Duration::from_secs(60));
        outpost_testkit::pause();
        answer = broker.request(&ping("a"));
    }
    same(&answer, &pong("a"));
    let answered = waiting.iter().filter(|client| client.has_answer(Duration::ZERO)).count();
    assert_eq!(answered, 1);
    waiting.clear();
}
