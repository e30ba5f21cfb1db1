//! Why an extraction failed, with the texts of the original.

use crate::go_compat::{errno_text, quote};
use outpost_sys::Errno;
use thiserror::Error;

#[derive(Debug, PartialEq, Eq, Error)]
pub(super) enum ExtractError {
    #[error("destDir must be an absolute, non-root path: {}", quote(.0))]
    DestinationPath(String),
    #[error("destDir must not be or contain the home directory: {}", quote(.0))]
    DestinationHome(String),
    #[error("open {0}: not a regular file")]
    NotRegular(String),
    /// A failed system call on a path, as Go's `os.PathError`.
    #[error("{call} {path}: {}", errno_text(*errno))]
    Path { call: String, path: String, errno: Errno },
    /// An error outside of an entry's content. The original prefixes all of them.
    #[error("gzip: {0}")]
    Stream(#[source] Box<ExtractError>),
    /// The archive is empty.
    #[error("EOF")]
    Empty,
    #[error("unexpected EOF")]
    UnexpectedEof,
    #[error("gzip: invalid header")]
    GzipHeader,
    /// The stream cannot be read or decompressed, for this reason.
    #[error("{0}")]
    Read(String),
    #[error("archive/tar: invalid tar header")]
    TarHeader,
    #[error("archive/tar: header field too long")]
    LongField,
    #[error("too many entries in archive")]
    TooManyEntries,
    #[error("extraction size limit exceeded")]
    TooLarge,
    #[error("unsafe path in archive: {0}")]
    UnsafePath(String),
    #[error("unsupported tar entry type {kind}: {name}")]
    UnsupportedType { kind: char, name: String },
    #[error("write .synced: {0}")]
    Synced(#[source] Box<ExtractError>),
}

impl ExtractError {
    pub(super) fn path(call: impl Into<String>, path: impl Into<String>, errno: Errno) -> ExtractError {
        ExtractError::Path { call: call.into(), path: path.into(), errno }
    }

    pub(super) fn stream(self) -> ExtractError {
        ExtractError::Stream(Box::new(self))
    }

    /// Whether the archive contains an entry that is never extracted. The reply's `fileCount` is then 0, also if files were
    /// written.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, ExtractError::UnsafePath(_) | ExtractError::UnsupportedType { .. })
    }
}
