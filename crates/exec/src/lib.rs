//! The exec face: one command in a sandbox, as `codex app-server` runs it with `command/exec`.
//!
//! A [`Server`] holds what all connections share. [`serve`] answers one connection, over any transport, as JSON lines. A
//! command is an engine process bound to its connection: the task in `command` starts, streams, ends and answers it.
//!
//! # Theory of operation
//!
//! A connection is JSON lines in both directions; on a websocket a task converts each message. `methods/` has a file per
//! method. `command/exec` is validated where it is read, in the contract's order, and then runs in a task of its own,
//! which builds the confinement on a blocking thread, spawns, streams, and answers last.
//!
//! At the cap of its journal a command waits for its client, so deltas are complete and memory is bounded. After its exit
//! its output is drained for two seconds, and descendants are killed. Input is queued in order and delivered beside the
//! stream, so a command that does not read delays neither its time limit nor other commands. What exceeds the limits
//! (64 MiB of queued input and 16,384 commands per connection) gets `-32001`.
//!
//! `outpost app-server` has an engine with a keeper process of its own and no worker to restart: when the server exits,
//! the keeper kills everything below it. In the daemon the first byte on `exec.sock` distinguishes lines from HTTP. A new
//! worker ends the commands of the previous one, since their connections are gone.
//!
//! # Differences from the original
//!
//! Malformed messages are answered. The whole process tree is killed, not the group. `$TMPDIR` of a policy is the
//! server's. A missing directory is an error on a terminal too. Optional members report signal, time limit, truncation,
//! sizes, duration and sandbox layers. Methods for conversations with a model are unknown.

#![forbid(unsafe_code)]

mod command;
mod connection;
mod decode;
mod lookup;
mod methods;
mod policy;
mod server;
mod websocket;
mod wire;

pub use connection::serve;
pub use server::{Server, Settings};
pub use websocket::serve_http;

/// For the fuzz target: parses a line as a connection does, with the parameters of every method. Returns the error reply
/// for a malformed request or invalid parameters.
#[doc(hidden)]
pub fn read_line(line: &[u8]) -> Option<Vec<u8>> {
    methods::read(line)
}
