//! `files.extract_tar`: extracts a gzip tar into a directory that it wipes first.
//!
//! Neither the archive nor other processes on the host are trusted. Invariant: nothing outside of the destination is created,
//! opened or removed, also if another process swaps directories for symlinks during the extraction. Memory use does not
//! depend on the sizes that the archive claims.

mod archive;
mod destination;
mod entries;
mod error;
mod stream;
#[cfg(test)]
mod tests;

use archive::Archive;
use destination::Destination;
use entries::{Content, Entries};
use error::ExtractError;
use outpost_sys::{Errno, file};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;
use stream::{CHUNK_BYTES, GzipStream};

#[derive(Clone, Copy)]
struct Limits {
    /// Total size of all files.
    content_bytes: u64,
    /// Entries, plus implicitly created directories.
    entries: u64,
    /// Headers, padding and data after the end-of-archive marker. Enough for the maximum of entries with long names.
    overhead_bytes: u64,
}

const LIMITS: Limits = Limits { content_bytes: 512 << 20, entries: 1_000_000, overhead_bytes: 2 << 30 };
/// Size of an extension header's content: a GNU long name or PAX records.
const EXTENSION_BYTES_MAX: u64 = 1 << 20;

/// The result of an extraction. It is a success if `error` is `None`.
#[derive(Debug, PartialEq, Eq)]
pub struct Extracted {
    pub file_count: u64,
    pub error: Option<String>,
}

/// Blocking; never call on the async runtime.
///
/// The paths are the client's and must not be empty. `home` is the user's home directory, if known.
pub fn extract_tar(archive_path: &str, dest_dir: &str, home: Option<&Path>) -> Extracted {
    extract_within(archive_path, dest_dir, home, LIMITS)
}

fn extract_within(archive_path: &str, dest_dir: &str, home: Option<&Path>, limits: Limits) -> Extracted {
    let mut file_count = 0;
    let error = unpack_and_consume(archive_path, dest_dir, home, limits, &mut file_count).err();
    if error.as_ref().is_some_and(ExtractError::is_refusal) {
        file_count = 0;
    }
    Extracted { file_count, error: error.map(|error| error.to_string()) }
}

fn unpack_and_consume(
    archive_path: &str,
    dest_dir: &str,
    home: Option<&Path>,
    limits: Limits,
    file_count: &mut u64,
) -> Result<(), ExtractError> {
    // "rejected before the archive is opened, so the archive is not consumed"
    let path = destination::check(dest_dir, home)?;
    let archive = Archive::open(archive_path)?;
    let unpacked = GzipStream::open(&archive).map_err(ExtractError::stream).and_then(|stream| {
        let mut destination = Destination::recreate(path)?;
        unpack(stream, &mut destination, limits, file_count)
    });
    archive.consume();
    unpacked
}

fn unpack(
    stream: GzipStream<'_>,
    destination: &mut Destination,
    limits: Limits,
    file_count: &mut u64,
) -> Result<(), ExtractError> {
    let mut archive = tar::Archive::new(stream);
    let mut entries = Entries::new(&mut archive, limits.overhead_bytes).map_err(ExtractError::stream)?;
    let (mut content_left, mut entries_seen) = (limits.content_bytes, 0);
    let mut buffer = vec![0; CHUNK_BYTES];
    while let Some(mut entry) = entries.next().map_err(ExtractError::stream)? {
        entries_seen += 1;
        if entries_seen + destination.dirs_created > limits.entries {
            return Err(ExtractError::TooManyEntries);
        }
        let Some(path) = destination.resolve(&entry.name) else {
            return Err(ExtractError::UnsafePath(text(&entry.name)));
        };
        match entry.kind {
            b'5' => destination.create_dirs(&path)?,
            b'0' => {
                let file = destination.create_file(&path)?;
                let write_error = |errno| ExtractError::path("write", destination.absolute(&path), errno);
                copy(&mut entry.content, &file, &mut content_left, &mut buffer, write_error)?;
                *file_count += 1;
            }
            kind => {
                let (kind, name) = (char::from(kind), text(&entry.name));
                return Err(ExtractError::UnsupportedType { kind, name });
            }
        }
    }
    let overhead_left = entries.overhead_left;
    archive.into_inner().finish(overhead_left).map_err(ExtractError::stream)?;
    let synced = destination.create_file(Path::new(".synced"));
    synced.map_err(|error| ExtractError::Synced(Box::new(error)))?;
    Ok(())
}

/// Writes the content of an entry to `file`.
fn copy(
    content: &mut Content<'_, '_>,
    file: &OwnedFd,
    content_left: &mut u64,
    buffer: &mut [u8],
    write_error: impl Fn(Errno) -> ExtractError,
) -> Result<(), ExtractError> {
    let mut offset = 0;
    while offset < content.size() {
        let read = content.read(buffer).map_err(entries::read_error)?;
        if read == 0 {
            return Err(ExtractError::UnexpectedEof);
        }
        *content_left = content_left.checked_sub(read as u64).ok_or(ExtractError::TooLarge)?;
        file::write_all_at(file, buffer.get(..read).unwrap_or_default(), offset).map_err(&write_error)?;
        offset += read as u64;
    }
    Ok(())
}

/// Bytes of an archive as text for the reply. Each invalid byte becomes one replacement character.
fn text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    text
}
