//! An approver's end of the approver socket.

use crate::wire::{Answer, LINE_BYTES_MAX, Request};
use crate::{Error, Result};
use outpost_sys::connect::{Trust, untrusted};
use outpost_wire::{Line, Lines, Outbox};
use std::collections::VecDeque;
use std::path::Path;

/// A connection to the daemon's approver socket.
pub struct Client {
    lines: Lines,
    outbox: Outbox,
    /// What came while an answer was waited for.
    events: VecDeque<Answer>,
}

impl Client {
    pub async fn connect(socket: &Path, trust: Trust) -> Result<Client> {
        let fail = |error: std::io::Error| match untrusted(&error) {
            Some(reason) => Error::Refused(format!("{reason}\nhint: {}", reason.hint())),
            None => Error::file("connect to", socket, error),
        };
        let stream = outpost_wire::connect(socket, trust).map_err(fail)?;
        let (reader, writer) = outpost_wire::split(stream).map_err(fail)?;
        let (outbox, write) = Outbox::new(writer);
        tokio::spawn(write);
        Ok(Client { lines: Lines::new(reader, LINE_BYTES_MAX), outbox, events: VecDeque::new() })
    }

    /// The answer to a request; a refusal is an error.
    pub async fn ask(&mut self, request: &Request) -> Result<Answer> {
        let text = serde_json::to_vec(request).map_err(|error| Error::Refused(error.to_string()))?;
        let write = |out: &mut Vec<u8>| {
            out.extend_from_slice(&text);
            out.push(b'\n');
        };
        self.outbox.send(write).await.map_err(|_| Error::Stopped)?;
        let mut so_far = Vec::new();
        loop {
            match self.receive().await? {
                event @ (Answer::Asked { .. } | Answer::Settled { .. } | Answer::Anew { .. }) => {
                    self.events.push_back(event);
                }
                Answer::Failed { why, secret_wanted: true } => return Err(Error::SecretWanted(why)),
                Answer::Failed { why, secret_wanted: false } => return Err(Error::Refused(why)),
                Answer::Questions { mut questions, more } => {
                    so_far.append(&mut questions);
                    if !more {
                        return Ok(Answer::Questions { questions: so_far, more });
                    }
                }
                answer => return Ok(answer),
            }
        }
    }

    /// The next event of one that watches. Safe to cancel.
    pub async fn event(&mut self) -> Result<Answer> {
        match self.events.pop_front() {
            Some(event) => Ok(event),
            None => self.receive().await,
        }
    }

    async fn receive(&mut self) -> Result<Answer> {
        match self.lines.next().await {
            Ok(Line::Whole(line)) => serde_json::from_slice(line).map_err(|error| {
                Error::Refused(format!("the daemon said what we do not understand: {error}"))
            }),
            Ok(Line::TooLong) => Err(Error::Refused("the daemon said more than fits into a line".into())),
            _ => Err(Error::Stopped),
        }
    }
}
