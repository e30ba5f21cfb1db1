//! What the sessions face can fail with: the operation, the object, the reason.

use std::fmt;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub enum Error {
    /// Something on disk.
    File { what: &'static str, path: PathBuf, reason: String },
    /// The books of the daemon.
    Books(outpost_approvals::Error),
    /// This face is ending.
    Stopped,
}

impl Error {
    pub(crate) fn file(what: &'static str, path: &Path, reason: impl fmt::Display) -> Error {
        Error::File { what, path: path.to_owned(), reason: reason.to_string() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::File { what, path, reason } => write!(f, "cannot {what} {}: {reason}", path.display()),
            Error::Books(error) => write!(f, "{error}"),
            Error::Stopped => f.write_str("the daemon is ending"),
        }
    }
}

impl std::error::Error for Error {}

impl From<outpost_approvals::Error> for Error {
    fn from(error: outpost_approvals::Error) -> Error {
        Error::Books(error)
    }
}
