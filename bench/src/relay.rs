//! The relay face as a client sees it: streams, replay, input, pings, starts, each in turn with a floor of our own.

mod pings;
mod starts;
mod streams;

pub(crate) use pings::echo;

use crate::Result;
use crate::budget::Table;
use outpost_control::client::Client as Control;
use outpost_control::wire::Status;
use outpost_sys::procfs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const TOKEN: &str = "bench";

/// How long anything may take before the benchmark gives up.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The end of a stream that is looked at.
const TAIL_BYTES: usize = 256;

pub(crate) fn measure(table: &mut Table, binary: &Path, quick: bool) -> Result<()> {
    streams::measure(table, binary, quick)?;
    pings::measure(table, binary, quick)?;
    starts::measure(table, binary, quick)
}

/// A relay in a directory of its own.
struct Relay {
    binary: PathBuf,
    dir: TempDir,
}

impl Relay {
    /// Started, and it answers.
    fn start(binary: &Path) -> Result<Relay> {
        let relay = Relay { binary: binary.to_owned(), dir: tempfile::tempdir()? };
        relay.serve()?;
        // The first process waits for the login shell; what is measured must not.
        let mut client = relay.connect()?;
        client.call("process.spawn", r#"{"id":"first","command":"/bin/true"}"#)?;
        Ok(relay)
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("rpc.sock")
    }

    fn command(&self, mode: &str) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .args(["relay", mode, "-socket"])
            .arg(self.socket())
            .env("SHELL", "/bin/sh")
            .env("OUTPOST_STATE_DIR", self.dir.path().join("state"))
            .env("OUTPOST_LOG", "error")
            .env("CLAUDE_RPC_TOKEN", TOKEN)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command
    }

    fn serve(&self) -> Result<()> {
        let token = self.dir.path().join("token");
        std::fs::write(&token, TOKEN)?;
        let started = self.command("-serve").arg("-token-file").arg(&token).status()?;
        if started.success() { Ok(()) } else { Err("the relay does not start".into()) }
    }

    fn stop(&self) -> Result<()> {
        self.command("-stop").status()?;
        Ok(())
    }

    fn connect(&self) -> Result<Client> {
        let writer = outpost_testkit::connect(self.socket())?;
        writer.set_read_timeout(Some(TIMEOUT))?;
        Ok(Client { reader: BufReader::with_capacity(256 * 1024, writer.try_clone()?), writer, last_id: 0 })
    }

    fn status(&self) -> Result<Status> {
        let dirs = std::fs::read_dir(self.dir.path().join("state/relay"))?;
        let dir = dirs.into_iter().next().ok_or("the relay has no state")??;
        Ok(Control::connect(&dir.path().join("control.sock"))?.call("status", &())?)
    }

    fn worker(&self) -> Result<i32> {
        Ok(i32::try_from(self.status()?.worker_pid)?)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _gone = self.stop();
    }
}

struct Client {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
    last_id: u64,
}

impl Client {
    fn request(&mut self, method: &str, params: &str) -> String {
        self.last_id += 1;
        let id = self.last_id;
        format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params},\"auth\":\"{TOKEN}\"}}\n"
        )
    }

    fn send(&mut self, method: &str, params: &str) -> Result<()> {
        let request = self.request(method, params);
        Ok(self.writer.write_all(request.as_bytes())?)
    }

    /// The reply to a request; frames before it are dropped.
    fn call(&mut self, method: &str, params: &str) -> Result<String> {
        self.send(method, params)?;
        loop {
            let line = self.line()?;
            if line.starts_with("{\"jsonrpc\"") {
                return Ok(line);
            }
        }
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line)? {
            0 => Err("the relay closed the connection".into()),
            _ => Ok(line),
        }
    }

    /// Reads until the exit frame, and counts. It inspects only the end of each read, so that the consumer is not the
    /// bottleneck.
    fn drain(self) -> Result<u64> {
        let mut stream = self.reader.into_inner();
        let mut buffer = vec![0; 256 * 1024];
        let mut received = 0;
        let mut tail: Vec<u8> = Vec::new();
        loop {
            let read = stream.read(&mut buffer)?;
            if read == 0 {
                return Err("the relay closed the connection".into());
            }
            received += read as u64;
            // An exit frame, and the reply that may follow it, are shorter than this.
            tail.extend_from_slice(buffer.get(read.saturating_sub(TAIL_BYTES)..read).unwrap_or_default());
            tail.drain(..tail.len().saturating_sub(TAIL_BYTES));
            if tail.ends_with(b"}\n") && tail.windows(11).any(|window| window == b"\"exitCode\":") {
                return Ok(received);
            }
        }
    }
}

fn cpu_s(pid: i32) -> Result<f64> {
    Ok(procfs::stat(pid).ok_or("the worker is gone")?.cpu_ticks as f64 / crate::daemon::TICKS)
}

/// Runs a closure and measures its duration.
fn timed<T>(what: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
    let begun = Instant::now();
    let done = what()?;
    Ok((done, begun.elapsed()))
}
