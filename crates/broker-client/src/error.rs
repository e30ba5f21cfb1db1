//! Errors of requests to the broker. Each message states whether the command may have run.

use outpost_sys::connect::Untrusted;
use std::io;
use std::path::PathBuf;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Cannot connect.
    #[error("No broker answers on {} ({error}). Nothing was run.", socket.display())]
    NoBroker { socket: PathBuf, error: io::Error },
    /// Another user may have created the socket or may listen on it.
    #[error("Nothing was run, and {0}.")]
    Untrusted(Untrusted),
    /// The request line exceeds the contract's limit.
    #[error("The request has {bytes} bytes and the limit of the broker is {bytes_max}. Nothing was run.")]
    TooLong { bytes: usize, bytes_max: usize },
    /// The connection failed before the whole request line was sent.
    #[error("The request could not be sent to the broker on {} ({error}). Nothing was run.", socket.display())]
    NotSent { socket: PathBuf, error: io::Error },
    /// The connection ended after the request line was sent.
    #[error(
        "The broker on {} closed the connection without a response ({error}). The command may have run: check before you repeat it.",
        socket.display()
    )]
    NoResponse { socket: PathBuf, error: io::Error },
    #[error(
        "The broker on {} sent a malformed response ({why}). The command may have run: check before you repeat it.",
        socket.display()
    )]
    Malformed { socket: PathBuf, why: String },
    /// No response in time to a request that needs no human.
    #[error("The broker on {} accepts connections but did not answer within {seconds} s.", socket.display())]
    TimedOut { socket: PathBuf, seconds: u64 },
}
