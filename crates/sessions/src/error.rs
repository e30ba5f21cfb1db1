//! What the sessions face can fail with: the operation, the object, the reason.

use outpost_approvals::Cause;
use std::fmt;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub enum Error {
    /// Something on disk.
    File { what: &'static str, path: PathBuf, cause: Cause },
    /// The books of the daemon.
    Books(outpost_approvals::Error),
    /// This face is ending.
    Stopped,
}

impl Error {
    /// Whether a resource of the host has run out. The same call may succeed when it is back.
    pub fn is_exhaustion(&self) -> bool {
        match self {
            Error::File { cause, .. } => cause.is_exhaustion(),
            Error::Books(error) => error.is_exhaustion(),
            Error::Stopped => false,
        }
    }

    /// A failure that the kernel did not report.
    pub(crate) fn file(what: &'static str, path: &Path, reason: impl fmt::Display) -> Error {
        Error::io(what, path, reason.to_string())
    }

    pub(crate) fn io(what: &'static str, path: &Path, cause: impl Into<Cause>) -> Error {
        Error::File { what, path: path.to_owned(), cause: cause.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::File { what, path, cause } => write!(f, "cannot {what} {}: {cause}", path.display()),
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
