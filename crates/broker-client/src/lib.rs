//! The client of the broker's socket: one connection, one request line and one response line per request.
//!
//! `outpost mcp` and `outpost ask` use it. It does not link the broker's server.

#![forbid(unsafe_code)]

mod error;

pub use error::{Error, Result};

use outpost_broker_wire::{Action, OUTPUT_BYTES_MAX, REQUEST_BYTES_MAX, Request, Response, Status};
use outpost_sys::connect::{self, Trust};
use outpost_wire::{Line, Lines};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Longest response line: four full streams in base64, and room for the rest.
const RESPONSE_BYTES_MAX: usize = 6 * OUTPUT_BYTES_MAX;

/// Time limit for responses that need no human.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// A client of one broker.
pub struct BrokerClient {
    socket: PathBuf,
    trust: Trust,
}

impl BrokerClient {
    pub fn new(socket: PathBuf, trust: Trust) -> BrokerClient {
        BrokerClient { socket, trust }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Sends a request and waits for its response without a time limit. Dropping the future closes the connection, which
    /// withdraws an undecided request.
    pub async fn request(&self, request: &Request) -> Result<Response> {
        // Cannot fail: a request has only strings and booleans.
        let mut line = serde_json::to_vec(request).unwrap_or_default();
        line.push(b'\n');
        if line.len() > REQUEST_BYTES_MAX {
            return Err(Error::TooLong { bytes: line.len(), bytes_max: REQUEST_BYTES_MAX });
        }
        let mut stream = self.connect()?;
        let sent = stream.write_all(&line).await;
        // A refusing broker may close its receiving side early. Its response is still readable.
        match (self.read_response(stream).await, sent) {
            (Err(Error::NoResponse { .. }), Err(error)) => {
                Err(Error::NotSent { socket: self.socket.clone(), error })
            }
            (response, _) => response,
        }
    }

    /// Checks that a broker answers.
    pub async fn ping(&self) -> Result<Response> {
        self.request_with_timeout(&new_request(Action::Ping)).await
    }

    /// Whether the broker supports `cwd`. sudo-proxy silently ignores the field. Outpost validates it even in a ping, and
    /// refuses a relative path.
    pub async fn supports_cwd(&self) -> Result<bool> {
        let probe = Request { cwd: Some(".".to_owned()), ..new_request(Action::Ping) };
        let response = self.request_with_timeout(&probe).await?;
        let refused = response.status == Status::Error;
        Ok(refused && response.message.is_some_and(|message| message.contains("cwd")))
    }

    async fn request_with_timeout(&self, request: &Request) -> Result<Response> {
        let timed_out = || Error::TimedOut { socket: self.socket.clone(), seconds: PING_TIMEOUT.as_secs() };
        timeout(PING_TIMEOUT, self.request(request)).await.unwrap_or_else(|_| Err(timed_out()))
    }

    fn connect(&self) -> Result<UnixStream> {
        let fail = |error| match connect::untrusted(&error) {
            Some(reason) => Error::Untrusted(reason.clone()),
            None => Error::NoBroker { socket: self.socket.clone(), error },
        };
        outpost_wire::connect(&self.socket, self.trust).map_err(fail)
    }

    async fn read_response(&self, stream: UnixStream) -> Result<Response> {
        let no_response = |error| Error::NoResponse { socket: self.socket.clone(), error };
        let malformed = |why| Error::Malformed { socket: self.socket.clone(), why };
        let (reader, _writer) = outpost_wire::split(stream).map_err(no_response)?;
        match Lines::new(reader, RESPONSE_BYTES_MAX).next().await.map_err(no_response)? {
            Line::Whole(line) => serde_json::from_slice(line).map_err(|error| malformed(error.to_string())),
            Line::TooLong => Err(malformed(format!("it has {RESPONSE_BYTES_MAX} bytes or more"))),
            Line::Truncated(_) | Line::Eof => Err(no_response(io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

/// A privileged request with a fresh id and the current time.
pub fn new_request(action: Action) -> Request {
    Request {
        id: uuid::Uuid::new_v4().to_string(),
        time: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        action,
        privileged: true,
        ..Request::default()
    }
}

#[cfg(test)]
mod tests;
