//! The one line each way, with the contract's limits of size and time.

use crate::wire::{REQUEST_BYTES_MAX, Response};
use std::io;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout, timeout_at};

/// For the whole line, whatever the pacing.
const LINE_PATIENCE: Duration = Duration::from_secs(10);

/// A client that takes nothing of its answer for this long does not want it.
const WRITE_PATIENCE: Duration = Duration::from_secs(30);

/// How long, and how much, a client that was refused may go on writing until it reads.
const DISCARD_PATIENCE: Duration = Duration::from_secs(1);
const DISCARD_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Read at a time.
const CHUNK_BYTES: usize = 16 * 1024;

/// What a client has sent.
pub(crate) enum Got {
    /// Without its newline. What follows it is ignored.
    Line(Vec<u8>),
    /// Nothing, or an empty line: closed without a word.
    Silence,
    Unusable(&'static str),
}

pub(crate) async fn read(stream: &UnixStream) -> Got {
    let mut line = Vec::new();
    let deadline = Instant::now() + LINE_PATIENCE;
    loop {
        let searched = line.len();
        match timeout_at(deadline, read_some(stream, &mut line)).await {
            Err(_) => return Got::Unusable("handshake deadline exceeded"),
            Ok(Err(_)) => return Got::Silence,
            Ok(Ok(0)) if line.is_empty() => return Got::Silence,
            Ok(Ok(0)) => return Got::Unusable("read error: request missing trailing newline"),
            Ok(Ok(_)) => {}
        }
        let found = line.get(searched..).and_then(|new| new.iter().position(|byte| *byte == b'\n'));
        let length = found.map_or(line.len(), |at| searched + at);
        if length >= REQUEST_BYTES_MAX {
            return Got::Unusable("read error: request exceeds maximum size");
        }
        if found.is_some() {
            line.truncate(length);
            return if line.is_empty() { Got::Silence } else { Got::Line(line) };
        }
    }
}

pub(crate) async fn read_some(stream: &UnixStream, into: &mut Vec<u8>) -> io::Result<usize> {
    loop {
        stream.readable().await?;
        into.reserve(CHUNK_BYTES);
        match stream.try_read_buf(into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
    }
}

/// An answer and its newline.
pub(crate) fn encode(response: &Response) -> Vec<u8> {
    // Texts and numbers only: there is nothing in it that JSON does not have.
    let mut line = serde_json::to_vec(response).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Writes an answer. A client that has gone misses it.
pub(crate) async fn write(stream: &UnixStream, response: &Response) {
    let _gone = write_bytes(stream, &encode(response)).await;
}

/// Writes all of it; none for a client that has gone or takes nothing.
pub(crate) async fn write_bytes(stream: &UnixStream, bytes: &[u8]) -> Option<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match timeout(WRITE_PATIENCE, stream.writable()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => return None,
        }
        match stream.try_write(rest) {
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
    }
    Some(())
}

/// Lets a client finish writing, so that it can read why it was refused.
pub(crate) async fn discard(stream: &UnixStream) {
    let mut discarded = 0;
    let all = async {
        let mut chunk = Vec::new();
        while discarded < DISCARD_BYTES_MAX {
            chunk.clear();
            match read_some(stream, &mut chunk).await {
                Ok(0) | Err(_) => return,
                Ok(read) => discarded += read,
            }
        }
    };
    let _long_enough = timeout(DISCARD_PATIENCE, all).await;
}
