//! "a pipeline is `[["a"], ["b"], ["c"]]` (equivalent to `a | b | c`)", and "stages carries one entry per pipeline stage".

use crate::kit::{broker, error, ok, plain, privilege, same, with};
use outpost_testkit::{require, stamp};
use serde_json::{Value, json};

/// A pipeline of shell scripts.
fn scripts(stages: &[&str]) -> Value {
    stages.iter().map(|script| json!(["sh", "-c", script])).collect()
}

#[test]
fn the_output_of_a_stage_is_the_input_of_the_next() {
    let mut broker = broker();
    let request =
        plain("a", json!([["printf", "b\\na\\nb\\n"], ["sort"], ["uniq", "-c"], ["tr", "-d", " "]]));
    same(&broker.run(&request), &ok("a", &[(0, ""), (0, ""), (0, ""), (0, "")], "1a\n2b\n"));
}

#[test]
fn stdout_is_of_the_last_stage_and_stderr_of_each() {
    let mut broker = broker();
    let request = plain(
        "a",
        scripts(&[
            "echo one; echo e1 >&2; exit 1",
            "cat >/dev/null; echo two; echo e2 >&2; exit 2",
            "cat; echo e3 >&2",
        ]),
    );
    same(&broker.run(&request), &ok("a", &[(1, "e1\n"), (2, "e2\n"), (0, "e3\n")], "two\n"));
}

#[test]
fn every_stage_has_its_exit_code_and_a_failure_does_not_stop_the_others() {
    let mut broker = broker();
    let request = plain("a", scripts(&["exit 3", "cat; exit 0", "cat; exit 5"]));
    same(&broker.run(&request), &ok("a", &[(3, ""), (0, ""), (5, "")], ""));
    let request = plain("b", scripts(&["kill -9 $$", "cat; echo end"]));
    same(&broker.run(&request), &ok("b", &[(-1, ""), (0, "")], "end\n"));
}

#[test]
fn a_stage_without_a_reader_gets_sigpipe() {
    let mut broker = broker();
    let request = plain("a", json!([["yes"], ["head", "-n1"]]));
    same(&broker.run(&request), &ok("a", &[(-1, ""), (0, "")], "y\n"));
    let request = plain("b", json!([["yes"], ["cat"], ["cat"], ["head", "-n2"]]));
    same(&broker.run(&request), &ok("b", &[(-1, ""), (-1, ""), (-1, ""), (0, "")], "y\ny\n"));
}

#[test]
fn a_stage_may_ignore_its_input() {
    let mut broker = broker();
    let request = plain("a", json!([["true"], ["echo", "x"]]));
    same(&broker.run(&request), &ok("a", &[(0, ""), (0, "")], "x\n"));
}

#[test]
fn the_first_stage_has_no_input() {
    let mut broker = broker();
    let request = plain("a", scripts(&["cat; readlink /proc/self/fd/0", "cat"]));
    same(&broker.run(&request), &ok("a", &[(0, ""), (0, "")], "/dev/null\n"));
}

#[test]
fn a_pipeline_may_have_many_stages() {
    let mut broker = broker();
    for count in [2, 16, 32] {
        let mut stages = vec![json!(["printf", "through"])];
        stages.resize(count, json!(["cat"]));
        let id = count.to_string();
        same(&broker.run(&plain(&id, json!(stages))), &ok(&id, &vec![(0, ""); count], "through"));
    }
}

#[test]
fn large_data_passes_unchanged() {
    let mut broker = broker();
    let request = plain("a", json!([["head", "-c", "50000000", "/dev/zero"], ["cat"], ["wc", "-c"]]));
    same(&broker.run(&request), &ok("a", &[(0, ""), (0, ""), (0, "")], "50000000\n"));
}

#[test]
fn every_stage_is_in_the_root_directory_with_a_private_umask() {
    let mut broker = broker();
    let stage = "cat; pwd; umask";
    same(
        &broker.run(&plain("a", scripts(&[stage, stage]))),
        &ok("a", &[(0, ""), (0, "")], "/\n0077\n/\n0077\n"),
    );
}

#[test]
fn a_stage_that_cannot_start_fails_the_request_and_kills_the_others() {
    let mut broker = broker();
    let missing = |stage: usize| {
        format!("failed to spawn pipeline stage {stage}: No such file or directory (os error 2)")
    };
    let rows = [
        (json!([["sleep", "600"], ["no-such-command"]]), missing(1)),
        (json!([["no-such-command"], ["cat"]]), missing(0)),
        (json!([["sleep", "600"], ["sleep", "600"], ["/no/such/command"], ["cat"]]), missing(2)),
    ];
    for (number, (pipeline, message)) in rows.into_iter().enumerate() {
        let id = number.to_string();
        same(&broker.run(&plain(&id, pipeline)), &error(&id, &message));
        broker.wait_childless();
    }
}

#[test]
fn a_privileged_pipeline_runs_every_stage_as_root() {
    require!(privilege());
    let mut broker = broker();
    let stages = scripts(&["id -u; echo e1 >&2", "cat; id -u; exit 4"]);
    let request = json!({"id": "a", "time": stamp(0), "pipeline": stages});
    same(&broker.run(&request), &ok("a", &[(0, "e1\n"), (4, "")], "0\n0\n"));
}

#[test]
fn one_approval_covers_the_whole_pipeline() {
    let mut broker = broker();
    let request = with(plain("a", json!([["echo", "x"], ["cat"], ["cat"]])), json!({"reason": "once"}));
    let mut client = broker.send(&request);
    broker.approve();
    same(&client.answer(), &ok("a", &[(0, ""), (0, ""), (0, "")], "x\n"));
    assert!(!broker.has_prompt());
}
