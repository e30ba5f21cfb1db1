//! Framing: reads the request line and writes the response line, with the contract's size and time limits.

use crate::wire::{REQUEST_BYTES_MAX, Response};
use std::io;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout, timeout_at};

/// Deadline for the whole line, counted from the accept.
const LINE_TIMEOUT: Duration = Duration::from_secs(10);

/// The response is dropped if the client reads nothing for this long.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Time and bytes that a refused client may still send before it must read the response.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);
const DISCARD_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Buffer space reserved per read.
const CHUNK_BYTES: usize = 16 * 1024;

/// Result of reading the request line.
pub(crate) enum ReadOutcome {
    /// The line without its newline. Bytes after the newline are ignored.
    Line(Vec<u8>),
    /// Nothing or an empty line. The connection is closed without a response.
    Empty,
    /// The message for the error response.
    Rejected(&'static str),
}

pub(crate) async fn read(stream: &UnixStream) -> ReadOutcome {
    let mut line = Vec::new();
    let deadline = Instant::now() + LINE_TIMEOUT;
    loop {
        let searched = line.len();
        match timeout_at(deadline, read_some(stream, &mut line)).await {
            Err(_) => return ReadOutcome::Rejected("handshake deadline exceeded"),
            Ok(Err(_)) => return ReadOutcome::Empty,
            Ok(Ok(0)) if line.is_empty() => return ReadOutcome::Empty,
            Ok(Ok(0)) => return ReadOutcome::Rejected("read error: request missing trailing newline"),
            Ok(Ok(_)) => {}
        }
        let found = line.get(searched..).and_then(|new| new.iter().position(|byte| *byte == b'\n'));
        let length = found.map_or(line.len(), |at| searched + at);
        if length >= REQUEST_BYTES_MAX {
            return ReadOutcome::Rejected("read error: request exceeds maximum size");
        }
        if found.is_some() {
            line.truncate(length);
            return if line.is_empty() { ReadOutcome::Empty } else { ReadOutcome::Line(line) };
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

/// The response line with its newline.
pub(crate) fn encode(response: &Response) -> Vec<u8> {
    // Cannot fail: a response has only strings, numbers and booleans.
    let mut line = serde_json::to_vec(response).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Writes a response. Errors are ignored: the client has disconnected.
pub(crate) async fn write(stream: &UnixStream, response: &Response) {
    let _disconnected = write_bytes(stream, &encode(response)).await;
}

/// Writes all bytes. None if the client disconnected or reads nothing.
pub(crate) async fn write_bytes(stream: &UnixStream, bytes: &[u8]) -> Option<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match timeout(WRITE_TIMEOUT, stream.writable()).await {
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

/// Reads and drops the rest of a refused request. Closing a socket with unread data would reset the connection, and the
/// client would lose the response.
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
    let _expired = timeout(DISCARD_TIMEOUT, all).await;
}
