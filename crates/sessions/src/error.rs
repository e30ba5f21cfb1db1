//! The errors of the sessions face: operation, object and cause.

use outpost_ledger::Cause;
use std::fmt;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file operation failed.
    #[error("cannot {what} {}: {cause}", path.display())]
    File { what: &'static str, path: PathBuf, cause: Cause },
    /// The ledger failed.
    #[error(transparent)]
    Ledger(#[from] outpost_ledger::Error),
    /// The daemon is shutting down.
    #[error("the daemon is stopping")]
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
