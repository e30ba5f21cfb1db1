//! What can go wrong here, told with the object it went wrong on.

use std::fmt;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub enum Error {
    /// The database of what waits.
    Database { what: &'static str, reason: String },
    /// A file or a socket.
    File { what: &'static str, path: PathBuf, reason: String },
    /// The audit chain: what is not recorded is not done.
    Audit(String),
    /// What an approver or a face asked for cannot be done.
    Refused(String),
    /// A key or a signature.
    Key(String),
    /// The same, but who proves to know the approver's secret may have it.
    SecretWanted(String),
    /// Another daemon has the books.
    InUse,
    /// The ledger's thread is gone.
    Stopped,
}

impl Error {
    /// Another daemon has the books.
    pub fn is_in_use(&self) -> bool {
        matches!(self, Error::InUse)
    }

    pub(crate) fn file(what: &'static str, path: &Path, reason: impl fmt::Display) -> Error {
        Error::File { what, path: path.to_owned(), reason: reason.to_string() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Database { what, reason } => {
                write!(f, "cannot {what} in the approvals database: {reason}")
            }
            Error::File { what, path, reason } => write!(f, "cannot {what} {}: {reason}", path.display()),
            Error::Audit(reason) => write!(f, "the audit log cannot be written, so nothing is run: {reason}"),
            Error::Refused(why) | Error::Key(why) | Error::SecretWanted(why) => f.write_str(why),
            Error::InUse => f.write_str("another daemon writes into these books"),
            Error::Stopped => f.write_str("the daemon is ending"),
        }
    }
}

impl std::error::Error for Error {}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
