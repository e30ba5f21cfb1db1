//! A real relay on a socket of its own, a client that sees every line, and the end of both when the test is over.

use crate::daemon::{Half, TIMEOUT, binary_beside, kill_marked, pause};
use outpost_control::client::Client as Control;
use outpost_control::wire::Status;
use outpost_sys::epoll::wait_readable;
use outpost_sys::pidfd;
use outpost_sys::signal::Signal;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;
use tempfile::TempDir;

/// What tests authenticate with.
pub const TOKEN: &str = "a token with spaces";

/// A directory for one relay: its socket, its state, its home.
pub struct Relay {
    dir: TempDir,
    binary: PathBuf,
    uid: Option<u32>,
}

impl Relay {
    /// Nothing is started yet. The program is the `outpost` of the same build.
    pub fn prepare() -> Relay {
        let ours = std::env::current_exe().unwrap();
        // A test is in `deps`, the programs are one up.
        let programs = ours.parent().unwrap().parent().unwrap();
        let binary = binary_beside(&programs.join("tests"), "outpost");
        Relay { dir: tempfile::tempdir().unwrap(), binary, uid: None }
    }

    /// Started, and it answers.
    pub fn start() -> Relay {
        Relay::prepare().started()
    }

    /// As another user; only root can.
    pub fn start_as(uid: u32) -> Relay {
        let mut relay = Relay::prepare();
        relay.uid = Some(uid);
        std::os::unix::fs::chown(relay.dir(), Some(uid), Some(uid)).unwrap();
        relay.started()
    }

    pub fn started(self) -> Relay {
        self.serve(&[]);
        self
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn binary(&self) -> &Path {
        &self.binary
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    pub fn socket(&self) -> PathBuf {
        self.path("rpc.sock")
    }

    /// The program in one of its modes, in an environment of its own.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = match self.uid {
            None => Command::new(&self.binary),
            Some(uid) => {
                let mut command = Command::new("setpriv");
                command.args([format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".into()]);
                command.arg(&self.binary);
                command
            }
        };
        let owner = crate::daemon::owner();
        command
            .arg("relay")
            .args(arguments)
            .current_dir(self.dir())
            .env("HOME", self.dir())
            .env("SHELL", "/bin/sh")
            .env("OUTPOST_STATE_DIR", self.path("state"))
            .env("OUTPOST_TEST_DAEMON", self.dir())
            .env(owner.0, owner.1)
            .stdin(Stdio::null());
        command
    }

    /// Runs a mode to its end.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// `-serve` with a token file and further flags; it must succeed.
    pub fn serve(&self, flags: &[&str]) {
        let output = self.try_serve(flags);
        assert!(output.status.success(), "-serve: {output:?}; log: {}", self.log());
    }

    pub fn try_serve(&self, flags: &[&str]) -> Output {
        self.serve_command(TOKEN, flags).output().unwrap()
    }

    /// `-serve`, not run yet, with a file that has this token.
    pub fn serve_command(&self, token: &str, flags: &[&str]) -> Command {
        let file = self.path("token");
        std::fs::write(&file, format!("{token}\n")).unwrap();
        if let Some(uid) = self.uid {
            std::os::unix::fs::chown(&file, Some(uid), Some(uid)).unwrap();
        }
        let (socket, token) = (self.socket(), file);
        let mut arguments =
            vec!["-serve", "-socket", socket.to_str().unwrap(), "-token-file", token.to_str().unwrap()];
        arguments.extend(flags);
        self.command(&arguments)
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("remote-server.log")).unwrap_or_default()
    }

    pub fn connect(&self) -> RelayClient {
        RelayClient::connect(&self.socket())
    }

    /// The daemon's own view of itself, by its control socket.
    pub fn status(&self) -> Option<Status> {
        let sockets = std::fs::read_dir(self.path("state/relay")).ok()?;
        let sockets = sockets.filter_map(|entry| Some(entry.ok()?.path().join("control.sock")));
        sockets
            .into_iter()
            .find_map(|socket| crate::connect(&socket).and_then(Control::over).ok()?.call("status", &()).ok())
    }

    /// Kills one of the two and waits until another has taken its place.
    pub fn kill(&self, half: Half) {
        let pid = |status: &Status| match half {
            Half::Worker => status.worker_pid,
            Half::Keeper => status.keeper_pid,
        };
        let before = pid(&self.status().unwrap());
        let victim = crate::process(before.cast_signed()).unwrap();
        pidfd::signal(&victim, Signal::KILL).unwrap();
        assert!(wait_readable(&victim, TIMEOUT).unwrap());
        let begun = Instant::now();
        while self.status().is_none_or(|status| pid(&status) == before) {
            assert!(begun.elapsed() < TIMEOUT, "{half:?} was not replaced; log: {}", self.log());
            pause();
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // In order first, so that its cgroups go with it; in any case nothing stays.
        if let Some(status) = self.status() {
            let sockets = std::fs::read_dir(self.path("state/relay")).into_iter().flatten().flatten();
            for socket in sockets.map(|entry| entry.path().join("control.sock")) {
                let control = crate::connect(&socket).and_then(Control::over);
                let _gone = control.map(|mut control| control.call::<()>("stop", &()));
            }
            for pid in [status.worker_pid, status.keeper_pid] {
                let part = crate::process(pid.cast_signed());
                let _gone = part.map(|part| wait_readable(&part, TIMEOUT));
            }
        }
        kill_marked(&format!("OUTPOST_TEST_DAEMON={}", self.dir().display()));
    }
}

/// A client that sends bytes and reads lines, and nothing by itself.
pub struct RelayClient {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
    token: String,
    last_id: u64,
}

impl RelayClient {
    pub fn connect(socket: &Path) -> RelayClient {
        let writer = crate::connect(socket).unwrap_or_else(|error| panic!("{}: {error}", socket.display()));
        RelayClient::over(writer)
    }

    /// Over a connection that leads to a relay, directly or not.
    pub fn over(writer: UnixStream) -> RelayClient {
        writer.set_read_timeout(Some(TIMEOUT)).unwrap();
        writer.set_write_timeout(Some(TIMEOUT)).unwrap();
        let reader = BufReader::new(writer.try_clone().unwrap());
        RelayClient { reader, writer, token: TOKEN.into(), last_id: 0 }
    }

    pub fn with_token(mut self, token: &str) -> RelayClient {
        token.clone_into(&mut self.token);
        self
    }

    pub fn stream(&self) -> &UnixStream {
        &self.writer
    }

    /// Bytes as they are.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.writer.write_all(bytes.as_ref()).unwrap();
    }

    /// A request with the right token; `params` is JSON text, or empty for none. Returns its id.
    pub fn request(&mut self, method: &str, params: &str) -> u64 {
        self.try_request(method, params).unwrap()
    }

    /// The same, when the connection may break instead.
    pub fn try_request(&mut self, method: &str, params: &str) -> std::io::Result<u64> {
        self.last_id += 1;
        let params = if params.is_empty() { String::new() } else { format!(",\"params\":{params}") };
        let (id, auth) = (self.last_id, &self.token);
        let line = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"auth\":\"{auth}\"{params}}}\n"
        );
        self.writer.write_all(line.as_bytes())?;
        Ok(id)
    }

