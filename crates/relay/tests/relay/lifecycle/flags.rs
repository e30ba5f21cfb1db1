//! Command line flags: version, modes, errors, default socket.

use super::{stop, text};
use outpost_testkit::{Relay, TOKEN};
use std::process::{Command, Output};

/// The binary through a symlink named `claustrum`, in the environment of a relay.
fn as_claustrum(relay: &Relay, arguments: &[&str]) -> Command {
    let link = relay.path("claustrum");
    let _already_exists = std::os::unix::fs::symlink(relay.binary(), &link);
    let mut command = Command::new(link);
    command.args(arguments).current_dir(relay.dir());
    for (name, value) in relay.command(&[]).get_envs() {
        command.env(name, value.unwrap());
    }
    command
}

fn exit_and_output(output: &Output) -> (Option<i32>, &str, &str) {
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn every_form_of_the_version_flag_prints_one_line() {
    let relay = Relay::prepare();
    let expected = relay.run(&["-version"]);
    let (code, line, errors) = exit_and_output(&expected);
    assert_eq!((code, errors), (Some(0), ""));
    let version = line.strip_prefix("claustrum ").and_then(|rest| rest.strip_suffix(")\n")).unwrap();
    assert!(version.contains(" (built ") && version.lines().count() == 1, "{line:?}");
    for arguments in [&["--version"][..], &["-version=true"], &["--version=1"], &["-serve=false", "-version"]]
    {
        assert_eq!(relay.run(arguments), expected, "{arguments:?}");
    }
    assert_eq!(as_claustrum(&relay, &["--version"]).output().unwrap(), expected);
}

#[test]
fn without_a_mode_one_line_and_no_usage_is_printed() {
    let relay = Relay::prepare();
    let line = "claustrum: one of --version/--install/--serve/--bridge/--stop is required\n";
    for arguments in [&[][..], &["-socket", "/tmp/x"], &["-version=false"], &["stray", "-version"]] {
        assert_eq!(exit_and_output(&relay.run(arguments)), (Some(2), "", line), "{arguments:?}");
    }
    assert_eq!(exit_and_output(&as_claustrum(&relay, &[]).output().unwrap()), (Some(2), "", line));
}

#[test]
fn an_invalid_flag_prints_an_error_and_the_usage() {
    let relay = Relay::prepare();
    for (arguments, error) in [
        (&["-bogus"][..], "flag provided but not defined: -bogus"),
        (&["--bogus=1", "-version"], "flag provided but not defined: -bogus"),
        (&["-version", "-socket"], "flag needs an argument: -socket"),
        (&["-version=perhaps"], "invalid boolean value \"perhaps\" for -version: parse error"),
        (&["-token-fd", "x"], "invalid value \"x\" for flag -token-fd: parse error"),
        (&["---version"], "bad flag syntax: ---version"),
    ] {
        let output = relay.run(arguments);
        let (code, out, errors) = exit_and_output(&output);
        assert_eq!((code, out), (Some(2), ""), "{arguments:?}");
        let (first, usage) = errors.split_once('\n').unwrap();
        assert_eq!(first, error, "{arguments:?}");
        assert!(usage.starts_with("Usage of "), "{usage:?}");
        for flag in ["serve", "bridge", "stop", "version", "install", "socket", "token-file", "token-fd"] {
            assert!(usage.contains(&format!("\n  -{flag}")), "-{flag} is not in {usage}");
        }
    }
}

#[test]
fn of_several_modes_the_least_invasive_one_runs() {
    let relay = Relay::prepare();
    let all = ["-serve", "-bridge", "-stop", "-install", "-version"];
    assert!(text(&relay.run(&all).stdout).starts_with("claustrum "));
    assert!(text(&relay.run(&all[..4]).stdout).starts_with("__INSTALL_RESULT__"));
    // Without a daemon: -stop is silent, -bridge cannot connect, -serve requires a token.
    assert_eq!(exit_and_output(&relay.run(&all[..3])), (Some(0), "", ""));
    assert!(text(&relay.run(&all[..2]).stderr).starts_with("claustrum: dial server: "));
    assert!(text(&relay.run(&all[..1]).stderr).contains("requires --token-file"));
}

#[test]
fn a_symlink_named_claustrum_runs_the_relay() {
    let relay = Relay::prepare();
    std::fs::write(relay.path("token"), TOKEN).unwrap();
    let (socket, token) = (relay.socket(), relay.path("token"));
    let (socket, token) =
        (format!("--socket={}", socket.display()), format!("-token-file={}", token.display()));
    let served = as_claustrum(&relay, &["--serve", &socket, &token]).output().unwrap();
    let banner = format!("Claustrum remote server listening on {}\n", relay.socket().display());
    assert_eq!(exit_and_output(&served), (Some(0), banner.as_str(), ""));
    assert_eq!(relay.connect().call("server.ping", ""), r#""result":{"pong":true}"#);
    let mut stopped = as_claustrum(&relay, &["--stop", &socket]);
    assert_eq!(exit_and_output(&stopped.env("CLAUDE_RPC_TOKEN", TOKEN).output().unwrap()), (Some(0), "", ""));
    assert!(!relay.socket().exists());
}

#[test]
fn the_default_socket_is_in_the_home_directory_and_its_parent_is_not_created() {
    let relay = Relay::prepare();
    std::fs::write(relay.path("token"), TOKEN).unwrap();
    let socket = relay.path(".claude/remote/rpc.sock");
    let serve = || relay.run(&["-serve", "-token-file", "token"]);
    let refused = format!(
        "claustrum: listen unix: listen unix {}: bind: no such file or directory\n",
        socket.display()
    );
    assert_eq!(exit_and_output(&serve()), (Some(1), "", refused.as_str()));
    assert!(!relay.path(".claude").exists());
    assert_eq!(
        exit_and_output(&relay.run(&["-bridge"])),
        (
            Some(1),
            "",
            format!(
                "claustrum: dial server: dial unix {}: connect: no such file or directory\n",
                socket.display()
            )
            .as_str()
        )
    );
    std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
    std::fs::write(relay.path("token"), TOKEN).unwrap();
    assert_eq!(serve().status.code(), Some(0));
    let mut client = outpost_testkit::RelayClient::connect(&socket);
    assert_eq!(client.call("server.ping", ""), r#""result":{"pong":true}"#);
    let stopped = relay.command(&["-stop"]).env("CLAUDE_RPC_TOKEN", TOKEN).output().unwrap();
    assert_eq!(exit_and_output(&stopped), (Some(0), "", ""));
    assert!(!socket.exists());
}

#[test]
fn a_relative_socket_path_is_relative_to_the_caller() {
    let relay = Relay::prepare();
    std::fs::write(relay.path("token"), TOKEN).unwrap();
    let served = relay.run(&["-serve", "-socket", "rpc.sock", "-token-file", "token"]);
    assert_eq!(exit_and_output(&served), (Some(0), "Claustrum remote server listening on rpc.sock\n", ""));
    assert_eq!(relay.connect().call("server.ping", ""), r#""result":{"pong":true}"#);
    stop(&relay);
    assert!(!relay.socket().exists());
}
