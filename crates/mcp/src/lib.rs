//! An MCP server on standard input and output that asks the broker.
//!
//! A call of `execute` becomes one line on the broker's socket and waits for the one line that comes back: hours, if a human
//! takes that long. The connection is the request: whoever cancels the call, or closes our input, closes it, and the broker
//! withdraws the question. A line is sent once, under an id of its own, and never again.

#![forbid(unsafe_code)]

mod broker;
mod error;
mod execute;
mod output;
mod report;
mod schema;
mod server;
mod stdio;

pub use broker::{Broker, request};
pub use error::{Error, Result};

use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;
use rmcp::transport::async_rw::AsyncRwTransport;
use tokio::sync::watch;

/// Serves the client on standard input and output until it closes the one or takes no more from the other.
pub async fn serve(broker: Broker) -> Result<()> {
    let (gone, left) = watch::channel(false);
    let (input, output) = rmcp::transport::stdio_pipes();
    let transport = stdio::Stdio::new(AsyncRwTransport::new_server(input, output), gone);
    let server = server::Server::new(broker, left);
    let running = match server.serve(transport).await {
        Ok(running) => running,
        // It looked whether we are there, and left.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(Error::Handshake(error.to_string())),
    };
    match running.waiting().await {
        Ok(_closed) => Ok(()),
        Err(error) => Err(Error::Handshake(error.to_string())),
    }
}
