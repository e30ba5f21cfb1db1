//! Compatibility with the original's client, `sudo-request` 1.2.0.
//!
//! Its path is `OUTPOST_SUDO_REQUEST`, or beside `OUTPOST_BROKER_PEER`, or where `scripts/fetch-broker-peer` installs it.

use crate::kit::{broker, privilege};
use outpost_testkit::{Broker, Lack, available, require};
use std::process::{Command, Output, Stdio};

/// The client's command with these arguments.
fn client(broker: &Broker, arguments: &[&str]) -> Result<Command, Lack> {
    let program = Broker::sudo_request()?;
    let mut command = Command::new(program);
    command.arg("--socket").arg(broker.socket()).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).env("NO_COLOR", "1");
    Ok(command)
}

/// Runs the client and answers its prompt. Returns exit code, stdout and stderr.
fn run_client(broker: &mut Broker, arguments: &[&str], approve: bool) -> Result<(i32, String, String), Lack> {
    let child = client(broker, arguments)?.spawn().unwrap();
    if approve {
        broker.approve();
    } else {
        broker.deny();
    }
    Ok(outcome(&child.wait_with_output().unwrap()))
}

fn outcome(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_client_gets_output_and_exit_code() {
    let mut broker = broker();
    let script = "echo out; echo err >&2; exit 3";
    let both: [&[&str]; 2] = [&["--no-privilege"], &[]];
    for privilege in both.into_iter().take(if available!(privilege()).is_some() { 2 } else { 1 }) {
        let arguments = [privilege, &["sh", "-c", script]].concat();
        let got = require!(run_client(&mut broker, &arguments, true));
        assert_eq!(got, (3, "out\n".to_owned(), "err\n(exit code: 3)\n".to_owned()));
    }
}

#[test]
fn the_client_gets_the_output_of_a_pipeline() {
    let mut broker = broker();
    let arguments = ["--no-privilege", "printf", "b\\na\\n", "|", "sort", "|", "head", "-n1"];
    let got = require!(run_client(&mut broker, &arguments, true));
    assert_eq!(got, (0, "a\n".to_owned(), String::new()));
}

#[test]
fn the_client_gets_a_denial() {
    let mut broker = broker();
    let got = require!(run_client(
        &mut broker,
        &["--reason", "some reason", "--session", "some-session", "true"],
        false
    ));
    assert_eq!(got, (1, String::new(), "Request denied.\n".to_owned()));
    let screen = broker.screen();
    assert!(screen.contains("some reason") && screen.contains("some-session"), "{screen}");
}

#[test]
fn the_client_prints_an_error() {
    let mut broker = broker();
    let mut command = require!(client(&broker, &["--no-privilege", "no-such-command"]));
    let mut child = command.spawn().unwrap();
    // Outpost refuses a missing program without a prompt.
    while !broker.has_prompt() && child.try_wait().unwrap().is_none() {
        outpost_testkit::pause();
    }
    if child.try_wait().unwrap().is_none() {
        broker.approve();
    }
    let got = outcome(&child.wait_with_output().unwrap());
    let text = "Error: failed to execute command: No such file or directory (os error 2)\n";
    assert_eq!(got, (1, String::new(), text.to_owned()));
}

#[test]
fn the_client_prints_all_streams_with_print() {
    let mut broker = broker();
    let arguments = ["--print", "--no-privilege", "sh", "-c", "echo out; echo err >&2"];
    let got = require!(run_client(&mut broker, &arguments, true));
    let text = "exit 0\n== stdout == (1 lines)\nout\n== stderr == (1 lines)\nerr\n";
    assert_eq!(got, (0, text.to_owned(), String::new()));
}

#[test]
fn the_client_shows_a_signal_as_minus_one() {
    let mut broker = broker();
    let got = require!(run_client(&mut broker, &["--no-privilege", "sh", "-c", "kill -9 $$"], true));
    assert_eq!(got, (255, String::new(), "(exit code: -1)\n".to_owned()));
}

#[test]
fn the_client_can_request_the_agent() {
    let mut broker = broker();
    let script = "printf %s \"${SSH_AUTH_SOCK-none}\"";
    let got =
        require!(run_client(&mut broker, &["--no-privilege", "--forward-agent", "sh", "-c", script], true));
    assert_eq!(got, (0, "none".to_owned(), String::new()));
}
