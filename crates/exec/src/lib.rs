//! The exec face: one command in a sandbox, as `codex app-server` runs it with `command/exec`.
//!
//! A [`Server`] is what all connections share; [`serve`] answers one connection, whatever it comes over, as lines of
//! JSON. A command is an engine process whose life is its connection's: the task in `command` starts it, streams it,
//! ends it and answers for it.

#![forbid(unsafe_code)]

mod command;
mod connection;
mod lookup;
mod methods;
mod policy;
mod server;
mod text;
mod websocket;
mod wire;

pub use connection::serve;
pub use server::{Server, Settings};
pub use websocket::{Door, serve_http};

/// For the fuzz target: reads a line as a connection does, with the parameters of every method. Returns the answer to one that
/// is no request, or whose parameters are wrong.
#[doc(hidden)]
pub fn read_line(line: &[u8]) -> Option<Vec<u8>> {
    methods::read(line)
}
