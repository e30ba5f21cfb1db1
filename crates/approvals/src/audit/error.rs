//! What can go wrong with an audit chain: always the operation, the file and the reason.

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
    /// Another daemon writes this chain.
    Locked {
        path: PathBuf,
    },
    /// What is in the file was not written by us as it stands there.
    Broken {
        file: PathBuf,
        /// Counted from 1; 0 where it is about the file as a whole.
        line: u64,
        why: String,
    },
    /// What was to be recorded cannot be. Nothing was written.
    Unwritable {
        event: &'static str,
        why: String,
    },
    /// An earlier record may be missing or half there.
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
        let why = format!("it has {bytes} bytes of {RECORD_BYTES_MAX} that a record may have");
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
                write!(f, "another daemon writes the audit log in {}; stop it first", path.display())
            }
            Error::Broken { file, line: 0, why } => write!(f, "the audit log {}: {why}", file.display()),
            Error::Broken { file, line, why } => {
                write!(f, "the audit log {}, line {line}: {why}", file.display())
            }
            Error::Unwritable { event, why } => write!(f, "cannot record what was {event}: {why}"),
            Error::Failed { path } => write!(
                f,
                "the audit log in {} could not be written before; nothing is recorded, and so nothing is run, until the daemon is restarted",
                path.display()
            ),
        }
    }
}

impl std::error::Error for Error {}

/// A result of the audit chain.
pub type Result<T> = std::result::Result<T, Error>;
