//! Clients of the control socket: a blocking one for simple commands and tests, and an async one for commands that also
//! wait for input and signals.

use crate::wire::{Failure, LINE_BYTES_MAX, Message};
use outpost_sys::connect::{self, Trust};
use outpost_wire::{Line, Lines, Outbox};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

#[derive(Debug)]
pub enum CallError {
    /// The daemon replied with a failure.
    Refused(Failure),
    /// The connection failed, or could not be made.
    Lost(io::Error),
}

impl CallError {
    /// Whether the daemon or its worker is stopping or gone, so that a retry may reach a successor. False for a daemon
    /// that does not reply in time.
    pub fn is_gone(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof};
        match self {
            CallError::Refused(failure) => failure.is_stopping(),
            CallError::Lost(error) => matches!(
                error.kind(),
                NotFound | ConnectionRefused | ConnectionReset | BrokenPipe | UnexpectedEof
            ),
        }
    }
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CallError::Refused(failure) => f.write_str(&failure.message),
            CallError::Lost(error) => write!(f, "the connection to the daemon was lost: {error}"),
        }
    }
}

impl std::error::Error for CallError {}

impl From<io::Error> for CallError {
    fn from(error: io::Error) -> CallError {
        CallError::Lost(error)
    }
}

/// A blocking connection to the daemon.
pub struct Client {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
    next_id: u64,
}

impl Client {
    /// Connects to a daemon of this user or of root. A socket of another user is refused.
    pub fn connect(socket: &Path) -> io::Result<Client> {
        Client::over(connect::connect(socket, Trust::Own)?)
    }

    pub fn over(writer: UnixStream) -> io::Result<Client> {
        Ok(Client { reader: BufReader::with_capacity(64 * 1024, writer.try_clone()?), writer, next_id: 1 })
    }

    /// How long to wait for a message; `None` waits without limit.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.writer.set_read_timeout(timeout)
    }

    /// Sends a request without waiting; returns its id.
    pub fn send(&mut self, method: &str, params: &impl Serialize) -> io::Result<u64> {
        let id = self.next_id;
        self.next_id += 1;
        self.writer.write_all(&request(id, method, params)?)?;
        Ok(id)
    }

    /// The next message of any kind.
    pub fn receive(&mut self) -> io::Result<Message> {
        let mut line = Vec::new();
        if self.reader.read_until(b'\n', &mut line)? == 0 || !line.ends_with(b"\n") {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_slice(&line)?)
    }

    /// Calls a method and waits for its reply. Not for an attached connection, because it discards output messages.
    pub fn call<T: DeserializeOwned>(
        &mut self,
        method: &str,
        params: &impl Serialize,
    ) -> Result<T, CallError> {
        let id = self.send(method, params)?;
        loop {
            let message = self.receive()?;
            if message.id != Some(id) {
                continue;
            }
            return match message.error {
                Some(failure) => Err(CallError::Refused(failure)),
                None => {
                    Ok(serde_json::from_value(message.result.unwrap_or_default()).map_err(io::Error::from)?)
                }
            };
        }
    }
}

fn request(id: u64, method: &str, params: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(&serde_json::json!({"id": id, "method": method, "params": params}))?;
    line.push(b'\n');
    Ok(line)
}

/// An async connection to the daemon.
pub struct AsyncClient {
    lines: Lines,
    outbox: Outbox,
    next_id: u64,
}

impl AsyncClient {
    pub async fn connect(socket: &Path) -> io::Result<AsyncClient> {
        let (reader, writer) = outpost_wire::split(outpost_wire::connect(socket, Trust::Own)?)?;
        let (outbox, writing) = Outbox::new(writer);
        tokio::spawn(writing);
        Ok(AsyncClient { lines: Lines::new(reader, LINE_BYTES_MAX), outbox, next_id: 1 })
    }

    /// Sends a request without waiting for its reply; returns its id.
    pub async fn send(&mut self, method: &str, params: &impl Serialize) -> io::Result<u64> {
        let id = self.next_id;
        self.next_id += 1;
        let line = request(id, method, params)?;
        let sent = self.outbox.send(|out| out.extend_from_slice(&line)).await;
        sent.map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(id)
    }

    /// The next message of any kind. Safe to cancel.
    pub async fn receive(&mut self) -> io::Result<Message> {
        match self.lines.next().await? {
            Line::Whole(line) => Ok(serde_json::from_slice(line)?),
            Line::TooLong | Line::Truncated(_) | Line::Eof => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl Drop for AsyncClient {
    fn drop(&mut self) {
        self.outbox.close();
    }
}
