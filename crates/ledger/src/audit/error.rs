//! Errors of the audit chain: the operation, the file and the cause.

use super::RECORD_BYTES_MAX;
use outpost_sys::Errno;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("cannot {operation} {}: {errno}", path.display())]
    Io { operation: &'static str, path: PathBuf, errno: Errno },
    /// Another daemon has locked this chain.
    #[error("another daemon uses the audit log in {}; stop it first", path.display())]
    Locked { path: PathBuf },
    /// The file was modified or damaged. `line` is counted from 1; 0 if the error concerns the whole file.
    #[error("the audit log {}{}: {why}", file.display(), line_text(*line))]
    Broken { file: PathBuf, line: u64, why: String },
    /// The data cannot be encoded as a record. Nothing was written.
    #[error("cannot record the event {event}: {why}")]
    Unwritable { event: &'static str, why: String },
    /// An earlier write failed, so a record may be missing or torn.
    #[error(
        "an earlier write to the audit log in {} failed; nothing is recorded or run until the daemon restarts",
        path.display()
    )]
    Failed { path: PathBuf },
}

fn line_text(line: u64) -> String {
    if line == 0 { String::new() } else { format!(", line {line}") }
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

pub type Result<T> = std::result::Result<T, Error>;
