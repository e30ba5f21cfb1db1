//! Errors of a journal: the operation, the file and the errno.

use outpost_sys::Errno;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("{operation} {}: {errno}", path.display())]
    Io { operation: &'static str, path: PathBuf, errno: Errno },
    /// Bytes that a record refers to are missing.
    #[error("{}: the bytes of frame {seq} are missing", path.display())]
    Damaged { path: PathBuf, seq: u64 },
    /// The bytes are on disk but not in the page cache, and the caller does not block.
    #[error("the bytes are not in the page cache")]
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
