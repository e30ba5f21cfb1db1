//! `files.extract_tar`: a gzip tar unpacked into a directory that is wiped before.
//!
//! The archive is not trusted, nor is anybody who changes directories meanwhile: nothing is ever made, opened or removed
//! outside the destination. Memory does not depend on what the archive claims.

mod archive;
mod destination;
mod entries;
mod stream;
#[cfg(test)]
mod tests;

use archive::Archive;
use destination::Destination;
use entries::{Content, Entries};
use outpost_sys::{Errno, file};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;
use stream::{PIECE_BYTES, Stream, UNEXPECTED_EOF};

/// What an archive may cost.
#[derive(Clone, Copy)]
struct Limits {
    /// All files together.
    content_bytes: u64,
    /// Entries, and directories made for them.
    entries: u64,
    /// Headers, padding and what follows the end mark: enough for the entries, each with a long name and padded.
    overhead_bytes: u64,
}

const LIMITS: Limits = Limits { content_bytes: 512 << 20, entries: 1_000_000, overhead_bytes: 2 << 30 };
const LIMIT_EXCEEDED: &str = "extraction size limit exceeded";
/// The content of a header that is about another one: a long name, PAX records.
const SPECIAL_BYTES_MAX: u64 = 1 << 20;

/// What came of it: success when there is no error.
#[derive(Debug, PartialEq, Eq)]
pub struct Extracted {
    pub file_count: u64,
    pub error: Option<String>,
}

/// Why it ended before its end.
enum Stop {
    /// The archive holds what is never unpacked: no file counts, whatever was written before.
    Refused(String),
    Failed(String),
}

impl From<String> for Stop {
    fn from(text: String) -> Stop {
        Stop::Failed(text)
    }
}

/// Both paths as the client sent them, neither empty. `home` is the user's home directory, if known.
///
/// Waits for the disk, for as long as the archive takes: not for a thread that serves others.
pub fn extract_tar(archive_path: &str, dest_dir: &str, home: Option<&Path>) -> Extracted {
    extract_within(archive_path, dest_dir, home, LIMITS)
}

fn extract_within(archive_path: &str, dest_dir: &str, home: Option<&Path>, limits: Limits) -> Extracted {
    let mut file_count = 0;
    let error = match unpack_and_consume(archive_path, dest_dir, home, limits, &mut file_count) {
        Ok(()) => None,
        Err(Stop::Failed(text)) => Some(text),
        Err(Stop::Refused(text)) => {
            file_count = 0;
            Some(text)
        }
    };
    Extracted { file_count, error }
}

fn unpack_and_consume(
    archive_path: &str,
    dest_dir: &str,
    home: Option<&Path>,
    limits: Limits,
    file_count: &mut u64,
) -> Result<(), Stop> {
    // "rejected before the archive is opened, so the archive is not consumed"
    let path = destination::check(dest_dir, home)?;
    let archive = Archive::open(archive_path)?;
    let unpacked = Stream::open(&archive).map_err(in_stream).and_then(|stream| {
        let mut destination = Destination::renew(path)?;
        unpack(stream, &mut destination, limits, file_count)
    });
    archive.consume();
    unpacked
}

fn unpack(
    stream: Stream<'_>,
    destination: &mut Destination,
    limits: Limits,
    file_count: &mut u64,
) -> Result<(), Stop> {
    let mut archive = tar::Archive::new(stream);
    let mut entries = Entries::new(&mut archive, limits.overhead_bytes).map_err(in_stream)?;
    let (mut content_left, mut entries_seen) = (limits.content_bytes, 0);
    let mut buffer = vec![0; PIECE_BYTES];
    while let Some(mut entry) = entries.next().map_err(in_stream)? {
        entries_seen += 1;
        if entries_seen + destination.dirs_made > limits.entries {
            return Err(Stop::Failed("too many entries in archive".to_owned()));
        }
        let Some(place) = destination.resolve(&entry.name) else {
            return Err(Stop::Refused(format!("unsafe path in archive: {}", text(&entry.name))));
        };
        match entry.kind {
            b'5' => destination.make_dirs(&place)?,
            b'0' => {
                let file = destination.create_file(&place)?;
                let writing = |errno| failed("write", &destination.target(&place), errno);
                copy(&mut entry.content, &file, &mut content_left, &mut buffer, writing)?;
                *file_count += 1;
            }
            kind => {
                let (kind, name) = (char::from(kind), text(&entry.name));
                return Err(Stop::Refused(format!("unsupported tar entry type {kind}: {name}")));
            }
        }
    }
    let overhead_left = entries.overhead_left;
    archive.into_inner().finish(overhead_left).map_err(in_stream)?;
    destination.create_file(Path::new(".synced")).map_err(|text| format!("write .synced: {text}"))?;
    Ok(())
}

/// Writes the content of an entry.
fn copy(
    content: &mut Content<'_, '_>,
    file: &OwnedFd,
    content_left: &mut u64,
    buffer: &mut [u8],
    writing: impl Fn(Errno) -> String,
) -> Result<(), String> {
    let mut offset = 0;
    while offset < content.size() {
        let read = content.read(buffer).map_err(entries::text)?;
        if read == 0 {
            return Err(UNEXPECTED_EOF.to_owned());
        }
        *content_left = content_left.checked_sub(read as u64).ok_or(LIMIT_EXCEEDED)?;
        file::write_all_at(file, buffer.get(..read).unwrap_or_default(), offset).map_err(&writing)?;
        offset += read as u64;
    }
    Ok(())
}

/// An error of the stream itself, between two entries.
fn in_stream(text: String) -> Stop {
    Stop::Failed(format!("gzip: {text}"))
}

/// A call on a path that failed, in the words of the original: `open /x: permission denied`.
fn failed(call: &str, path: &str, errno: Errno) -> String {
    format!("{call} {path}: {}", crate::go::errno_text(errno))
}

/// Bytes of an archive as text on the wire: each byte that is no text becomes one replacement character.
fn text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    text
}
