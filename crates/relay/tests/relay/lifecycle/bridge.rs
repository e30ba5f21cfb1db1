//! `-bridge`: relays stdin and stdout to the socket.

use super::{Follower, TIMEOUT, assert_exits, daemon_pidfds, is_alive, spawn_sh, stop, text, wait_until};
use outpost_sys::epoll::wait_readable;
use outpost_testkit::{Relay, RelayClient, TOKEN};
use serde_json::json;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};

/// A bridge process, killed on drop.
struct Bridge(Child);

impl Drop for Bridge {
    fn drop(&mut self) {
        let _already_exited = self.0.kill();
        let _reaped = self.0.wait();
    }
}

fn command(relay: &Relay) -> Command {
    let socket = relay.socket();
    relay.command(&["-bridge", "-socket", socket.to_str().unwrap()])
}

/// A client connected through a bridge.
fn bridged(relay: &Relay) -> (Bridge, RelayClient) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (stdin, stdout): (OwnedFd, OwnedFd) = (theirs.try_clone().unwrap().into(), theirs.into());
    let bridge = command(relay).stdin(stdin).stdout(stdout).spawn().unwrap();
    (Bridge(bridge), RelayClient::over(ours))
}

/// A bridge with pipes, as sshd starts it.
fn piped(relay: &Relay) -> Bridge {
    Bridge(command(relay).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
}

fn request(id: u32, method: &str, params: &serde_json::Value) -> Vec<u8> {
    let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "auth": TOKEN, "params": params});
    format!("{request}\n").into_bytes()
}

#[test]
fn without_a_server_it_fails_with_a_message() {
    let relay = Relay::prepare();
    let assert_fails = |reason: &str| {
        let output = command(&relay).output().unwrap();
        let expected =
            format!("claustrum: dial server: dial unix {}: connect: {reason}\n", relay.socket().display());
        let outcome = (output.status.code(), text(&output.stdout), text(&output.stderr));
        assert_eq!(outcome, (Some(1), "", expected.as_str()));
    };
    assert_fails("no such file or directory");
    drop(UnixListener::bind(relay.socket()).unwrap());
    assert_fails("connection refused");
}

#[test]
fn it_does_not_inject_a_token() {
    let relay = Relay::start();
    let mut command = command(&relay);
    command.env("CLAUDE_RPC_TOKEN", TOKEN).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut bridge = Bridge(command.spawn().unwrap());
    let (mut stdin, stdout) = (bridge.0.stdin.take().unwrap(), bridge.0.stdout.take().unwrap());
    stdin.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"server.ping\"}\n").unwrap();
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    assert!(line.contains("-32001"), "{line}");
}

