//! The errors of the engine: the operation, the object, the reason.

use outpost_sys::Errno;
use outpost_sys::spawn::{Failure, Step};
use std::fmt;
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// A program could not be started.
    Start {
        program: String,
        failure: Failure,
    },
    /// A running process has this key.
    Taken {
        id: String,
    },
    /// The process has ended.
    NotRunning,
    /// The process has no stdin, or it is closed.
    NoStdin,
    /// The process has no terminal.
    NoTerminal,
    /// The process is no longer in the table.
    Gone,
    /// A limit on processes or requests is reached.
    Busy,
    /// An argument holds a zero byte, or is empty where it must not be.
    Invalid {
        what: &'static str,
    },
    /// A system call failed.
    Io {
        operation: &'static str,
        object: String,
        errno: Errno,
    },
    Journal(outpost_journal::Error),
    /// All processes are being stopped.
    Stopping,
    /// The engine's thread is gone.
    Stopped,
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

impl From<outpost_journal::Error> for Error {
    fn from(error: outpost_journal::Error) -> Error {
        Error::Journal(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Start { program, failure: Failure { step: Step::Exec, errno, .. } } => {
                write!(f, "start {program}: {errno}")
            }
            Error::Start { program, failure: Failure { step: Step::Directory, errno, .. } } => {
                write!(f, "start {program}: its working directory: {errno}")
            }
            Error::Start { program, failure } => {
                write!(f, "start {program}: {} ({:?})", failure.errno, failure.step)
            }
            Error::Taken { id } => {
                write!(f, "a process with the id {id:?} is running; choose another id or end it first")
            }
            Error::NotRunning => f.write_str("the process has ended"),
            Error::NoStdin => f.write_str("the process has no open stdin"),
            Error::NoTerminal => f.write_str("the process has no terminal"),
            Error::Gone => f.write_str("the process is no longer known"),
            Error::Busy => f.write_str("too many requests are waiting; try again"),
            Error::Invalid { what } => write!(f, "{what} is empty or contains a zero byte"),
            Error::Io { operation, object, errno } => write!(f, "{operation} {object}: {errno}"),
            Error::Journal(error) => error.fmt(f),
            Error::Stopping => f.write_str("the daemon is stopping"),
            Error::Stopped => f.write_str("the engine has stopped"),
        }
    }
}

impl std::error::Error for Error {}
