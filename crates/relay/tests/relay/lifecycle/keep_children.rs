//! `-keep-children`: processes that outlive a stop with their stdio, and the next daemon that adopts them.

use super::{Follower, Gate, is_alive, is_keeping, result, spawn_sh, stop_with, wait_until, write_stdin};
use outpost_sys::pidfd;
use outpost_sys::signal::Signal;
use outpost_testkit::{Half, Relay, RelayClient, TOKEN};
use std::path::PathBuf;

const FLAGS: &[&str] = &["-keep-children"];

/// How a test stops the daemon.
#[derive(Clone, Copy)]
pub(super) enum StopMethod {
    Stop,
    Request,
    Signal(Signal),
}

/// Stops a daemon that has children to keep.
pub(super) fn stop_keeping(relay: &Relay, method: StopMethod, token: &str) {
    match method {
        StopMethod::Stop => super::assert_silent(&stop_with(relay, token)),
        StopMethod::Request => {
            let mut client = relay.connect().with_token(token);
            client.request("server.shutdown", "");
            assert_eq!(client.try_line(), None, "no reply");
        }
        StopMethod::Signal(signal) => {
            let keeper = relay.status().unwrap().keeper_pid.cast_signed();
            pidfd::signal(outpost_testkit::process(keeper).unwrap(), signal).unwrap();
        }
    }
    wait_until("the daemon keeps its children", || is_keeping(relay));
    assert!(!relay.socket().exists() && !relay.path("daemon.token").exists());
}

/// A process that works in rounds. In each round it reads a line from the gate, writes 3000 lines, creates a marker file, and
/// echoes one line of stdin. The line `end` ends it.
struct Writer {
    relay: Relay,
    gate: Gate,
    pid: i32,
    follower: Follower,
    rounds: usize,
    expected: String,
}

impl Writer {
    const SCRIPT: &str = "round=0; exec 3<gate; while read -r line <&3; do \
        i=0; while [ $i -lt 3000 ]; do echo round $round, line $i, padded to some length; i=$((i+1)); done; \
        : > written-$round; round=$((round+1)); \
        while read -r line; do [ $line = end ] && exit 7; echo got $line; break; done; done";

    fn start() -> Writer {
        let relay = Relay::prepare();
        let gate = Gate::new(&relay.path("gate"));
        relay.serve(FLAGS);
        let pid = spawn_sh(&mut relay.connect(), "p", Writer::SCRIPT);
        let follower = Follower::new(&relay.socket(), "p");
        Writer { relay, gate, pid, follower, rounds: 0, expected: String::new() }
    }

    /// Starts a round and waits for its marker file. Does not read the output.
    fn write(&mut self) {
        self.gate.open();
        let (round, written) = (self.rounds, self.written());
        wait_until("a round is written", || written.exists());
        self.expected.extend((0..3000).map(|i| format!("round {round}, line {i}, padded to some length\n")));
        self.rounds += 1;
    }

    fn written(&self) -> PathBuf {
        self.relay.path(&format!("written-{}", self.rounds))
    }

    /// Starts a new daemon with another token and asserts that it has adopted the process.
    fn serve(&mut self, token: &str) {
        let served = self.relay.serve_command(token, FLAGS).output().unwrap();
        assert!(served.status.success(), "{served:?}; log: {}", self.relay.log());
        let banner = format!("Claustrum remote server listening on {}\n", self.relay.socket().display());
        assert_eq!(super::text(&served.stdout), banner);
        assert_eq!(std::fs::read_to_string(self.relay.path("daemon.token")).unwrap(), token);
        let mut client = self.client(token);
        let params = r#"{"id":"p","fromSeq":1000000000,"wantPid":true}"#;
        let known = result(&client.call("process.reattach", params));
        let facts = (&known["found"], &known["running"], &known["pid"]);
        assert_eq!(facts, (&true.into(), &true.into(), &self.pid.into()), "{known}");
        self.follower.use_token(token);
    }

    fn client(&self, token: &str) -> RelayClient {
        self.relay.connect().with_token(token)
    }

    /// Writes a word to stdin and reads all output up to its echo.
    fn talk(&mut self, token: &str, word: &str) {
        let applied = write_stdin(&mut self.client(token), "p", format!("{word}\n").as_bytes());
        assert_eq!(applied["success"], true);
        self.expected.push_str(&format!("got {word}\n"));
        self.follower.read_until(&format!("got {word}\n"));
        assert!(self.follower.text() == self.expected, "{} bytes", self.follower.bytes.len());
    }

