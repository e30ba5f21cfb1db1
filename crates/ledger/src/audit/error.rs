//! Errors of the audit chain: the operation, the file and the cause.

use super::RECORD_BYTES_MAX;
use outpost_sys::Errno;
use std::fmt;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    Io {
        operation: &'static str,
        path: PathBuf,
        errno: Errno,
    },
    /// Another daemon has locked this chain.
    Locked {
        path: PathBuf,
    },
    /// The file was modified or damaged.
    Broken {
        file: PathBuf,
        /// Counted from 1; 0 if the error concerns the whole file.
        line: u64,
        why: String,
    },
    /// The data cannot be encoded as a record. Nothing was written.
    Unwritable {
        event: &'static str,
        why: String,
    },
    /// An earlier write failed, so a record may be missing or torn.
    Failed {
        path: PathBuf,
    },
}

impl Error {
    pub(super) fn io(operation: &'static str, path: &Path, errno: Errno) -> Error {
        Error::Io { operation, path: path.to_owned(), errno }
    }

    pub(super) fn std(operation: &'static str, path: &Path, error: &std::io::Error) -> Error {
        Error::io(operation, path, Errno::from_io_error(error).unwrap_or(Errno::IO))
    }

    pub(super) fn broken(file: &Path, line: u64, why: impl Into<String>) -> Error {
        Error::Broken { file: file.to_owned(), line, why: why.into() }
    }

    pub(super) fn too_long(event: &'static str, bytes: usize) -> Error {
        let why = format!("the record has {bytes} bytes; the limit is {RECORD_BYTES_MAX}");
        Error::Unwritable { event, why }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io { operation, path, errno } => {
                write!(f, "cannot {operation} {}: {errno}", path.display())
            }
            Error::Locked { path } => {
                write!(f, "another daemon uses the audit log in {}; stop it first", path.display())
            }
            Error::Broken { file, line: 0, why } => write!(f, "the audit log {}: {why}", file.display()),
            Error::Broken { file, line, why } => {
                write!(f, "the audit log {}, line {line}: {why}", file.display())
            }
            Error::Unwritable { event, why } => write!(f, "cannot record the event {event}: {why}"),
            Error::Failed { path } => write!(
                f,
                "an earlier write to the audit log in {} failed; nothing is recorded or run until the daemon restarts",
                path.display()
            ),
        }
    }
}

impl std::error::Error for Error {}

pub type Result<T> = std::result::Result<T, Error>;
