//! A daemon with the sessions face, and a client of it that costs little: one connection, bytes as they are.

use super::agent::AGENT_NAME;
use crate::Result;
use outpost_sys::pidfd;
use outpost_sys::signal::Signal;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(60);

pub(super) struct Server {
    keeper: Child,
    pub(super) port: u16,
    pub(super) project: String,
    /// Where the agent is.
    pub(super) bin: PathBuf,
    _dir: tempfile::TempDir,
}

impl Server {
    pub(super) fn start(binary: &Path) -> Result<Server> {
        let dir = tempfile::tempdir()?;
        let (bin, project) = (dir.path().join("bin"), dir.path().join("project"));
        std::fs::create_dir(&bin)?;
        std::fs::create_dir(&project)?;
        std::os::unix::fs::symlink(std::env::current_exe()?, bin.join(AGENT_NAME))?;
        std::os::unix::fs::symlink(binary, bin.join("codecast-daemon"))?;
        let mut keeper = Command::new(bin.join("codecast-daemon"))
            .env("HOME", dir.path())
            .env("XDG_STATE_HOME", dir.path())
            .env("XDG_CONFIG_HOME", dir.path())
            .env("PATH", &bin)
            .env("DAEMON_PORT", "0")
            .env("OUTPOST_LOG", "error")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let out = keeper.stdout.take().ok_or("no output")?;
        let mut lines = BufReader::new(out).lines();
        let port = lines.find_map(|line| line.ok()?.strip_prefix("DAEMON_PORT=")?.parse().ok());
        let port = port.ok_or("the daemon printed no port")?;
        Ok(Server { keeper, port, project: project.display().to_string(), bin, _dir: dir })
    }

    pub(super) fn worker(&self) -> Result<i32> {
        let health = Client::connect(self.port)?.call("health.check", "{}")?;
        let pid = health.pointer("/result/pid").and_then(Value::as_i64).ok_or("no pid")?;
        Ok(i32::try_from(pid)?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = i32::try_from(self.keeper.id()).unwrap_or_default();
        if let Ok(pidfd) = outpost_testkit::process(pid) {
            let _gone = pidfd::signal(&pidfd, Signal::TERM);
        }
        let _ended = self.keeper.wait();
    }
}

pub(super) struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    pub(super) fn connect(port: u16) -> Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(Client { stream: BufReader::with_capacity(256 * 1024, stream) })
    }

    fn post(&mut self, method: &str, params: &str) -> Result<()> {
        let body = format!("{{\"method\":\"{method}\",\"params\":{params}}}");
        let request = format!(
            "POST /rpc HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        Ok(self.stream.get_mut().write_all(request.as_bytes())?)
    }

    /// Reads the head of an answer and returns the length of its body, if that is known.
    fn head(&mut self) -> Result<Option<usize>> {
        let mut length = None;
        let mut line = String::new();
        loop {
            line.clear();
            if self.stream.read_line(&mut line)? == 0 {
                return Err("the daemon hung up".into());
            }
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = Some(value.trim().parse()?);
            }
            if line == "\r\n" {
                return Ok(length);
            }
        }
    }

    pub(super) fn call(&mut self, method: &str, params: &str) -> Result<Value> {
        self.post(method, params)?;
        let length = self.head()?.ok_or("an answer without a length")?;
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok(serde_json::from_slice(&body)?)
    }

    pub(super) fn create(&mut self, project: &str) -> Result<String> {
        let made = self.call("session.create", &format!("{{\"path\":\"{project}\"}}"))?;
        let id = made.pointer("/result/sessionId").and_then(Value::as_str);
        Ok(id.ok_or_else(|| made.to_string())?.to_owned())
    }

    pub(super) fn destroy(&mut self, session: &str) -> Result<()> {
        self.call("session.destroy", &format!("{{\"sessionId\":\"{session}\"}}")).map(|_| ())
    }

    /// Sends a message; its answer is to be read.
    pub(super) fn begin(&mut self, session: &str, message: &str) -> Result<()> {
        self.post("session.send", &format!("{{\"sessionId\":\"{session}\",\"message\":\"{message}\"}}"))
    }

    /// Sends a message and reads everything that answers it. How many events that were.
    pub(super) fn send(&mut self, session: &str, message: &str) -> Result<usize> {
        self.begin(session, message)?;
        self.read_events()
    }

    pub(super) fn read_events(&mut self) -> Result<usize> {
        self.head()?;
        let mut count = 0;
        let mut line = Vec::new();
        loop {
            line.clear();
            if self.stream.read_until(b'\n', &mut line)? == 0 {
                return Err(format!("the stream broke off after {count} events").into());
            }
            if line.starts_with(b"data: [DONE]") {
                return Ok(count);
            }
            count += usize::from(line.starts_with(b"data: "));
        }
    }

    /// How long until the first event of the CLI's.
    pub(super) fn first_event(&mut self, session: &str, message: &str) -> Result<Duration> {
        let begun = Instant::now();
        self.begin(session, message)?;
        self.head()?;
        let mut line = String::new();
        loop {
            line.clear();
            if self.stream.read_line(&mut line)? == 0 {
                return Err("the stream broke off".into());
            }
            if line.contains("\"seq\":") {
                break;
            }
        }
        let taken = begun.elapsed();
        while !line.contains("[DONE]") {
            line.clear();
            self.stream.read_line(&mut line)?;
        }
        Ok(taken)
    }

    pub(super) fn send_and_leave(mut self, session: &str, message: &str) -> Result<()> {
        self.begin(session, message)?;
        // It has been taken in when the answer begins.
        self.head()?;
        Ok(())
    }

    /// Until a session has answered and has so many unread events.
    pub(super) fn wait_idle(&mut self, session: &str, unread_min: u64) -> Result<()> {
        let begun = Instant::now();
        loop {
            let stats = self.call("session.queue_stats", &format!("{{\"sessionId\":\"{session}\"}}"))?;
            let unread = stats.pointer("/result/responsePending").and_then(Value::as_u64).unwrap_or_default();
            // A few may have been handed over before the client was known to be gone.
            if unread + 5000 >= unread_min {
                return Ok(());
            }
            if begun.elapsed() > TIMEOUT {
                return Err(format!("only {unread} events are unread").into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
