//! Output of a command: streamed or collected for the reply, up to the cap of each stream.

use crate::decode;
use outpost_engine::{Batch, Error, Exit, Process, Stream};
use outpost_wire::{Closed, Outbox, base64};
use serde_json::Value;
use std::fmt;

pub(crate) struct Output {
    mode: OutputMode,
    cap: Option<usize>,
    streams: [Taken; 2],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OutputMode {
    /// For the reply.
    Buffered,
    Streamed,
    /// Streaming was requested, and the client has opted out of deltas.
    Dropped,
}

/// One stream.
#[derive(Default)]
struct Taken {
    kept: Vec<u8>,
    /// Bytes streamed or collected.
    counted: usize,
    bytes: u64,
    cap_reached: bool,
}

/// One stream in the reply.
pub(crate) struct Final {
    pub(crate) text: String,
    pub(crate) bytes: u64,
    pub(crate) truncated: bool,
}

/// Why streaming stopped.
#[derive(Debug)]
pub(crate) enum StreamError {
    Disconnected,
    Engine(Error),
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamError::Disconnected => f.write_str("the client has disconnected"),
            StreamError::Engine(error) => error.fmt(f),
        }
    }
}

impl From<Closed> for StreamError {
    fn from(_: Closed) -> StreamError {
        StreamError::Disconnected
    }
}

impl Output {
    /// `streamed` is `None` without streaming, else whether the client wants deltas.
    pub(crate) fn new(streamed: Option<bool>, cap: Option<usize>) -> Output {
        let mode = match streamed {
            None => OutputMode::Buffered,
            Some(true) => OutputMode::Streamed,
            Some(false) => OutputMode::Dropped,
        };
        Output { mode, cap, streams: [Taken::default(), Taken::default()] }
    }

    /// Consumes the output of the process until its exit.
    pub(crate) async fn stream(
        &mut self,
        process: &Process,
        outbox: &Outbox,
        name: Option<&str>,
    ) -> Result<Exit, StreamError> {
        let name = Value::from(name.unwrap_or_default()).to_string();
        let mut subscription = process.subscribe(0);
        let mut batch = Batch::default();
        loop {
            subscription.next(&mut batch).await.map_err(StreamError::Engine)?;
            match self.mode {
                OutputMode::Streamed => outbox.send(|out| self.append(out, &name, &batch)).await?,
                OutputMode::Buffered | OutputMode::Dropped => self.append(&mut Vec::new(), &name, &batch),
            }
            if let Some(ended) = batch.ended {
                return Ok(ended.exit);
            }
            // A reader that keeps up with a fast process must not monopolise the thread.
            tokio::task::yield_now().await;
        }
    }

    fn append(&mut self, out: &mut Vec<u8>, name: &str, batch: &Batch) {
        for (frame, bytes) in batch.frames() {
            let (label, taken) = match frame.stream {
                Stream::Stdout => ("stdout", &mut self.streams[0]),
                Stream::Stderr => ("stderr", &mut self.streams[1]),
            };
            let Some(part) = taken.take(bytes, self.cap) else { continue };
            match self.mode {
                OutputMode::Buffered => taken.kept.extend_from_slice(part),
                OutputMode::Dropped => {}
                OutputMode::Streamed => append_delta(out, name, label, part, taken.cap_reached),
            }
        }
    }

    /// The streams for the reply.
    pub(crate) fn taken(self) -> [Final; 2] {
        self.streams.map(|taken| {
            let truncated = taken.bytes > taken.counted as u64;
            Final { text: decode::from_output(taken.kept, truncated), bytes: taken.bytes, truncated }
        })
    }
}

impl Taken {
    /// The part below the cap; `None` when no delta is due. "capReached true exactly once per stream, when the
    /// cumulated bytes equal the cap".
    fn take<'a>(&mut self, bytes: &'a [u8], cap: Option<usize>) -> Option<&'a [u8]> {
        self.bytes += bytes.len() as u64;
        if self.cap_reached {
            return None;
        }
        let room = cap.map_or(usize::MAX, |cap| cap.saturating_sub(self.counted));
        let part = bytes.get(..room).unwrap_or(bytes);
        self.counted += part.len();
        self.cap_reached = cap == Some(self.counted);
        Some(part)
    }
}

fn append_delta(out: &mut Vec<u8>, name: &str, stream: &str, bytes: &[u8], cap_reached: bool) {
    out.extend_from_slice(br#"{"method":"command/exec/outputDelta","params":{"processId":"#);
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(br#","stream":""#);
    out.extend_from_slice(stream.as_bytes());
    out.extend_from_slice(br#"","deltaBase64":""#);
    base64::append(out, bytes);
    let rest: &[u8] = if cap_reached { br#"","capReached":true}}"# } else { br#"","capReached":false}}"# };
    out.extend_from_slice(rest);
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cap_reached_is_reported_once_when_the_cap_is_met_or_exceeded() {
        let mut taken = Taken::default();
        assert_eq!(taken.take(b"abc", Some(5)), Some(&b"abc"[..]));
        assert!(!taken.cap_reached);
        assert_eq!(taken.take(b"defg", Some(5)), Some(&b"de"[..]));
        assert!(taken.cap_reached);
        assert_eq!(taken.take(b"h", Some(5)), None);
        assert_eq!((taken.counted, taken.bytes), (5, 8));
        let mut none = Taken::default();
        assert_eq!(none.take(b"x", Some(0)), Some(&b""[..]));
        assert_eq!(none.take(b"y", Some(0)), None);
        let mut endless = Taken::default();
        assert_eq!(endless.take(b"xyz", None), Some(&b"xyz"[..]));
        assert!(!endless.cap_reached);
    }
}
