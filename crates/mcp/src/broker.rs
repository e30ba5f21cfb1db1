//! The broker as its client sees it: a connection, one line there, one line back.

use crate::error::{Error, Result};
use outpost_broker_wire::{Action, OUTPUT_BYTES_MAX, REQUEST_BYTES_MAX, Request, Response, Status};
use outpost_sys::connect::{self, Trust};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Four full streams in base64, and some.
const ANSWER_BYTES_MAX: usize = 6 * OUTPUT_BYTES_MAX;

/// For answers that no human is asked for.
const PING_PATIENCE: Duration = Duration::from_secs(5);

pub struct Broker {
    socket: PathBuf,
    trust: Trust,
}

impl Broker {
    pub fn new(socket: PathBuf, trust: Trust) -> Broker {
        Broker { socket, trust }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Asks, and waits as long as it takes. Dropped, it withdraws what no human has decided yet.
    pub async fn ask(&self, request: &Request) -> Result<Response> {
        let mut line = serde_json::to_vec(request).map_err(|error| Error::Arguments(error.to_string()))?;
        line.push(b'\n');
        // "Maximum request size: 1 MB"
        if line.len() > REQUEST_BYTES_MAX {
            return Err(Error::TooLong { bytes: line.len(), bytes_max: REQUEST_BYTES_MAX });
        }
        let mut stream = self.connect()?;
        let sent = stream.write_all(&line).await;
        // One that refuses may close before it has read everything; its answer is there all the same.
        match (self.answer(&mut stream).await, sent) {
            (Err(Error::NoAnswer { .. }), Err(error)) => {
                Err(Error::NotSent { socket: self.socket.clone(), error })
            }
            (answer, _) => answer,
        }
    }

    /// Whether somebody is there, and what it says about itself.
    pub(crate) async fn ping(&self) -> Result<Response> {
        self.ask_unattended(&request(Action::Ping)).await
    }

    /// Whether this broker runs commands where it is told to. The original does not, nor does it say so: it ignores what it
    /// does not know. Ours looks at the field in a ping, too, and refuses one that is not absolute.
    pub async fn knows_cwd(&self) -> Result<bool> {
        let probe = Request { cwd: Some(".".to_owned()), ..request(Action::Ping) };
        let answer = self.ask_unattended(&probe).await?;
        Ok(answer.status == Status::Error && answer.message.is_some_and(|message| message.contains("cwd")))
    }

    async fn ask_unattended(&self, request: &Request) -> Result<Response> {
        let silent = || Error::Silent { socket: self.socket.clone(), seconds: PING_PATIENCE.as_secs() };
        timeout(PING_PATIENCE, self.ask(request)).await.unwrap_or_else(|_| Err(silent()))
    }

    fn connect(&self) -> Result<UnixStream> {
        let fail = |error| match connect::untrusted(&error) {
            Some(reason) => Error::Untrusted(reason.clone()),
            None => Error::NoBroker { socket: self.socket.clone(), error },
        };
        outpost_wire::connect(&self.socket, self.trust).map_err(fail)
    }

    async fn answer(&self, stream: &mut UnixStream) -> Result<Response> {
        let no_answer = |error| Error::NoAnswer { socket: self.socket.clone(), error };
        let unreadable = |why| Error::Unreadable { socket: self.socket.clone(), why };
        let mut line = Vec::new();
        let mut searched = 0;
        let end = loop {
            let read = stream.read_buf(&mut line).await.map_err(no_answer)?;
            if read == 0 {
                return Err(no_answer(io::ErrorKind::UnexpectedEof.into()));
            }
            let new = line.get(searched..).unwrap_or_default();
            if let Some(at) = new.iter().position(|byte| *byte == b'\n') {
                break searched + at;
            }
            if line.len() > ANSWER_BYTES_MAX {
                return Err(unreadable(format!("it is longer than {ANSWER_BYTES_MAX} bytes")));
            }
            searched = line.len();
        };
        line.truncate(end);
        serde_json::from_slice(&line).map_err(|error| unreadable(error.to_string()))
    }
}

/// A request of now, under an id of its own.
pub fn request(action: Action) -> Request {
    Request {
        id: uuid::Uuid::new_v4().to_string(),
        time: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        action,
        privileged: true,
        ..Request::default()
    }
}
