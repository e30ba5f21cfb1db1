//! `outpost sessions`, as somebody in a shell has it.

use crate::kit::{Host, outpost, real};
use outpost_testkit::{Lack, available};
use std::process::Command;

impl Host {
    /// What `outpost sessions` prints with these arguments.
    fn said(&self, arguments: &[&str]) -> String {
        let done = self.outpost(&[&["sessions"], arguments].concat());
        assert!(done.status.success(), "{arguments:?}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    }
}

#[test]
fn a_text_is_printed_once_and_as_it_is_whatever_became_of_its_deltas() {
    let host = Host::start();
    let id = host.create();
    let tool =
        r#"line {"type":"assistant","message":{"content":[{"type":"tool_use","name":"T","input":{}}]}}"#;
    let cases: [(&[&str], &str); 6] = [
        (&["partial Hello", "partial .", "text Hello."], "Hello.\n"),
        (&["text Hello."], "Hello.\n"),
        // The rest never came as deltas.
        (&["partial Hello", "text Hello from it."], "Hello from it.\n"),
        // They were told anew.
        (
            &["partial Hello", "partial Hello from", "text Hello from it."],
            "HelloHello from\nHello from it.\n",
        ),
        (&["partial one", "text one", "partial two", "text two"], "one\ntwo\n"),
        (&["partial one", tool, "text one"], "one\n[T] {}\n"),
    ];
    for (steps, expected) in cases {
        let script = host.script(&[steps, &["result"]].concat());
        assert_eq!(host.said(&["send", &id, &script]), expected, "{steps:?}");
    }
    for (recorded, expected) in [
        (include_str!("../recorded/claude-cut.jsonl"), "HelloHello from the\nHello from the fake model.\n"),
        (include_str!("../recorded/claude-plain.jsonl"), "Hello from the fake model.\n"),
    ] {
        let lines: Vec<String> = recorded.lines().map(|line| format!("line {line}")).collect();
        let script = host.script(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(host.said(&["send", &id, &script]), expected);
    }
}

#[test]
fn a_path_that_means_something_here_means_the_same_there() {
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
        let id = host.said(&["create", given]);
        let path = host.listed(id.trim())["path"].as_str().unwrap().to_owned();
        assert_eq!(real(path.as_ref()), real(&expected), "{given}");
    }
}

#[test]
fn the_daemon_is_found_wherever_on_loopback_it_listens() {
    for address in ["127.0.0.1:0", "127.0.0.2:0", "[::1]:0"] {
        let bound = std::net::TcpListener::bind(address);
        if available!(bound.map_err(|error| Lack::of_host(format!("{address}: {error}")))).is_none() {
            continue;
        }
        let host = Host::start_by(Command::new(outpost()), &["--sessions-listen", address]);
        let id = host.said(&["create", "./project"]);
        assert_eq!(host.said(&["send", id.trim(), "echo:hello"]), "hello\n");
    }
}

#[test]
fn a_daemon_that_wants_a_token_is_named_with_what_to_do() {
    let host = Host::start_by(Command::new(outpost()), &["--sessions-listen", "0.0.0.0:0"]);
    let refused = host.outpost(&["sessions", "list"]);
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success(), "{why}");
    for part in ["https://0.0.0.0:", "listen = \"127.0.0.1:9100\"", "outpost token create"] {
        assert!(why.contains(part), "{part}: {why}");
    }
}
