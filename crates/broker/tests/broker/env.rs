//! The environment: the variables that a request may set, and those that a command gets. Nothing is dropped silently.

use crate::kit::{broker, check, decoded, error, ok, original_part, ping, plain, privilege, same, sh, with};
use outpost_testkit::{Broker, require, stamp};
use serde_json::{Value, json};

/// The PATH of every command.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

fn not_allowed(name: &str) -> String {
    error(name, &format!("environment variable not allowed: {name}"))
}

/// The sorted environment of a command that requests these variables.
fn environment(broker: &mut Broker, id: &str, env: Value) -> Vec<String> {
    let answer = broker.run(&with(plain(id, json!([["env"]])), json!({"env": env})));
    let fields: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(fields["status"], "ok", "{answer}");
    let text = String::from_utf8(decoded(&fields["stdout"])).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Name and home of the test's user in the passwd database.
fn login() -> (String, String) {
    let output = std::process::Command::new("sh").args(["-c", "getent passwd $(id -u)"]).output().unwrap();
    let line = String::from_utf8(output.stdout).unwrap();
    let fields: Vec<&str> = line.trim_end().split(':').collect();
    ((*fields.first().unwrap()).to_owned(), (*fields.get(5).unwrap()).to_owned())
}

#[test]
fn a_command_gets_login_variables_and_none_of_the_daemon() {
    let mut broker = broker();
    let (name, home) = login();
    let expected =
        [format!("HOME={home}"), format!("LOGNAME={name}"), PATH.to_owned(), format!("USER={name}")];
    assert_eq!(environment(&mut broker, "a", json!({})), expected);
}

#[test]
fn a_request_may_set_the_allowed_variables() {
    let mut broker = broker();
    let (name, _) = login();
    let env = json!({
        "LANG": "de_DE.UTF-8", "TZ": "Europe/Berlin", "HOME": "/nowhere", "DEBIAN_FRONTEND": "noninteractive",
        "TERM": "xterm-256color", "LC_ALL": "C", "LC_TIME": "C"
    });
    let expected = [
        "DEBIAN_FRONTEND=noninteractive",
        "HOME=/nowhere",
        "LANG=de_DE.UTF-8",
        "LC_ALL=C",
        "LC_TIME=C",
        &format!("LOGNAME={name}"),
        PATH,
        "TERM=xterm-256color",
        "TZ=Europe/Berlin",
        &format!("USER={name}"),
    ];
    assert_eq!(environment(&mut broker, "a", env), expected);
}

#[test]
fn every_stage_gets_the_same_environment() {
    let mut broker = broker();
    let stage = json!(["sh", "-c", "cat; printf '%s %s\\n' \"$LANG\" \"$PATH\""]);
    let request = with(plain("a", json!([stage, stage])), json!({"env": {"LANG": "C"}}));
    let line = format!("C {}\n", PATH.trim_start_matches("PATH="));
    same(&broker.run(&request), &ok("a", &[(0, ""), (0, "")], &line.repeat(2)));
}

#[test]
fn a_privileged_command_gets_the_requested_variables() {
    require!(privilege());
    let mut broker = broker();
    let script = "printf '%s|%s|%s' \"$LANG\" \"$DEBIAN_FRONTEND\" \"$LC_ALL\"";
    let request = json!({
        "id": "a", "time": stamp(0), "pipeline": [["sh", "-c", script]],
        "env": {"LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    });
    same(&broker.run(&request), &ok("a", &[(0, "")], "C.UTF-8|noninteractive|C"));
}

#[test]
fn any_other_variable_fails_the_request() {
    let broker = broker();
    let names = [
        "PATH",
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "BASH_ENV",
        "ENV",
        "IFS",
        "PYTHONPATH",
        "PERL5OPT",
        "USER",
        "LOGNAME",
        "SHELL",
        "SUDO_ASKPASS",
        "DISPLAY",
        "lang",
        "LANGUAGE",
        "LC",
        "TZDIR",
        "",
        " ",
        "LANG ",
        " LANG",
        "A=B",
        "HOME=",
    ];
    let rows: Vec<_> = names
        .iter()
        .map(|name| (with(ping(name), json!({"env": {*name: "x"}})), not_allowed(name)))
        .collect();
    check(&broker, &rows);
}

#[test]
fn one_forbidden_variable_among_allowed_ones_fails_the_request() {
    let broker = broker();
    let env = json!({"LANG": "C", "TZ": "UTC", "LD_PRELOAD": "/tmp/evil.so", "TERM": "dumb"});
    check(&broker, &[(with(ping("LD_PRELOAD"), json!({"env": env})), not_allowed("LD_PRELOAD"))]);
}

#[test]
fn the_agent_socket_variable_has_its_own_refusal() {
    let broker = broker();
    let message = "SSH_AUTH_SOCK cannot be set in request env; use forward_agent instead";
    let request = with(sh("a", "true"), json!({"env": {"SSH_AUTH_SOCK": "/tmp/agent"}}));
    check(&broker, &[(request, error("a", message))]);
}

#[test]
fn values_are_never_evaluated() {
    let mut broker = broker();
    let value = "a b$(id)`id`;'\"\\ ü";
    let request = with(sh("a", "printf %s \"$TZ\""), json!({"env": {"TZ": value}}));
    let answer = broker.run(&request);
    // Outpost may refuse this as a time zone. Then nothing runs.
    if Broker::is_original() || !original_part(&answer).contains(r#""status":"error""#) {
        same(&answer, &ok("a", &[(0, "")], value));
    }
}
