//! A server on pipes, ours or the original, and everything that it started: gone when we are done.

use crate::Result;
use crate::family::Family;
use outpost_sys::signal::Signal;
use outpost_sys::{epoll::wait_readable, pidfd};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// How long anything may take before the benchmark gives up.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The end of a stream that is looked at; a reply is shorter.
const TAIL_BYTES: usize = 4096;
/// In the environment of everything that a server starts.
const MARKER: &str = "OUTPOST_BENCH_SERVER";

/// Configuration that keeps the original on this host. Ours does not read it.
const CONFIG: &str =
    "check_for_update_on_startup = false\n[analytics]\nenabled = false\n[features]\nplugins = false\n";

/// A program that can be measured, with a home of its own.
pub(super) struct Contender {
    name: &'static str,
    program: PathBuf,
    home: TempDir,
}

impl Contender {
    pub(super) fn new(name: &'static str, program: &Path) -> Result<Contender> {
        // The original makes no helper below /tmp, and does without its sandbox then.
        let home = tempfile::Builder::new().prefix("outpost-bench-").tempdir_in("/var/tmp")?;
        std::fs::write(home.path().join("config.toml"), CONFIG)?;
        Ok(Contender { name, program: std::path::absolute(program)?, home })
    }

    pub(super) fn start(&self) -> Result<Server> {
        let mut child = Command::new(&self.program)
            .arg("app-server")
            .current_dir(self.home.path())
            .env("HOME", self.home.path())
            .env("CODEX_HOME", self.home.path())
            .env("OUTPOST_STATE_DIR", self.home.path().join("state"))
            .env("OUTPOST_LOG", "error")
            .env(MARKER, self.home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("{}: {error}", self.program.display()))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let family = Family::new(MARKER, &self.home.path().display().to_string());
        let stdin = stdin.ok_or("no input")?;
        let stdout = BufReader::with_capacity(256 * 1024, stdout.ok_or("no output")?);
        let mut server = Server { name: self.name, child, stdin: Some(stdin), stdout, family, last_id: 0 };
        server.call("initialize", r#"{"clientInfo":{"name":"bench","version":"1"}}"#)?;
        Ok(server)
    }
}

pub(super) struct Server {
    name: &'static str,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    pub(super) family: Family,
    last_id: u64,
}

impl Server {
    /// Sends a request; returns its id.
    pub(super) fn send(&mut self, method: &str, params: &str) -> Result<u64> {
        self.last_id += 1;
        let id = self.last_id;
        let line = format!("{{\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}\n");
        self.stdin.as_mut().ok_or("the input is closed")?.write_all(line.as_bytes())?;
        Ok(id)
    }

    /// The next reply, which must be a result; notifications before it are dropped.
    pub(super) fn reply(&mut self) -> Result<String> {
        loop {
            if self.stdout.buffer().is_empty() && !wait_readable(self.stdout.get_ref(), TIMEOUT)? {
                return Err(format!("{} does not answer", self.name).into());
            }
            let mut line = String::new();
            if self.stdout.read_line(&mut line)? == 0 {
                return Err(format!("{} has ended", self.name).into());
            }
            if line.starts_with("{\"id\":") {
                return Ok(line);
            }
            if line.starts_with("{\"error\":") {
                return Err(format!("{}: {line}", self.name).into());
            }
        }
    }

    pub(super) fn call(&mut self, method: &str, params: &str) -> Result<String> {
        self.send(method, params)?;
        self.reply()
    }

    /// A successful reply to `command/exec`.
    pub(super) fn succeeded(&mut self) -> Result<()> {
        let reply = self.reply()?;
        match reply.contains("\"exitCode\":0,") {
            true => Ok(()),
            false => Err(format!("{}: {reply}", self.name).into()),
        }
    }

    /// Reads until the reply and counts. It looks at no more than the end of each read, or it would be the consumer that
    /// is measured.
    pub(super) fn drain(&mut self) -> Result<u64> {
        let mut buffer = vec![0; 256 * 1024];
        let (mut received, mut tail) = (0, Vec::new());
        loop {
            let read = self.stdout.read(&mut buffer)?;
            if read == 0 {
                return Err(format!("{} has ended", self.name).into());
            }
            received += read as u64;
            tail.extend_from_slice(buffer.get(read.saturating_sub(TAIL_BYTES)..read).unwrap_or_default());
            tail.drain(..tail.len().saturating_sub(TAIL_BYTES));
            if tail.ends_with(b"}\n") && tail.windows(11).any(|window| window == b"\"exitCode\":") {
                return Ok(received);
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // In order if that works; in any case nothing stays.
        self.stdin = None;
        let ended = outpost_testkit::process(self.child.id().cast_signed())
            .map(|child| wait_readable(&child, Duration::from_secs(5)));
        if !matches!(ended, Ok(Ok(true))) {
            let _gone = self.child.kill();
        }
        let _reaped = self.child.wait();
        for process in
            self.family.processes().into_iter().filter_map(|pid| outpost_testkit::process(pid).ok())
        {
            let _gone = pidfd::signal(&process, Signal::KILL);
        }
    }
}
