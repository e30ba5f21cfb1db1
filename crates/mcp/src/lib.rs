//! An MCP server on standard input and output that sends requests to the broker.
//!
//! A call of `execute` sends one request line to the broker's socket and waits for the response line without a time limit,
//! since a human may take hours. If the client cancels the call or closes standard input, the server closes the connection,
//! and the broker withdraws the question. Requests are never retried.
//!
//! # Theory of operation
//!
//! The server runs no command and decides nothing, so an agent may start and kill it at any time. Results are bounded by
//! construction: 64 KiB of each stream, head and tail. rmcp serves both protocol eras; `stdio` sits before it, since rmcp
//! alone waits five seconds after the end of input and exits when a notification precedes the first request. `cwd` is
//! sent only to a broker that supports it: the original would run the command in `/`.

#![forbid(unsafe_code)]

mod error;
mod execute;
mod output;
mod report;
mod schema;
mod server;
mod stdio;

pub use error::{Error, Result};

use outpost_broker_client::BrokerClient;
use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;
use rmcp::transport::async_rw::AsyncRwTransport;
use tokio::sync::watch;

/// Serves the client until it closes standard input or output.
pub async fn serve(broker: BrokerClient) -> Result<()> {
    let (disconnected, on_disconnect) = watch::channel(false);
    let (input, output) = rmcp::transport::stdio_pipes();
    let transport = stdio::Stdio::new(AsyncRwTransport::new_server(input, output), disconnected);
    let server = server::Server::new(broker, on_disconnect);
    let running = match server.serve(transport).await {
        Ok(running) => running,
        // Some clients only probe whether the server starts.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(Error::Session(error.to_string())),
    };
    match running.waiting().await {
        Ok(_closed) => Ok(()),
        Err(error) => Err(Error::Session(error.to_string())),
    }
}
