//! What may be a command: a program by its name or its path, in a pipeline that a human can still judge.

use crate::kit::{broker, error, ping, pong, refused_unasked, same, with};
use outpost_testkit::stamp;
use serde_json::{Value, json};

fn privileged(id: &str, pipeline: Value) -> Value {
    json!({"id": id, "time": stamp(0), "pipeline": pipeline})
}

#[test]
fn a_privileged_command_that_is_empty_is_refused_unasked() {
    outpost_testkit::require!(crate::kit::ours());
    refused_unasked(&broker(), &privileged("a", json!([[""]])));
}

#[test]
fn a_privileged_command_that_sudo_would_take_for_an_option_is_refused_unasked() {
    outpost_testkit::require!(crate::kit::ours());
    let broker = broker();
    for (id, words) in
        [("a", json!(["-u", "nobody", "id"])), ("b", json!(["-s"])), ("c", json!(["--", "id"]))]
    {
        refused_unasked(&broker, &privileged(id, json!([words])));
    }
    refused_unasked(&broker, &privileged("d", json!([["true"], ["-i"]])));
}

#[test]
fn a_privileged_command_that_sudo_would_take_for_a_variable_is_refused_unasked() {
    outpost_testkit::require!(crate::kit::ours());
    let broker = broker();
    for (id, word) in [("a", "PATH=/tmp"), ("b", "LD_PRELOAD=x"), ("c", "/usr/bin/a=b")] {
        refused_unasked(&broker, &privileged(id, json!([[word, "id"]])));
    }
}

#[test]
fn a_refused_command_does_not_use_its_id_up() {
    outpost_testkit::require!(crate::kit::ours());
    let broker = broker();
    refused_unasked(&broker, &privileged("a", json!([["-s"]])));
    same(&broker.request(&ping("a")), &pong("a"));
}

#[test]
fn more_stages_than_anyone_can_judge_are_refused_unasked() {
    outpost_testkit::require!(crate::kit::ours());
    let broker = broker();
    for (id, count) in [("a", 33), ("b", 400)] {
        let stages = vec![json!(["true"]); count];
        let request = with(privileged(id, json!(stages)), json!({"privileged": false}));
        let told = refused_unasked(&broker, &request);
        assert!(told.contains("stages"), "{told}");
    }
}

#[test]
fn the_name_of_a_locale_variable_is_a_name() {
    outpost_testkit::require!(crate::kit::ours());
    let broker = broker();
    for name in ["LC_ A", "LC_A B", "LC_A-B", "LC_A=B", "LC_A.B", "LC_ü", "LC_A;B"] {
        let answer = broker.request(&with(ping(name), json!({"env": {name: "C"}})));
        same(&answer, &error(name, &format!("environment variable not allowed: {name}")));
    }
}
