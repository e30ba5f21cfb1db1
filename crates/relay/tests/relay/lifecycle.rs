//! Tests of the daemon's modes and lifecycle: start, stop, crashes, kept children. Also the helpers of these tests.

mod bridge;
mod concurrent_starts;
mod crashes;
mod flags;
mod keep_children;
mod keep_children_exits;
mod login_path;
mod metrics;
mod serve;
mod stop;
mod token;

use outpost_sys::epoll::wait_readable;
use outpost_sys::pidfd::Pidfd;
use outpost_sys::procfs;
use outpost_testkit::{Relay, RelayClient, TOKEN};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// A test fails after waiting this long.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// Polls a condition that has no event to wait for.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < TIMEOUT, "never happened: {what}");
        outpost_testkit::pause();
    }
}

/// Waits for the exit of a process.
pub(crate) fn assert_exits(pidfd: &Pidfd, what: &str) {
    assert!(wait_readable(pidfd, TIMEOUT).unwrap(), "{what} is still there");
}

pub(crate) fn is_alive(pid: i32) -> bool {
    procfs::stat(pid).is_some_and(|stat| !matches!(stat.state, b'Z' | b'X'))
}

/// The current keeper and worker.
pub(crate) fn daemon_pidfds(relay: &Relay) -> [Pidfd; 2] {
    let status = relay.status().expect("the daemon runs");
    [status.keeper_pid, status.worker_pid].map(|pid| outpost_testkit::process(pid.cast_signed()).unwrap())
}

/// Whether the daemon keeps children without serving clients.
pub(crate) fn is_keeping(relay: &Relay) -> bool {
    relay.status().is_some_and(|status| format!("{:?}", status.relay) == "Some(Keeping)")
}

/// Runs `-stop` with this token.
pub(crate) fn stop_with(relay: &Relay, token: &str) -> Output {
    let socket = relay.socket();
    let mut stop = relay.command(&["-stop", "-socket", socket.to_str().unwrap()]);
    stop.env("CLAUDE_RPC_TOKEN", token).output().unwrap()
}

/// Runs `-stop` and asserts that it succeeds without output.
pub(crate) fn stop(relay: &Relay) {
    assert_silent(&stop_with(relay, TOKEN));
}

pub(crate) fn assert_silent(output: &Output) {
    assert_eq!((output.status.code(), text(&output.stdout), text(&output.stderr)), (Some(0), "", ""));
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A shell with the environment of `command`. `$0` is the relay binary.
pub(crate) fn in_shell(relay: &Relay, script: &str, command: &Command) -> Command {
    let mut sh = Command::new("/bin/sh");
    sh.args(["-c", script]).arg(relay.binary()).current_dir(relay.dir());
    sh.envs(command.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))));
    sh
}

/// Parses the return value of `RelayClient::call` and returns its result.
pub(crate) fn result(reply: &str) -> Value {
    let mut reply: Value = serde_json::from_str(&format!("{{{reply}}}")).unwrap();
    assert!(reply.get("result").is_some(), "{reply}");
    reply["result"].take()
}

pub(crate) fn base64(bytes: &[u8]) -> String {
    let mut out = Vec::new();
    outpost_wire::base64::append(&mut out, bytes);
    String::from_utf8(out).unwrap()
}

/// Spawns `sh -c script` and returns its pid.
pub(crate) fn spawn_sh(client: &mut RelayClient, id: &str, script: &str) -> i32 {
    let params = json!({"id": id, "command": "/bin/sh", "args": ["-c", script], "wantPid": true});
    let result = result(&client.call("process.spawn", &params.to_string()));
    i32::try_from(result["pid"].as_i64().unwrap()).unwrap()
}

/// Sends `process.stdin` and returns the result.
pub(crate) fn write_stdin(client: &mut RelayClient, id: &str, data: &[u8]) -> Value {
    let params = json!({"id": id, "data": base64(data)});
    result(&client.call("process.stdin", &params.to_string()))
}

/// A client that follows a process and reconnects when necessary. Asserts that every sequence number arrives once and in
/// order.
pub(crate) struct Follower {
    socket: PathBuf,
    token: String,
    id: String,
    client: Option<RelayClient>,
    pub(crate) last_seq: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) exit: Option<i64>,
    pub(crate) connections: usize,
}

impl Follower {
    pub(crate) fn new(socket: &Path, id: &str) -> Follower {
        Follower {
            socket: socket.to_owned(),
            token: TOKEN.into(),
            id: id.into(),
            client: None,
            last_seq: 0,
            bytes: Vec::new(),
            exit: None,
            connections: 0,
        }
    }

    /// Continues with another token on a new connection.
    pub(crate) fn use_token(&mut self, token: &str) {
        token.clone_into(&mut self.token);
        self.client = None;
    }

    fn attach(&mut self) -> RelayClient {
        let mut client = RelayClient::connect(&self.socket).with_token(&self.token);
        // If the worker is killed now, the next read notices it.
        let _lost = client.try_request(
            "process.reattach",
            &format!(r#"{{"id":"{}","fromSeq":{}}}"#, self.id, self.last_seq),
        );
        self.connections += 1;
        client
    }

    /// Processes one line. Returns false if the connection is lost.
    pub(crate) fn take(&mut self, line: Option<String>) -> bool {
        let Some(line) = line else {
            self.client = None;
            return false;
        };
        let frame: Value = serde_json::from_str(&line).unwrap();
        if frame.get("type").is_none() {
            assert_eq!(frame["result"]["found"], true, "{line}");
            return true;
        }
        let seq = frame["seq"].as_u64().unwrap();
        assert_eq!(seq, self.last_seq + 1, "a sequence number is missing or duplicate: {line}");
        self.last_seq = seq;
        match frame["stream"].as_str() {
            Some("exit") => self.exit = frame["exitCode"].as_i64(),
            _ => {
                let data = frame["data"].as_str().unwrap();
                self.bytes.extend(outpost_wire::base64::decode(data.as_bytes()).unwrap());
            }
        }
        true
    }

    /// Reads while `wanting` returns true, until the exit. Reconnects when the connection is lost.
    pub(crate) fn read_while(&mut self, wanting: impl Fn(&[u8]) -> bool) {
        let begun = Instant::now();
        while self.exit.is_none() && wanting(&self.bytes) {
            assert!(begun.elapsed() < TIMEOUT, "{}: stuck after {} bytes", self.id, self.bytes.len());
            let mut client = self.client.take().unwrap_or_else(|| self.attach());
            let line = client.try_line();
            self.client = Some(client);
            self.take(line);
        }
    }

    pub(crate) fn read_until(&mut self, end: &str) {
        self.read_while(|bytes| !bytes.ends_with(end.as_bytes()));
        assert!(self.bytes.ends_with(end.as_bytes()), "{} ended before {end:?}", self.id);
    }

    pub(crate) fn read_to_exit(&mut self) -> i64 {
        self.read_while(|_| true);
        self.exit.unwrap()
    }

    pub(crate) fn text(&self) -> &str {
        text(&self.bytes)
    }
}

/// A FIFO that blocks a script: `read x < gate`.
pub(crate) struct Gate {
    file: File,
}

impl Gate {
    pub(crate) fn new(path: &Path) -> Gate {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
        // Opened for reading too: the open does not block, and the FIFO buffers the data until the script reads.
        Gate { file: File::options().read(true).write(true).open(path).unwrap() }
    }

    pub(crate) fn open(&mut self) {
        self.file.write_all(b"go\n").unwrap();
    }
}
