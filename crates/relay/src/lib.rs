//! The relay face: long-lived processes, files and git over a Unix socket, as claustrum speaks it.
//!
//! The contract is `relay.txt`; where it is silent, the original's behaviour counts, down to how its JSON library reads
//! and writes (`json`) and how its runtime words errors (`go`). A request's way: `connection` reads and checks it,
//! `methods` has a file for each namespace, `follow` streams what processes write.

#![forbid(unsafe_code)]

mod connection;
mod environment;
pub mod extract;
mod follow;
mod git;
mod go;
mod helper;
mod input;
pub mod install;
mod json;
mod methods;
mod metrics;
mod resolver;
mod server;
mod wire;

/// System errors in the original's words, for messages outside the socket.
pub mod words {
    pub use crate::go::{errno_text as errno, io_text as io, path_error};
}

/// For the fuzz target: reads a line as a connection does, with the parameters of every method, and writes the reply that
/// carries its id.
#[doc(hidden)]
pub fn read_request(line: &[u8]) -> Option<Vec<u8>> {
    wire::exercise(line)
}

pub use metrics::Metrics;
pub use resolver::Resolver;
pub use server::{Config, Relay, serve, serve_metrics};
