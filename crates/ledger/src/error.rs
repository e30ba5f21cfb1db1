//! The error type: the operation, the object it failed on, and the cause.

use crate::audit;
use outpost_sys::Errno;
use rusqlite::ErrorCode;
use std::fmt;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation on the database.
    #[error("cannot {what} in the database: {cause}")]
    Database { what: &'static str, cause: Cause },
    /// An operation on a file or a socket.
    #[error("cannot {what} {}: {cause}", path.display())]
    File { what: &'static str, path: PathBuf, cause: Cause },
    /// The audit chain cannot be written. An action that cannot be recorded is not run.
    #[error("the audit log cannot be written, so nothing is run: {0}")]
    Audit(Cause),
    /// A job or a request is refused, for this reason.
    #[error("{0}")]
    Refused(String),
    /// A job or a request is refused because of an invalid key, signature or statement.
    #[error("{0}")]
    Key(String),
    /// Another daemon has locked the ledger.
    #[error("another daemon uses this ledger")]
    InUse,
    /// The ledger thread has stopped.
    #[error("the daemon is stopping")]
    Stopped,
}

impl Error {
    /// Whether another daemon has locked the ledger.
    pub fn is_in_use(&self) -> bool {
        matches!(self, Error::InUse)
    }

    /// Whether a resource of the host is exhausted. A retry may succeed later.
    pub fn is_exhaustion(&self) -> bool {
        match self {
            Error::Database { cause, .. } | Error::File { cause, .. } | Error::Audit(cause) => {
                cause.is_exhaustion()
            }
            _ => false,
        }
    }

    /// `what` and `path` complete the message "cannot …".
    pub fn file(what: &'static str, path: &Path, cause: impl Into<Cause>) -> Error {
        Error::File { what, path: path.to_owned(), cause: cause.into() }
    }

    /// `what` completes the message "cannot … in the database".
    pub(crate) fn database(what: &'static str, error: rusqlite::Error) -> Error {
        Error::Database { what, cause: error.into() }
    }
}

pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation failed: the message, and the errno if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    text: String,
    errno: Option<Errno>,
}

impl Cause {
    /// Whether a resource of the host is exhausted.
    pub fn is_exhaustion(&self) -> bool {
        self.errno.is_some_and(outpost_sys::is_exhaustion)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<Errno> for Cause {
    fn from(errno: Errno) -> Cause {
        Cause { text: errno.to_string(), errno: Some(errno) }
    }
}

impl From<std::io::Error> for Cause {
    fn from(error: std::io::Error) -> Cause {
        Cause { text: error.to_string(), errno: Errno::from_io_error(&error) }
    }
}

impl From<rusqlite::Error> for Cause {
    fn from(error: rusqlite::Error) -> Cause {
        let errno = error.sqlite_error_code().and_then(|code| match code {
            // SQLite also returns `SystemIoFailure` if a shared-memory file cannot grow.
            ErrorCode::DiskFull | ErrorCode::SystemIoFailure => Some(Errno::NOSPC),
            ErrorCode::OutOfMemory => Some(Errno::NOMEM),
            _ => None,
        });
        Cause { text: error.to_string(), errno }
    }
}

impl From<audit::Error> for Cause {
    fn from(error: audit::Error) -> Cause {
        let errno = match &error {
            audit::Error::Io { errno, .. } => Some(*errno),
            _ => None,
        };
        Cause { text: error.to_string(), errno }
    }
}

impl From<&str> for Cause {
    fn from(text: &str) -> Cause {
        text.to_owned().into()
    }
}

impl From<&dyn fmt::Display> for Cause {
    fn from(reason: &dyn fmt::Display) -> Cause {
        reason.to_string().into()
    }
}

impl From<String> for Cause {
    fn from(text: String) -> Cause {
        Cause { text, errno: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_exhaustion_in_database_and_files() {
        let full = |code| rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
        let path = Path::new("/ledger");
        assert!(Error::database("store", full(rusqlite::ffi::SQLITE_FULL)).is_exhaustion());
        assert!(Error::database("store", full(rusqlite::ffi::SQLITE_IOERR_SHMSIZE)).is_exhaustion());
        assert!(!Error::database("store", full(rusqlite::ffi::SQLITE_CORRUPT)).is_exhaustion());
        assert!(Error::file("make", path, Errno::DQUOT).is_exhaustion());
        assert!(!Error::file("make", path, Errno::ACCESS).is_exhaustion());
        // Only an errno counts, not a message that contains its text.
        assert!(!Error::file("make", path, Errno::NOSPC.to_string()).is_exhaustion());
    }
}