    fn end(&mut self, token: &str) {
        self.write();
        write_stdin(&mut self.client(token), "p", b"end\n");
        assert_eq!(self.follower.read_to_exit(), 7);
        assert!(self.follower.text() == self.expected, "{} bytes", self.follower.bytes.len());
        assert!(!is_alive(self.pid));
    }
}

/// Stops and restarts the daemon around a writing process. Calls `meanwhile` between the two.
fn keep_over_restart(method: StopMethod, meanwhile: impl Fn(&Relay)) {
    let mut writer = Writer::start();
    writer.write();
    writer.talk(TOKEN, "one");
    stop_keeping(&writer.relay, method, TOKEN);
    // More than a pipe holds, while no client is served.
    writer.write();
    meanwhile(&writer.relay);
    assert!(is_alive(writer.pid) && is_keeping(&writer.relay) && !writer.relay.socket().exists());
    writer.serve("another token");
    let refused = writer.client(TOKEN).call("server.ping", "");
    assert!(refused.contains("-32001"), "the old token: {refused}");
    writer.talk("another token", "two");
    writer.end("another token");
    let line = "[Server] -keep-children: leaving 1 running child process(es) alive across shutdown";
    assert_eq!(writer.relay.log().matches(line).count(), 1, "{}", writer.relay.log());
}

#[test]
fn a_process_outlives_minus_stop_with_its_stdio() {
    keep_over_restart(StopMethod::Stop, |_| {});
}

#[test]
fn a_process_outlives_a_shutdown_by_request_with_its_stdio() {
    keep_over_restart(StopMethod::Request, |_| {});
}

#[test]
fn a_process_outlives_sigterm_with_its_stdio() {
    keep_over_restart(StopMethod::Signal(Signal::TERM), |_| {});
}

#[test]
fn a_process_outlives_sigint_with_its_stdio() {
    keep_over_restart(StopMethod::Signal(Signal::INT), |_| {});
}

#[test]
fn a_kept_process_survives_killed_workers_nemesis() {
    keep_over_restart(StopMethod::Stop, |relay| (0..2).for_each(|_| relay.kill(Half::Worker)));
}

#[test]
fn a_kept_process_survives_a_killed_keeper_nemesis() {
    keep_over_restart(StopMethod::Signal(Signal::TERM), |relay| {
        relay.kill(Half::Keeper);
        relay.kill(Half::Worker);
        relay.kill(Half::Keeper);
    });
}

#[test]
fn a_process_is_kept_over_several_restarts() {
    let mut writer = Writer::start();
    writer.write();
    let mut token = TOKEN.to_owned();
    for round in 0..3 {
        stop_keeping(&writer.relay, StopMethod::Stop, &token);
        token = format!("token {round}");
        writer.serve(&token);
        writer.talk(&token, &format!("round{round}"));
        writer.write();
    }
    stop_keeping(&writer.relay, StopMethod::Signal(Signal::TERM), &token);
    writer.serve("the last token");
    write_stdin(&mut writer.client("the last token"), "p", b"end\n");
    assert_eq!(writer.follower.read_to_exit(), 7);
    assert!(writer.follower.text() == writer.expected);
}

#[test]
fn a_daemon_without_the_flag_ends_the_kept_children_when_it_stops() {
    let mut writer = Writer::start();
    writer.write();
    stop_keeping(&writer.relay, StopMethod::Stop, TOKEN);
    let served = writer.relay.serve_command("plain", &[]).output().unwrap();
    assert!(served.status.success(), "{served:?}");
    writer.talk_after_adoption();
    let (child, parts) = (outpost_testkit::process(writer.pid).unwrap(), super::daemon_pidfds(&writer.relay));
    super::assert_silent(&stop_with(&writer.relay, "plain"));
    super::assert_exits(&child, "the process");
    parts.iter().for_each(|part| super::assert_exits(part, "the daemon"));
    writer.relay.serve(&[]);
    let known = writer.relay.connect().call("process.reattach", r#"{"id":"p"}"#);
    assert!(known.contains(r#""found":false"#), "{known}");
}

impl Writer {
    fn talk_after_adoption(&mut self) {
        self.follower.use_token("plain");
        self.talk("plain", "adopted");
    }
}
