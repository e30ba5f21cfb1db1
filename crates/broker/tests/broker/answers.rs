//! The responses: their fields, the field order, and the content for each outcome.

use crate::kit::{
    base64, broker, deny, error, message, ok, original_part, plain, press_too_late, privilege, same, sh,
    timeout,
};
use outpost_testkit::{Broker, BrokerOptions, require, stamp};
use serde_json::{Value, json};
use std::time::Duration;

#[test]
fn a_command_that_ran_is_ok_whatever_its_exit_code() {
    let mut broker = broker();
    for code in [0, 1, 2, 42, 126, 127, 255] {
        let id = format!("exit {code}");
        same(&broker.run(&sh(&id, &format!("exit {code}"))), &ok(&id, &[(code, "")], ""));
    }
}

#[test]
fn the_answer_has_its_fields_in_their_order_and_no_spaces() {
    let mut broker = broker();
    let answer = broker.run(&sh("a", "printf out; printf err >&2; exit 3"));
    let expected = r#"{"id":"a","status":"ok","stages":[{"exit_code":3,"stderr":"ZXJy"}],"stdout":"b3V0","version":"1.2.0"}"#;
    assert_eq!(original_part(&answer), expected);
}

#[test]
fn a_signal_gives_exit_code_minus_one() {
    let mut broker = broker();
    for signal in ["TERM", "KILL", "SEGV", "PIPE"] {
        same(
            &broker.run(&sh(signal, &format!("echo x; kill -{signal} $$"))),
            &ok(signal, &[(-1, "")], "x\n"),
        );
    }
}

#[test]
fn output_is_padded_standard_base64() {
    let mut broker = broker();
    let cases: [(&str, &str, &[u8]); 5] = [
        ("one", "printf '\\377'", b"\xff"),
        ("two", "printf '\\373\\377'", b"\xfb\xff"),
        ("three", "printf '\\000\\001\\002'", b"\0\x01\x02"),
        ("sextets", "printf '\\373\\357\\276\\377'", b"\xfb\xef\xbe\xff"),
        ("none", "true", b""),
    ];
    for (id, script, bytes) in cases {
        let expected = json!({
            "id": id, "status": "ok", "stages": [{"exit_code": 0, "stderr": base64(bytes)}], "stdout": base64(bytes),
            "version": "1.2.0"
        });
        same(&broker.run(&sh(id, &format!("{script}; {script} >&2"))), &expected.to_string());
    }
}

#[test]
fn the_id_is_returned_unchanged() {
    let mut broker = broker();
    for id in ["", "ü \"quoted\" \\ /", "550e8400-e29b-41d4-a716-446655440000"] {
        same(&broker.run(&sh(id, "true")), &ok(id, &[(0, "")], ""));
    }
}

#[test]
fn a_denial_has_only_id_and_status() {
    let mut broker = broker();
    let file = broker.path("ran");
    deny(&mut broker, &plain("a", json!([["touch", file]])));
    deny(&mut broker, &json!({"id": "b", "time": stamp(0), "pipeline": [["touch", file]]}));
    assert!(!file.exists());
}

/// The original waits a fixed minute. Outpost reads the time from this variable.
#[test]
fn an_unanswered_prompt_is_a_timeout() {
    let mut broker = Broker::start(&BrokerOptions::default().env("SUDO_PROXY_PROMPT_TIMEOUT_SECS", "1"));
    let file = broker.path("ran");
    let mut client = broker.send(&plain("a", json!([["touch", file]])));
    broker.wait_prompt();
    same(&client.answer_within(Duration::from_secs(90)), &timeout("a"));
    broker.wait_screen("Timeout");
    press_too_late(&mut broker);
    assert!(!file.exists());
}

#[test]
fn a_single_command_that_cannot_be_executed_is_an_error() {
    let mut broker = broker();
    let plain_file = broker.path("plain");
    std::fs::write(&plain_file, "#!/bin/sh\n").unwrap();
    let rows = [
        (json!([["no-such-command"]]), "No such file or directory (os error 2)"),
        (json!([["/no/such/command"]]), "No such file or directory (os error 2)"),
        (json!([[plain_file]]), "Permission denied (os error 13)"),
        (json!([[broker.dir()]]), "Permission denied (os error 13)"),
    ];
    for (number, (pipeline, reason)) in rows.into_iter().enumerate() {
        let id = number.to_string();
        let answer = broker.run(&plain(&id, pipeline));
        same(&answer, &error(&id, &format!("failed to execute command: {reason}")));
    }
}

