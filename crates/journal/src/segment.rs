//! Segments: the files `out.N` and `err.N`, each with a fixed range of a stream's bytes.

use crate::record::Stream;
use crate::{Error, Result};
use outpost_sys::Errno;
use outpost_sys::file::{self, Open};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The size of a full segment.
pub const SEGMENT_BYTES: u64 = 4 * 1024 * 1024;

/// The number of the segment that contains the byte at `offset`.
pub(crate) fn segment_of(offset: u64) -> u64 {
    offset / SEGMENT_BYTES
}

/// The offset of a byte in its segment.
pub(crate) fn offset_in_segment(offset: u64) -> u64 {
    offset % SEGMENT_BYTES
}

pub(crate) fn path(dir: &Path, stream: Stream, number: u64) -> PathBuf {
    let prefix = match stream {
        Stream::Stdout => "out",
        Stream::Stderr => "err",
    };
    dir.join(format!("{prefix}.{number}"))
}

/// Parses the file name of a segment.
pub(crate) fn parse_name(name: &str) -> Option<(Stream, u64)> {
    let (prefix, number) = name.split_once('.')?;
    let stream = match prefix {
        "out" => Stream::Stdout,
        "err" => Stream::Stderr,
        _ => return None,
    };
    // Only the spelling of `path`: `+1` or `01` would be a second name of one segment.
    let parsed: u64 = number.parse().ok()?;
    (parsed.to_string() == number && parsed < u64::MAX / SEGMENT_BYTES).then_some((stream, parsed))
}

/// The size of a segment, at most [`SEGMENT_BYTES`]; 0 if it does not exist.
pub(crate) fn size(dir: &Path, stream: Stream, number: u64) -> Result<u64> {
    let path = path(dir, stream, number);
    match file::open(&path, Open::Read).and_then(file::size) {
        Ok(size) => Ok(size.min(SEGMENT_BYTES)),
        Err(Errno::NOENT) => Ok(0),
        Err(errno) => Err(Error::io("stat", &path, errno)),
    }
}

pub(crate) fn create(dir: &Path, stream: Stream, number: u64) -> Result<OwnedFd> {
    let path = path(dir, stream, number);
    file::open(&path, Open::Create).map_err(|errno| Error::io("create", &path, errno))
}

/// Removes a segment. A missing one was removed by an earlier worker.
pub(crate) fn remove(dir: &Path, stream: Stream, number: u64) -> Result<()> {
    let path = path(dir, stream, number);
    match std::fs::remove_file(&path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::io("remove", &path, Errno::from_io_error(&error).unwrap_or(Errno::IO))),
    }
}
