//! Errors of a journal: the operation, the file and the errno.

use outpost_sys::Errno;
use std::fmt;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// A system call failed.
    Io { operation: &'static str, path: PathBuf, errno: Errno },
    /// Bytes that a record refers to are missing.
    Damaged { path: PathBuf, seq: u64 },
    /// The bytes are on disk but not in the page cache, and the caller does not block.
    NotCached,
}

impl Error {
    pub(crate) fn io(operation: &'static str, path: &Path, errno: Errno) -> Error {
        Error::Io { operation, path: path.to_owned(), errno }
    }

    /// Whether the disk or the quota is full, so that a retry may succeed later.
    pub fn is_no_space(&self) -> bool {
        matches!(self, Error::Io { errno: Errno::NOSPC | Errno::DQUOT, .. })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io { operation, path, errno } => write!(f, "{operation} {}: {errno}", path.display()),
            Error::Damaged { path, seq } => {
                write!(f, "{}: the bytes of frame {seq} are missing", path.display())
            }
            Error::NotCached => f.write_str("the bytes are not in the page cache"),
        }
    }
}

impl std::error::Error for Error {}
