//! A relay beside the daemon: sandboxed processes do not reach it, and other users do not read its metrics.

use super::{Cgroups, DAEMON_UID, Host, OTHER_USER, text};
use crate::support::{outpost, until};
use outpost_testkit::require;
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::process::{Command, Stdio};

/// A relay of the daemon's user, stopped at the end of the test.
struct RelayBeside<'a> {
    host: &'a Host,
    state: &'static str,
}

impl RelayBeside<'_> {
    /// Starts a relay with this state directory.
    fn start<'a>(host: &'a Host, state: &'static str, metrics: &str) -> RelayBeside<'a> {
        let relay = RelayBeside { host, state };
        let dir = host.dir.path().join("beside");
        fs::create_dir_all(&dir).unwrap();
        std::os::unix::fs::chown(&dir, Some(host.uid), Some(host.uid)).unwrap();
        let mut serve = relay.command(&[
            "-serve",
            "-socket",
            "beside/rpc.sock",
            "-token-fd",
            "0",
            "-metrics-addr",
            metrics,
        ]);
        let mut serve = serve.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        serve.stdin.take().unwrap().write_all(b"sesame").unwrap();
        assert!(serve.wait().unwrap().success());
        relay
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let words = [&[outpost().to_str().unwrap(), "relay"], arguments].concat();
        let mut command = self.host.as_user(self.host.uid, &words);
        command.env("OUTPOST_STATE_DIR", self.host.dir.path().join(self.state));
        command.env("CLAUDE_RPC_TOKEN", "sesame");
        command
    }
}

impl Drop for RelayBeside<'_> {
    fn drop(&mut self) {
        let _stopped = self.command(&["-stop", "-socket", "beside/rpc.sock"]).output();
    }
}

/// A client that sends one request with the token and prints the reply.
const RELAY_CLIENT: &str = r#"
import socket
client = socket.socket(socket.AF_UNIX)
client.connect('beside/rpc.sock')
client.sendall(b'{"jsonrpc":"2.0","id":1,"method":"server.ping","auth":"sesame"}\n')
print('answer', client.recv(4096).decode())
"#;

#[test]
fn a_sandboxed_process_neither_reads_the_token_of_a_relay_nor_reaches_it() {
    let host = require!(Host::start(Cgroups::Missing, &[]));
    for (state, is_hidden) in [("state", true), ("elsewhere", false)] {
        fs::create_dir_all(host.dir.path().join(state)).unwrap();
        std::os::unix::fs::chown(host.dir.path().join(state), Some(DAEMON_UID), Some(DAEMON_UID)).unwrap();
        let _relay = RelayBeside::start(&host, state, "none");
        let outside = text(&host.as_user(DAEMON_UID, &["python3", "-c", RELAY_CLIENT]).output().unwrap());
        assert!(outside.contains("pong"), "{outside}");
        let seen = text(&host.sandboxed(&["cat", "beside/daemon.token"]).output().unwrap());
        // The daemon does not know a relay with another state directory. That relay refuses the client itself.
        assert_eq!(seen.contains("sesame"), !is_hidden, "{seen}");
        let inside = text(&host.sandboxed(&["python3", "-c", RELAY_CLIENT]).output().unwrap());
        assert!(!inside.contains("pong"), "{inside}");
    }
}

#[test]
fn metrics_of_a_relay_are_refused_to_another_user() {
    let host = require!(Host::start(Cgroups::Missing, &[]));
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let _relay = RelayBeside::start(&host, "state", &free.to_string());
    let url = format!("http://{free}/metrics");
    until("the relay serves metrics", || TcpStream::connect(free).is_ok());
    let get = |uid: u32, more: &[&str]| {
        let words = [&["curl", "-s", "-i", &url], more].concat();
        text(&host.as_user(uid, &words).output().unwrap())
    };
    let answer = get(DAEMON_UID, &[]);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let answer = get(OTHER_USER, &[]);
    assert!(answer.starts_with("HTTP/1.1 401 ") && answer.contains("uid 54322"), "{answer}");
    let answer = get(OTHER_USER, &["-H", "authorization: Bearer sesame"]);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}
