//! What can go wrong between a client and the broker, in words for a model and its human.

use outpost_sys::connect::Untrusted;
use std::path::PathBuf;
use std::{fmt, io};

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug)]
pub enum Error {
    /// The client and we do not understand each other.
    Handshake(String),
    /// Arguments that no request can be made of.
    Arguments(String),
    /// Too many calls at the same time.
    Busy {
        calls_max: usize,
    },
    NoBroker {
        socket: PathBuf,
        error: io::Error,
    },
    /// Another user may have put the socket there, or listens on it.
    Untrusted(Untrusted),
    /// The broker would run the command elsewhere than asked.
    NoCwd {
        socket: PathBuf,
    },
    TooLong {
        bytes: usize,
        bytes_max: usize,
    },
    /// Before the line was complete.
    NotSent {
        socket: PathBuf,
        error: io::Error,
    },
    /// After the line was complete.
    NoAnswer {
        socket: PathBuf,
        error: io::Error,
    },
    /// It answered with something else than an answer.
    Unreadable {
        socket: PathBuf,
        why: String,
    },
    /// It took too long over a question that needs no human.
    Silent {
        socket: PathBuf,
        seconds: u64,
    },
    /// The client has cancelled the call, or has gone.
    Withdrawn,
}

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Handshake(why) => write!(to, "cannot go on with the MCP client: {why}"),
            Error::Arguments(why) => write!(to, "{why}. Nothing was run."),
            Error::Busy { calls_max } => write!(
                to,
                "{calls_max} calls are waiting already, which is the most at a time; wait for one of them. Nothing was run."
            ),
            Error::NoBroker { socket, error } => write!(
                to,
                "No broker answers on {} ({error}). Nothing was run. Ask the human to start `outpost serve`, and to answer with `outpost approve`.",
                socket.display()
            ),
            Error::Untrusted(reason) => {
                write!(to, "Nothing was run, and {reason}. Ask the human: {}.", reason.hint())
            }
            Error::NoCwd { socket } => write!(
                to,
                "The broker on {} does not know `cwd` and would run the command in `/`. Nothing was run. Leave `cwd` out and name files by absolute paths.",
                socket.display()
            ),
            Error::TooLong { bytes, bytes_max } => write!(
                to,
                "The request is {bytes} bytes long and the broker takes {bytes_max}. Nothing was run. Put what is long into a file."
            ),
            Error::NotSent { socket, error } => {
                write!(
                    to,
                    "The broker on {} did not take the request ({error}). Nothing was run.",
                    socket.display()
                )
            }
            Error::NoAnswer { socket, error } => write!(
                to,
                "The broker on {} went away without an answer ({error}). The command may have run: look before you repeat it.",
                socket.display()
            ),
            Error::Unreadable { socket, why } => write!(
                to,
                "The answer of the broker on {} cannot be read ({why}). The command may have run: look before you repeat it.",
                socket.display()
            ),
            Error::Silent { socket, seconds } => write!(
                to,
                "The broker on {} accepts connections but did not answer within {seconds} s. Ask the human to look at it.",
                socket.display()
            ),
            Error::Withdrawn => write!(to, "The call was cancelled, and the request withdrawn."),
        }
    }
}

impl std::error::Error for Error {}
