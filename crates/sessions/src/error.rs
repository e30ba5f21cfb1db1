//! The errors of the sessions face: operation, object and cause.

use outpost_ledger::Cause;
use std::fmt;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub enum Error {
    /// A file operation failed.
    File { what: &'static str, path: PathBuf, cause: Cause },
    /// The ledger failed.
    Ledger(outpost_ledger::Error),
    /// The daemon is shutting down.
    Stopped,
}

impl Error {
    /// Whether a resource of the host is exhausted. The same call may succeed later.
    pub fn is_exhaustion(&self) -> bool {
        match self {
            Error::File { cause, .. } => cause.is_exhaustion(),
            Error::Ledger(error) => error.is_exhaustion(),
            Error::Stopped => false,
        }
    }

    /// An error without an errno.
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
            Error::Ledger(error) => write!(f, "{error}"),
            Error::Stopped => f.write_str("the daemon is ending"),
        }
    }
}

impl std::error::Error for Error {}

impl From<outpost_ledger::Error> for Error {
    fn from(error: outpost_ledger::Error) -> Error {
        Error::Ledger(error)
    }
}
