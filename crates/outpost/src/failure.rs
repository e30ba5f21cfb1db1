//! The error of a daemon component that cannot start, and whether a retry can succeed.

use outpost_sys::Errno;
use std::fmt;

#[derive(Clone, Debug)]
pub(crate) struct Failure {
    text: String,
    is_exhaustion: bool,
}

impl Failure {
    /// An I/O error with its context.
    pub(crate) fn io(context: impl fmt::Display, error: &std::io::Error) -> Failure {
        let is_exhaustion = Errno::from_io_error(error).is_some_and(outpost_sys::is_exhaustion);
        Failure { text: format!("{context}: {error}"), is_exhaustion }
    }

    /// A failure that passes when another process releases a resource.
    pub(crate) fn passing(text: String) -> Failure {
        Failure { text, is_exhaustion: true }
    }

    /// Prefixes the message with the caller's context.
    pub(crate) fn within(self, context: impl fmt::Display) -> Failure {
        Failure { text: format!("{context}: {}", self.text), ..self }
    }

    /// Whether the host ran out of a resource, so that a retry can succeed. Other failures need a change of the
    /// configuration or the command line.
    pub(crate) fn is_exhaustion(&self) -> bool {
        self.is_exhaustion
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Failure {
        Failure { text, is_exhaustion: false }
    }
}

impl From<Failure> for String {
    fn from(failure: Failure) -> String {
        failure.text
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Failure {
        Failure { text: errno.to_string(), is_exhaustion: outpost_sys::is_exhaustion(errno) }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        let is_exhaustion = Errno::from_io_error(&error).is_some_and(outpost_sys::is_exhaustion);
        Failure { text: error.to_string(), is_exhaustion }
    }
}

impl From<outpost_engine::Error> for Failure {
    fn from(error: outpost_engine::Error) -> Failure {
        Failure { text: error.to_string(), is_exhaustion: error.is_exhaustion() }
    }
}

impl From<outpost_approvals::Error> for Failure {
    fn from(error: outpost_approvals::Error) -> Failure {
        Failure { text: error.to_string(), is_exhaustion: error.is_exhaustion() }
    }
}

impl From<outpost_sessions::Error> for Failure {
    fn from(error: outpost_sessions::Error) -> Failure {
        Failure { text: error.to_string(), is_exhaustion: error.is_exhaustion() }
    }
}
