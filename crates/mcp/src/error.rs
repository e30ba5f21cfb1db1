//! Errors of the MCP server, with messages for a model and its user.

use outpost_broker_client::Error as BrokerError;
use std::fmt;
use std::path::PathBuf;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug)]
pub enum Error {
    /// The MCP handshake or session failed.
    Session(String),
    /// Invalid tool arguments.
    Arguments(String),
    /// Too many concurrent calls.
    Busy { calls_max: usize },
    /// The broker does not support `cwd`.
    NoCwd { socket: PathBuf },
    /// The request to the broker failed.
    Broker(BrokerError),
    /// The client cancelled the call or disconnected.
    Withdrawn,
}

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Session(why) => write!(to, "the MCP session failed: {why}"),
            Error::Arguments(why) => write!(to, "{why}. Nothing was run."),
            Error::Busy { calls_max } => write!(
                to,
                "{calls_max} calls are waiting already, which is the limit; wait for one of them. Nothing was run."
            ),
            Error::NoCwd { socket } => write!(
                to,
                "The broker on {} does not support `cwd` and would run the command in `/`. Nothing was run. Omit `cwd` and use absolute paths.",
                socket.display()
            ),
            Error::Broker(error) => {
                write!(to, "{error}")?;
                match advice(error) {
                    Some(advice) => write!(to, " {advice}"),
                    None => Ok(()),
                }
            }
            Error::Withdrawn => write!(to, "The call was cancelled, and the request withdrawn."),
        }
    }
}

/// The next step for the model.
fn advice(error: &BrokerError) -> Option<String> {
    match error {
        BrokerError::NoBroker { .. } => {
            let advice = "Ask the human to start `outpost serve`, and to answer with `outpost approve`.";
            Some(advice.to_owned())
        }
        BrokerError::Untrusted(reason) => Some(format!("Ask the human: {}.", reason.hint())),
        BrokerError::TooLong { .. } => Some("Put long data into a file.".to_owned()),
        BrokerError::TimedOut { .. } => Some("Ask the human to check it.".to_owned()),
        BrokerError::NotSent { .. } | BrokerError::NoResponse { .. } | BrokerError::Malformed { .. } => None,
    }
}

impl From<BrokerError> for Error {
    fn from(error: BrokerError) -> Error {
        Error::Broker(error)
    }
}

impl std::error::Error for Error {}
