//! The daemon's modes and its life: how it starts, what it leaves, what outlives it.

mod bridge;
mod contest;
mod deaths;
mod flags;
mod keep;
mod keep_ends;
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

/// How long anything may take before a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Looks again and again, for what cannot be waited for otherwise.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "never happened: {what}");
        outpost_testkit::pause();
    }
}

/// Waits for the end of a process that may have ended already.
pub(crate) fn ends(pidfd: &Pidfd, what: &str) {
    assert!(wait_readable(pidfd, PATIENCE).unwrap(), "{what} is still there");
}

pub(crate) fn is_alive(pid: i32) -> bool {
    procfs::stat(pid).is_some_and(|stat| !matches!(stat.state, b'Z' | b'X'))
}

/// The keeper and the worker, as they are now.
pub(crate) fn parts(relay: &Relay) -> [Pidfd; 2] {
    let status = relay.status().expect("the daemon runs");
    [status.keeper_pid, status.worker_pid].map(|pid| outpost_testkit::process(pid.cast_signed()).unwrap())
}

/// Whether processes are kept while nobody is served.
pub(crate) fn is_keeping(relay: &Relay) -> bool {
    relay.status().is_some_and(|status| format!("{:?}", status.relay) == "Some(Keeping)")
}

/// `-stop` with this token.
pub(crate) fn stop_with(relay: &Relay, token: &str) -> Output {
    let socket = relay.socket();
    let mut stop = relay.command(&["-stop", "-socket", socket.to_str().unwrap()]);
    stop.env("CLAUDE_RPC_TOKEN", token).output().unwrap()
}

/// `-stop` that says nothing and works.
pub(crate) fn stop(relay: &Relay) {
    assert_silent(&stop_with(relay, TOKEN));
}

pub(crate) fn assert_silent(output: &Output) {
    assert_eq!((output.status.code(), text(&output.stdout), text(&output.stderr)), (Some(0), "", ""));
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A shell in the environment of `command`; `$0` is the program.
pub(crate) fn in_shell(relay: &Relay, script: &str, command: &Command) -> Command {
    let mut sh = Command::new("/bin/sh");
    sh.args(["-c", script]).arg(relay.binary()).current_dir(relay.dir());
    sh.envs(command.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))));
    sh
}

/// What `call` returned, without `"result":`.
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

/// Starts a shell with a script; returns its pid.
pub(crate) fn spawn_sh(client: &mut RelayClient, id: &str, script: &str) -> i32 {
    let params = json!({"id": id, "command": "/bin/sh", "args": ["-c", script], "wantPid": true});
    let result = result(&client.call("process.spawn", &params.to_string()));
    i32::try_from(result["pid"].as_i64().unwrap()).unwrap()
}

/// Feeds a process; returns the reply.
pub(crate) fn feed(client: &mut RelayClient, id: &str, data: &[u8]) -> Value {
    let params = json!({"id": id, "data": base64(data)});
    result(&client.call("process.stdin", &params.to_string()))
}

/// What a client has of a process, over as many connections as it takes. Every number must come, once and in order.
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

    /// Goes on with another token, over a new connection.
    pub(crate) fn use_token(&mut self, token: &str) {
        token.clone_into(&mut self.token);
        self.client = None;
    }

    fn attach(&mut self) -> RelayClient {
        let mut client = RelayClient::connect(&self.socket).with_token(&self.token);
        // Whose worker is killed right now notices that when it reads.
        let _lost = client.try_request(
            "process.reattach",
            &format!(r#"{{"id":"{}","fromSeq":{}}}"#, self.id, self.last_seq),
        );
        self.connections += 1;
        client
    }

    /// Takes one line; false when the connection is lost.
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
        assert_eq!(seq, self.last_seq + 1, "a number is missing or doubled: {line}");
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

    /// Reads until there is enough, or nothing more to come. Comes back when the connection is lost.
    pub(crate) fn read_while(&mut self, wanting: impl Fn(&[u8]) -> bool) {
        let begun = Instant::now();
        while self.exit.is_none() && wanting(&self.bytes) {
            assert!(begun.elapsed() < PATIENCE, "{}: {} bytes and no more", self.id, self.bytes.len());
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

/// A named pipe that a script waits at: `read x < gate`.
pub(crate) struct Gate {
    file: File,
}

impl Gate {
    pub(crate) fn new(path: &Path) -> Gate {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
        // For reading, too: so it opens at once, and what is written waits for who reads it.
        Gate { file: File::options().read(true).write(true).open(path).unwrap() }
    }

    pub(crate) fn open(&mut self) {
        self.file.write_all(b"go\n").unwrap();
    }
}