#[test]
fn a_command_without_a_name_is_an_error() {
    let mut broker = broker();
    let text = message(&broker.run(&plain("a", json!([["", "x"]]))));
    assert!(
        !Broker::is_original() || text == "failed to execute command: No such file or directory (os error 2)",
        "{text}"
    );
}

#[test]
fn a_command_runs_in_the_root_directory_with_a_private_umask_and_no_input() {
    let mut broker = broker();
    same(&broker.run(&sh("cwd", "pwd")), &ok("cwd", &[(0, "")], "/\n"));
    same(&broker.run(&sh("umask", "umask")), &ok("umask", &[(0, "")], "0077\n"));
    same(&broker.run(&plain("stdin", json!([["cat"]]))), &ok("stdin", &[(0, "")], ""));
    let stdin = plain("null", json!([["readlink", "/proc/self/fd/0"]]));
    same(&broker.run(&stdin), &ok("null", &[(0, "")], "/dev/null\n"));
}

#[test]
fn a_command_inherits_only_three_descriptors() {
    let mut broker = broker();
    // Descriptor 3 is the listed directory.
    let answer = broker.run(&plain("a", json!([["ls", "/proc/self/fd"]])));
    same(&answer, &ok("a", &[(0, "")], "0\n1\n2\n3\n"));
}

#[test]
fn signals_are_at_their_defaults_in_a_command() {
    let mut broker = broker();
    // The mask selects SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTERM and SIGCHLD.
    let script = "while read name value; do case $name in SigBlk:|SigIgn:) echo $name $((0x$value & 0x15007));; esac; done \
                  </proc/self/status";
    same(&broker.run(&sh("a", script)), &ok("a", &[(0, "")], "SigBlk: 0\nSigIgn: 0\n"));
}

#[test]
fn arguments_are_not_expanded_by_a_shell() {
    let mut broker = broker();
    let words = ["$HOME", "`id`", "a;b", "*", "|", ">x", "'", "\"", "\\", "a b", "", "-n", "ü"];
    let mut argv = vec!["printf", "<%s>"];
    argv.extend(words);
    let out: String = words.iter().map(|word| format!("<{word}>")).collect();
    same(&broker.run(&plain("a", json!([argv]))), &ok("a", &[(0, "")], &out));
}

#[test]
fn a_privileged_command_has_the_same_response() {
    require!(privilege());
    let mut broker = broker();
    let request =
        |id: &str, script: &str| json!({"id": id, "time": stamp(0), "pipeline": [["sh", "-c", script]]});
    same(&broker.run(&request("a", "printf out; printf err >&2; exit 3")), &ok("a", &[(3, "err")], "out"));
    same(&broker.run(&request("b", "pwd; cat; id -u")), &ok("b", &[(0, "")], "/\n0\n"));
}

#[test]
fn every_response_has_the_version_and_a_request_may_have_any() {
    let mut broker = broker();
    for version in ["", "0.11.2", "99.0.0", "no version at all"] {
        let mut request = plain(&format!("v{version}"), json!([["true"]]));
        request["version"] = json!(version);
        let answer: Value = serde_json::from_str(&broker.run(&request)).unwrap();
        assert_eq!(answer["version"], "1.2.0");
    }
    let refused: Value = serde_json::from_str(&broker.send_raw("rubbish\n").answer()).unwrap();
    assert_eq!(refused["version"], "1.2.0");
}

#[test]
fn an_argument_beyond_the_kernels_limit_is_an_error() {
    let mut broker = broker();
    let answer = broker.run(&plain("a", json!([["true", "x".repeat(200_000)]])));
    let text = message(&answer);
    assert!(
        text.starts_with("failed to execute command: Argument list too long") || !Broker::is_original(),
        "{text}"
    );
    same(&broker.run(&sh("b", "true")), &ok("b", &[(0, "")], ""));
}