#[test]
fn a_request_before_eof_of_stdin_gets_its_reply() {
    let relay = Relay::start();
    let mut bridge = piped(&relay);
    let mut stdin = bridge.0.stdin.take().unwrap();
    let spawn = json!({"id": "p", "command": "/bin/sh", "args": ["-c", "echo out; exit 5"]});
    stdin.write_all(&request(1, "process.spawn", &spawn)).unwrap();
    drop(stdin);
    let mut all = String::new();
    bridge.0.stdout.take().unwrap().read_to_string(&mut all).unwrap();
    let lines: Vec<&str> = all.lines().collect();
    assert_eq!(lines.first(), Some(&r#"{"jsonrpc":"2.0","id":1,"result":{"success":true}}"#), "{all}");
    assert!(lines.last().unwrap().contains(r#""stream":"exit","seq":2,"exitCode":5"#), "{all}");
    assert!(bridge.0.wait().unwrap().success());
}

#[test]
fn large_streams_pass_unchanged_in_both_directions() {
    const BYTES: usize = 8 * 1024 * 1024;
    let relay = Relay::start();
    let (mut bridge, mut client) = bridged(&relay);
    let input = outpost_testkit::Noise::new(7).letters(BYTES);
    let spawn = json!({"id": "p", "command": "/usr/bin/head", "args": ["-c", BYTES.to_string()]});
    assert!(client.call("process.spawn", &spawn.to_string()).contains("true"));
    let mut follower = Follower::new(&relay.socket(), "p");
    let mut writer = client.stream().try_clone().unwrap();
    let feeding = std::thread::spawn({
        let input = input.clone();
        move || {
            for (number, piece) in input.chunks(500_000).enumerate() {
                let params = json!({"id": "p", "data": super::base64(piece), "offset": number * 500_000});
                writer.write_all(&request(1000, "process.stdin", &params)).unwrap();
            }
        }
    });
    let mut applied = 0;
    while follower.exit.is_none() {
        let line = client.line();
        let reply: serde_json::Value = serde_json::from_str(&line).unwrap();
        match reply.get("type") {
            Some(_) => assert!(follower.take(Some(line))),
            None => applied = applied.max(reply["result"]["applied"].as_u64().unwrap()),
        }
    }
    feeding.join().unwrap();
    assert_eq!(follower.exit, Some(0));
    assert_eq!(applied, BYTES as u64);
    assert!(follower.bytes == input, "{} bytes of {BYTES}", follower.bytes.len());
    client.stream().shutdown(Shutdown::Write).unwrap();
    assert!(bridge.0.wait().unwrap().success());
}

#[test]
fn it_exits_with_the_daemon_while_stdin_is_open() {
    let relay = Relay::start();
    let (mut bridge, mut client) = bridged(&relay);
    assert_eq!(client.call("server.ping", ""), r#""result":{"pong":true}"#);
    let parts = daemon_pidfds(&relay);
    stop(&relay);
    let ended = outpost_testkit::process(bridge.0.id().cast_signed()).unwrap();
    assert!(wait_readable(&ended, TIMEOUT).unwrap(), "the bridge does not exit");
    assert_eq!(bridge.0.wait().unwrap().code(), Some(0));
    assert_eq!(client.try_line(), None);
    parts.iter().for_each(|part| assert_exits(part, "the daemon"));
}

/// The number of client connections that the daemon has open.
fn connections(relay: &Relay) -> usize {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let path = relay.socket().display().to_string();
    // An accepted socket has the path of the listener and the state SS_CONNECTED.
    let is_connection = |line: &&str| line.ends_with(&path) && line.split_whitespace().nth(5) == Some("03");
    sockets.lines().filter(is_connection).count()
}

#[test]
fn it_exits_with_a_client_that_follows_a_writing_process() {
    let relay = Relay::start();
    let mut bridge = piped(&relay);
    let mut stdin = bridge.0.stdin.take().unwrap();
    let spawn = json!({"id": "p", "command": "/usr/bin/yes"});
    stdin.write_all(&request(1, "process.spawn", &spawn)).unwrap();
    let mut out = bridge.0.stdout.take().unwrap();
    out.read_exact(&mut [0; 100_000]).unwrap();
    drop((stdin, out));
    let ended = outpost_testkit::process(bridge.0.id().cast_signed()).unwrap();
    assert_exits(&ended, "the bridge");
    wait_until("the connection is closed", || connections(&relay) == 0);
    let pid = super::result(
        &relay.connect().call("process.reattach", r#"{"id":"p","fromSeq":1000000000,"wantPid":true}"#),
    );
    assert!(
        is_alive(i32::try_from(pid["pid"].as_i64().unwrap()).unwrap()),
        "the process survives its client"
    );
}

#[test]
fn it_exits_with_a_client_that_follows_a_silent_process() {
    let relay = Relay::start();
    let mut bridge = piped(&relay);
    let mut stdin = bridge.0.stdin.take().unwrap();
    let child = spawn_sh(&mut relay.connect(), "p", "exec sleep 1000");
    stdin.write_all(&request(1, "process.reattach", &json!({"id": "p", "fromSeq": 0}))).unwrap();
    let mut out = BufReader::new(bridge.0.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert!(line.contains(r#""found":true"#), "{line}");
    // Both pipes of the session are closed, and the process writes nothing that could fail.
    drop((stdin, out));
    let ended = outpost_testkit::process(bridge.0.id().cast_signed()).unwrap();
    assert_exits(&ended, "the bridge of the disconnected client");
    wait_until("the connection is closed", || connections(&relay) == 0);
    assert!(is_alive(child));
}
