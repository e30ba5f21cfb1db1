//! Valid commands: program names that sudo cannot misparse, and pipelines of reviewable length.

use crate::kit::{broker, error, ping, pong, refused_unasked, same, with};
use outpost_testkit::stamp;
use serde_json::{Value, json};

fn privileged(id: &str, pipeline: Value) -> Value {
    json!({"id": id, "time": stamp(0), "pipeline": pipeline})
}

#[test]
fn an_empty_privileged_command_is_refused_unasked() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    refused_unasked(&broker(), &privileged("a", json!([[""]])));
}

#[test]
fn a_privileged_command_that_sudo_parses_as_an_option_is_refused_unasked() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let broker = broker();
    for (id, words) in
        [("a", json!(["-u", "nobody", "id"])), ("b", json!(["-s"])), ("c", json!(["--", "id"]))]
    {
        refused_unasked(&broker, &privileged(id, json!([words])));
    }
    refused_unasked(&broker, &privileged("d", json!([["true"], ["-i"]])));
}

#[test]
fn a_privileged_command_that_sudo_parses_as_a_variable_is_refused_unasked() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let broker = broker();
    for (id, word) in [("a", "PATH=/tmp"), ("b", "LD_PRELOAD=x"), ("c", "/usr/bin/a=b")] {
        refused_unasked(&broker, &privileged(id, json!([[word, "id"]])));
    }
}

#[test]
fn a_refused_command_leaves_its_id_unused() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let broker = broker();
    refused_unasked(&broker, &privileged("a", json!([["-s"]])));
    same(&broker.request(&ping("a")), &pong("a"));
}

#[test]
fn too_many_stages_are_refused_unasked() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let broker = broker();
    for (id, count) in [("a", 33), ("b", 400)] {
        let stages = vec![json!(["true"]); count];
        let request = with(privileged(id, json!(stages)), json!({"privileged": false}));
        let message = refused_unasked(&broker, &request);
        assert!(message.contains("stages"), "{message}");
    }
}

#[test]
fn invalid_names_of_locale_variables_are_refused() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let broker = broker();
    for name in ["LC_ A", "LC_A B", "LC_A-B", "LC_A=B", "LC_A.B", "LC_ü", "LC_A;B"] {
        let answer = broker.request(&with(ping(name), json!({"env": {name: "C"}})));
        same(&answer, &error(name, &format!("environment variable not allowed: {name}")));
    }
}
