//! Errors of requests to the broker. Each message states whether the command may have run.

use outpost_sys::connect::Untrusted;
use std::path::PathBuf;
use std::{fmt, io};

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug)]
pub enum Error {
    /// Cannot connect.
    NoBroker { socket: PathBuf, error: io::Error },
    /// Another user may have created the socket or may listen on it.
    Untrusted(Untrusted),
    /// The request line exceeds the contract's limit.
    TooLong { bytes: usize, bytes_max: usize },
    /// The connection failed before the whole request line was sent.
    NotSent { socket: PathBuf, error: io::Error },
    /// The connection ended after the request line was sent.
    NoResponse { socket: PathBuf, error: io::Error },
    /// The response is malformed.
    Malformed { socket: PathBuf, why: String },
    /// No response in time to a request that needs no human.
    TimedOut { socket: PathBuf, seconds: u64 },
}

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoBroker { socket, error } => {
                write!(to, "No broker answers on {} ({error}). Nothing was run.", socket.display())
            }
            Error::Untrusted(reason) => write!(to, "Nothing was run, and {reason}."),
            Error::TooLong { bytes, bytes_max } => write!(
                to,
                "The request has {bytes} bytes and the limit of the broker is {bytes_max}. Nothing was run."
            ),
            Error::NotSent { socket, error } => write!(
                to,
                "The request could not be sent to the broker on {} ({error}). Nothing was run.",
                socket.display()
            ),
            Error::NoResponse { socket, error } => write!(
                to,
                "The broker on {} closed the connection without a response ({error}). The command may have run: check before you repeat it.",
                socket.display()
            ),
            Error::Malformed { socket, why } => write!(
                to,
                "The broker on {} sent a malformed response ({why}). The command may have run: check before you repeat it.",
                socket.display()
            ),
            Error::TimedOut { socket, seconds } => write!(
                to,
                "The broker on {} accepts connections but did not answer within {seconds} s.",
                socket.display()
            ),
        }
    }
}

impl std::error::Error for Error {}
