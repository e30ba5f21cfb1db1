//! Segments: the files that hold a stream's bytes, `out.N` and `err.N`, each for one fixed piece of its offsets.

use crate::record::Stream;
use crate::{Error, Result};
use outpost_sys::Errno;
use outpost_sys::file::{self, Open};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// How much of a stream one segment holds.
pub const SEGMENT_BYTES: u64 = 4 * 1024 * 1024;

/// Which segment holds the byte at `offset`.
pub(crate) fn number(offset: u64) -> u64 {
    offset / SEGMENT_BYTES
}

/// Where in its segment the byte at `offset` is.
pub(crate) fn place(offset: u64) -> u64 {
    offset % SEGMENT_BYTES
}

pub(crate) fn path(dir: &Path, stream: Stream, number: u64) -> PathBuf {
    let prefix = match stream {
        Stream::Stdout => "out",
        Stream::Stderr => "err",
    };
    dir.join(format!("{prefix}.{number}"))
}

/// The segment a file name stands for.
pub(crate) fn parse_name(name: &str) -> Option<(Stream, u64)> {
    let (prefix, number) = name.split_once('.')?;
    let stream = match prefix {
        "out" => Stream::Stdout,
        "err" => Stream::Stderr,
        _ => return None,
    };
    // Only the spelling that `path` makes: a `+1` or `01` would be a second name for one segment.
    let parsed: u64 = number.parse().ok()?;
    (parsed.to_string() == number && parsed < u64::MAX / SEGMENT_BYTES).then_some((stream, parsed))
}

/// The size of a segment, at most what belongs into one; 0 when there is none.
pub(crate) fn size(dir: &Path, stream: Stream, number: u64) -> Result<u64> {
    let path = path(dir, stream, number);
    match file::open(&path, Open::Read).and_then(file::size) {
        Ok(size) => Ok(size.min(SEGMENT_BYTES)),
        Err(Errno::NOENT) => Ok(0),
        Err(errno) => Err(Error::io("look at", &path, errno)),
    }
}

pub(crate) fn create(dir: &Path, stream: Stream, number: u64) -> Result<OwnedFd> {
    let path = path(dir, stream, number);
    file::open(&path, Open::Create).map_err(|errno| Error::io("create", &path, errno))
}

/// Removes a segment. One that is gone already was removed by an earlier life of ours.
pub(crate) fn remove(dir: &Path, stream: Stream, number: u64) -> Result<()> {
    let path = path(dir, stream, number);
    match std::fs::remove_file(&path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::io("remove", &path, Errno::from_io_error(&error).unwrap_or(Errno::IO))),
    }
}
