//! The errors of the engine: the operation, the object, the reason.

use outpost_sys::Errno;
use outpost_sys::spawn::{Failure, Step};
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A program could not be started.
    #[error("start {program}: {}", step_text(failure))]
    Start { program: String, failure: Failure },
    /// A running process has this key.
    #[error("a process with the id {id:?} is running; choose another id or end it first")]
    Taken { id: String },
    #[error("the process has ended")]
    NotRunning,
    /// The process has no stdin, or it is closed.
    #[error("the process has no open stdin")]
    NoStdin,
    #[error("the process has no terminal")]
    NoTerminal,
    /// The process is no longer in the table.
    #[error("the process is no longer known")]
    Gone,
    /// A limit on processes or requests is reached.
    #[error("too many requests are waiting; try again")]
    Busy,
    /// An argument holds a zero byte, or is empty where it must not be.
    #[error("{what} is empty or contains a zero byte")]
    Invalid { what: &'static str },
    /// A system call failed.
    #[error("{operation} {object}: {errno}")]
    Io { operation: &'static str, object: String, errno: Errno },
    #[error(transparent)]
    Journal(#[from] outpost_journal::Error),
    /// All processes are being stopped.
    #[error("the daemon is stopping")]
    Stopping,
    /// The engine's thread is gone.
    #[error("the engine has stopped")]
    Stopped,
}

/// Why a start failed, with the step unless it is the exec itself.
fn step_text(failure: &Failure) -> String {
    match failure {
        Failure { step: Step::Exec, errno, .. } => errno.to_string(),
        Failure { step: Step::Directory, errno, .. } => format!("its working directory: {errno}"),
        Failure { step, errno, .. } => format!("{errno} ({step:?})"),
    }
}

impl Error {
    pub(crate) fn io(operation: &'static str, object: impl Into<String>, errno: Errno) -> Error {
        Error::Io { operation, object: object.into(), errno }
    }

    pub(crate) fn path(operation: &'static str, path: &std::path::Path, error: &std::io::Error) -> Error {
        let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
        Error::Io { operation, object: PathBuf::from(path).display().to_string(), errno }
    }
}

impl Error {
    /// Whether a resource of the host is exhausted. A retry may succeed.
    pub fn is_exhaustion(&self) -> bool {
        match self {
            Error::Io { errno, .. } | Error::Journal(outpost_journal::Error::Io { errno, .. }) => {
                outpost_sys::is_exhaustion(*errno)
            }
            Error::Start { failure, .. } => outpost_sys::is_exhaustion(failure.errno),
            _ => false,
        }
    }
}
