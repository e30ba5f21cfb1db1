//! Reads lines with a length limit from a connection.

use crate::socket::ReadHalf;
use memchr::memchr;

/// How much is read at a time.
const CHUNK_BYTES: usize = 16 * 1024;
const CHUNK_BYTES_MAX: usize = 256 * 1024;
/// A larger buffer is freed once it is empty.
const KEPT_BYTES: usize = 64 * 1024;

/// The next item on a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// Without its newline.
    Whole(&'a [u8]),
    /// The limit was reached before a newline. Nothing more can be read.
    TooLong,
    /// EOF in the middle of a line.
    Truncated(&'a [u8]),
    Eof,
}

/// Splits a peer's bytes into lines of less than `limit` bytes.
pub struct Lines {
    reader: ReadHalf,
    buffer: Vec<u8>,
    /// Bytes of the buffer that belong to returned lines.
    taken: usize,
    /// Bytes of the buffer that contain no newline.
    searched: usize,
    limit: usize,
}

impl Lines {
    pub fn new(reader: ReadHalf, limit: usize) -> Lines {
        Lines { reader, buffer: Vec::new(), taken: 0, searched: 0, limit }
    }

    /// Whether the next line is buffered, so that `next` does not wait.
    pub fn has_line(&self) -> bool {
        memchr(b'\n', self.buffer.get(self.searched..).unwrap_or_default()).is_some()
    }

    /// The next line. Cancel-safe: bytes that were read are kept.
    pub async fn next(&mut self) -> std::io::Result<Line<'_>> {
        loop {
            if let Some(at) = memchr(b'\n', self.buffer.get(self.searched..).unwrap_or_default()) {
                let (begin, end) = (self.taken, self.searched + at);
                self.taken = end + 1;
                self.searched = self.taken;
                let line = self.buffer.get(begin..end).unwrap_or_default();
                return Ok(if line.len() < self.limit { Line::Whole(line) } else { Line::TooLong });
            }
            // Only now, so that lines that arrived together are moved once.
            self.buffer.drain(..self.taken);
            self.taken = 0;
            self.searched = self.buffer.len();
            if self.buffer.len() >= self.limit {
                return Ok(Line::TooLong);
            }
            if self.read_more().await? == 0 {
                self.taken = self.buffer.len();
                self.searched = self.taken;
                return Ok(if self.buffer.is_empty() { Line::Eof } else { Line::Truncated(&self.buffer) });
            }
        }
    }

    /// Reads available bytes. Frees a large buffer only before it has to wait, so a stream of long lines
    /// keeps it.
    async fn read_more(&mut self) -> std::io::Result<usize> {
        // A long line is read in growing pieces.
        self.buffer.reserve(self.buffer.len().clamp(CHUNK_BYTES, CHUNK_BYTES_MAX));
        if self.buffer.is_empty() && self.buffer.capacity() > KEPT_BYTES {
            tokio::select! {
                biased;
                read = self.reader.read(&mut self.buffer) => return read,
                () = std::future::ready(()) => {}
            }
            self.buffer = Vec::with_capacity(CHUNK_BYTES);
        }
        self.reader.read(&mut self.buffer).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixStream;

    async fn all(input: &[u8], limit: usize) -> Vec<String> {
        let (mut peer, ours) = UnixStream::pair().unwrap();
        let input = input.to_vec();
        // The peer may be closed before it has written everything.
        tokio::spawn(async move { peer.write_all(&input).await });
        let mut lines = Lines::new(crate::split(ours).unwrap().0, limit);
        let mut seen = Vec::new();
        loop {
            let line = lines.next().await.unwrap();
            let (text, last) = match line {
                Line::Whole(bytes) => (String::from_utf8_lossy(bytes).into_owned(), false),
                Line::Truncated(bytes) => (format!("cut {}", String::from_utf8_lossy(bytes)), true),
                Line::TooLong => ("too long".to_owned(), true),
                Line::Eof => ("end".to_owned(), true),
            };
            seen.push(text);
            if last {
                return seen;
            }
        }
    }

    #[tokio::test]
    async fn lines_are_whole_and_a_truncated_one_is_reported() {
        assert_eq!(all(b"a\n\nbc\n", 10).await, ["a", "", "bc", "end"]);
        assert_eq!(all(b"a\nb", 10).await, ["a", "cut b"]);
        assert_eq!(all(b"", 10).await, ["end"]);
    }

    #[tokio::test]
    async fn the_limit_counts_the_line_without_its_newline() {
        assert_eq!(all(b"123456789\n", 10).await, ["123456789", "end"]);
        assert_eq!(all(b"1234567890\n", 10).await, ["too long"]);
        assert_eq!(all(&[b'x'; 100_000], 10).await, ["too long"]);
    }
}
