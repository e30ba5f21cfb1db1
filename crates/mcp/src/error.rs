//! Errors of the MCP server, with messages for a model and its user.

use outpost_broker_client::Error as BrokerError;
use std::path::PathBuf;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The MCP handshake or session failed.
    #[error("the MCP session failed: {0}")]
    Session(String),
    /// Invalid tool arguments.
    #[error("{0}. Nothing was run.")]
    Arguments(String),
    /// Too many concurrent calls.
    #[error(
        "{calls_max} calls are waiting already, which is the limit; wait for one of them. Nothing was run."
    )]
    Busy { calls_max: usize },
    /// The broker does not support `cwd`.
    #[error(
        "The broker on {} does not support `cwd` and would run the command in `/`. Nothing was run. Omit `cwd` and use absolute paths.",
        socket.display()
    )]
    NoCwd { socket: PathBuf },
    /// The request to the broker failed.
    #[error("{0}{advice}", advice = advice(.0))]
    Broker(#[from] BrokerError),
    /// The client cancelled the call or disconnected.
    #[error("The call was cancelled, and the request withdrawn.")]
    Withdrawn,
}

/// The next step for the model, as a further sentence.
fn advice(error: &BrokerError) -> String {
    match error {
        BrokerError::NoBroker { .. } => {
            " Ask the human to start `outpost serve`, and to answer with `outpost approve`.".to_owned()
        }
        BrokerError::Untrusted(reason) => format!(" Ask the human: {}.", reason.hint()),
        BrokerError::TooLong { .. } => " Put long data into a file.".to_owned(),
        BrokerError::TimedOut { .. } => " Ask the human to check it.".to_owned(),
        BrokerError::NotSent { .. } | BrokerError::NoResponse { .. } | BrokerError::Malformed { .. } => {
            String::new()
        }
    }
}