    /// The next line without its newline; empty at the end of the connection.
    pub fn line(&mut self) -> String {
        let mut line = Vec::new();
        self.reader.read_until(b'\n', &mut line).unwrap();
        String::from_utf8(line).unwrap().trim_end_matches('\n').to_owned()
    }

    /// The same, when the connection may break instead.
    pub fn try_line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        self.reader.read_until(b'\n', &mut line).ok()?;
        line.ends_with(b"\n").then(|| String::from_utf8(line).unwrap().trim_end().to_owned())
    }

    /// Sends a request; returns what its reply has behind the id, and the notifications that came before it.
    pub fn call_with_frames(&mut self, method: &str, params: &str) -> (String, Vec<String>) {
        let begin = format!("{{\"jsonrpc\":\"2.0\",\"id\":{},", self.request(method, params));
        let mut frames = Vec::new();
        loop {
            let line = self.line();
            assert!(!line.is_empty(), "{method}: the connection was closed");
            match line.strip_prefix(&begin) {
                Some(rest) => {
                    return (rest.trim_end_matches('}').to_owned() + &"}".repeat(closing(rest)), frames);
                }
                None => frames.push(line),
            }
        }
    }

    /// Sends a request; returns what its reply has behind the id: `"result":{…}` or `"error":{…}`.
    pub fn call(&mut self, method: &str, params: &str) -> String {
        self.call_with_frames(method, params).0
    }
}

/// The closing brackets of a reply without the one that closes the envelope.
fn closing(rest: &str) -> usize {
    rest.len() - rest.trim_end_matches('}').len() - 1
}
