//! What can go wrong with a journal: always the operation, the file and the kernel's reason.

use outpost_sys::Errno;
use std::fmt;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// A system call failed.
    Io { operation: &'static str, path: PathBuf, errno: Errno },
    /// The bytes a record promises are not there.
    Damaged { path: PathBuf, seq: u64 },
    /// The wanted bytes are on disk but not in memory, and the caller did not want to wait.
    NotCached,
}

impl Error {
    pub(crate) fn io(operation: &'static str, path: &Path, errno: Errno) -> Error {
        Error::Io { operation, path: path.to_owned(), errno }
    }

    /// Whether waiting for room on the disk may help.
    pub fn is_no_space(&self) -> bool {
        matches!(self, Error::Io { errno: Errno::NOSPC | Errno::DQUOT, .. })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io { operation, path, errno } => write!(f, "{operation} {}: {errno}", path.display()),
            Error::Damaged { path, seq } => {
                write!(f, "{} has no bytes for frame {seq}, which its index promises", path.display())
            }
            Error::NotCached => f.write_str("the wanted bytes are not in memory"),
        }
    }
}

impl std::error::Error for Error {}
