//! `files.extract_tar`: a gzip tar unpacked into a directory that is wiped before.
//!
//! The archive is not trusted, nor is anybody who changes directories meanwhile: nothing is ever made, opened or removed
//! outside the destination. Memory does not depend on what the archive claims.

mod archive;
mod destination;
mod entries;
mod header;
mod lexical;
mod pax;
mod sparse;
mod stream;
#[cfg(test)]
mod tests;

use archive::Archive;
use destination::Destination;
use entries::{Entries, Entry};
use outpost_sys::{Errno, file};
use std::os::fd::OwnedFd;
use std::path::Path;
use stream::{PIECE_BYTES, Stream};

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
/// The content of a header that is about another one: a long name, PAX records, a map.
const SPECIAL_BYTES_MAX: usize = 1 << 20;

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
        unpack(Entries::new(stream, limits.overhead_bytes), &mut destination, limits, file_count)
    });
    archive.consume();
    unpacked
}

fn unpack(
    mut entries: Entries<'_>,
    destination: &mut Destination,
    limits: Limits,
    file_count: &mut u64,
) -> Result<(), Stop> {
    let (mut content_left, mut entries_seen) = (limits.content_bytes, 0);
    let mut buffer = vec![0; PIECE_BYTES];
    while let Some(entry) = entries.next().map_err(in_stream)? {
        entries_seen += 1;
        if entries_seen + destination.dirs_made > limits.entries {
            return Err(Stop::Failed("too many entries in archive".to_owned()));
        }
        let Some(names) = destination.resolve(&entry.name) else {
            return Err(Stop::Refused(format!("unsafe path in archive: {}", lexical::text(&entry.name))));
        };
        match entry.kind {
            b'5' => destination.make_dirs(&names)?,
            b'0' => {
                let file = destination.create_file(&names)?;
                let writing = |errno| failed("write", &destination.target(&names), errno);
                copy(&mut entries, &entry, &file, &mut content_left, &mut buffer, writing)?;
                *file_count += 1;
            }
            kind => {
                let (kind, name) = (char::from(kind), lexical::text(&entry.name));
                return Err(Stop::Refused(format!("unsupported tar entry type {kind}: {name}")));
            }
        }
    }
    entries.finish().map_err(in_stream)?;
    destination.create_file(&[b".synced"]).map_err(|text| format!("write .synced: {text}"))?;
    Ok(())
}

/// Writes the content of an entry. Holes of a sparse file stay holes, but count: whoever reads the file gets their bytes.
fn copy(
    entries: &mut Entries<'_>,
    entry: &Entry,
    file: &OwnedFd,
    content_left: &mut u64,
    buffer: &mut [u8],
    writing: impl Fn(Errno) -> String,
) -> Result<(), String> {
    let mut charge = |bytes: u64| {
        *content_left = content_left.checked_sub(bytes).ok_or(LIMIT_EXCEEDED)?;
        Ok::<_, String>(())
    };
    let mut offset = 0;
    for piece in &entry.pieces {
        charge(piece.offset.saturating_sub(offset))?;
        offset = piece.offset;
        let mut left = piece.bytes;
        while left > 0 {
            let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            let bytes = buffer.get_mut(..wanted).unwrap_or_default();
            let read = entries.read_content(bytes)?;
            if read == 0 {
                return Err("archive/tar: sparse file references non-existent data".to_owned());
            }
            charge(read as u64)?;
            file::write_all_at(file, bytes.get(..read).unwrap_or_default(), offset).map_err(&writing)?;
            offset += read as u64;
            left -= read as u64;
        }
    }
    charge(entry.size.saturating_sub(offset))?;
    if entry.is_sparse {
        file::set_size(file, entry.size).map_err(&writing)?;
        if entries.has_content() {
            return Err("archive/tar: sparse file contains unreferenced data".to_owned());
        }
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
