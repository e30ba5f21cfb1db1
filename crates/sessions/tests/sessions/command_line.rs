//! The command `outpost sessions`.

use crate::kit::{Host, canonical, outpost};
use outpost_testkit::{Lack, available};
use std::process::Command;

impl Host {
    /// The output of `outpost sessions` with these arguments.
    fn stdout(&self, arguments: &[&str]) -> String {
        let done = self.outpost(&[&["sessions"], arguments].concat());
        assert!(done.status.success(), "{arguments:?}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    }
}

#[test]
fn a_text_is_printed_once_and_verbatim_whatever_its_deltas() {
    let host = Host::start();
    let id = host.create();
    let tool =
        r#"line {"type":"assistant","message":{"content":[{"type":"tool_use","name":"T","input":{}}]}}"#;
    let cases: [(&[&str], &str); 6] = [
        (&["partial Hello", "partial .", "text Hello."], "Hello.\n"),
        (&["text Hello."], "Hello.\n"),
        // The rest of the text has no deltas.
        (&["partial Hello", "text Hello from it."], "Hello from it.\n"),
        // The deltas started over.
        (
            &["partial Hello", "partial Hello from", "text Hello from it."],
            "HelloHello from\nHello from it.\n",
        ),
        (&["partial one", "text one", "partial two", "text two"], "one\ntwo\n"),
        (&["partial one", tool, "text one"], "one\n[T] {}\n"),
    ];
    for (steps, expected) in cases {
        let script = host.script(&[steps, &["result"]].concat());
        assert_eq!(host.stdout(&["send", &id, &script]), expected, "{steps:?}");
    }
    for (recorded, expected) in [
        (include_str!("../recorded/claude-cut.jsonl"), "HelloHello from the\nHello from the fake model.\n"),
        (include_str!("../recorded/claude-plain.jsonl"), "Hello from the fake model.\n"),
    ] {
        let lines: Vec<String> = recorded.lines().map(|line| format!("line {line}")).collect();
        let script = host.script(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(host.stdout(&["send", &id, &script]), expected);
    }
}

#[test]
fn a_relative_path_is_relative_to_the_command() {
    let host = Host::start();
    let here = host.path("");
    let cases = [
        (".", here.clone()),
        ("./project", host.path("project")),
        ("..", here.join("..")),
        ("../", here.join("..")),
        ("named", host.path("home/Projects/named")),
    ];
    for (given, expected) in cases {
        let id = host.stdout(&["create", given]);
        let path = host.listed(id.trim())["path"].as_str().unwrap().to_owned();
        assert_eq!(canonical(path.as_ref()), canonical(&expected), "{given}");
    }
}

#[test]
fn the_daemon_is_found_on_every_loopback_address() {
    for address in ["127.0.0.1:0", "127.0.0.2:0", "[::1]:0"] {
        let bound = std::net::TcpListener::bind(address);
        if available!(bound.map_err(|error| Lack::of_host(format!("{address}: {error}")))).is_none() {
            continue;
        }
        let host = Host::start_by(Command::new(outpost()), &["--sessions-listen", address]);
        let id = host.stdout(&["create", "./project"]);
        assert_eq!(host.stdout(&["send", id.trim(), "echo:hello"]), "hello\n");
    }
}

#[test]
fn the_command_line_needs_no_token_where_the_port_has_tls() {
    let host = Host::start_by(Command::new(outpost()), &["--sessions-listen", "0.0.0.0:0"]);
    let listed = host.outpost(&["sessions", "list"]);
    assert!(listed.status.success() && listed.stdout.starts_with(b"ID"), "{listed:?}");
}
