//! The relay face: claustrum's protocol for long-lived processes, files and git over a Unix socket.
//!
//! The contract is `relay.txt`. Where it does not specify something, the original daemon's behaviour is the contract. That
//! daemon is written in Go, so `go_json` reproduces its JSON library and `go_compat` its error texts.
//!
//! # Theory of operation
//!
//! 1. `connection` has one reader task per client. It reads lines of less than 1 MiB and checks each in the contract's
//!    order: parse, auth, version, method, params. `server.*` methods reply at once, and replies that are ready together
//!    leave in one write. All other requests of a connection run concurrently.
//! 2. `methods` has one file per namespace. `files.*` and `git.*` run on blocking threads. `process.*` call the engine.
//! 3. `process_queue` has one queue per process and connection for `process.spawn` and `process.stdin`: pieces keep their
//!    order, and a process that does not read delays only itself. If more than 8 MiB wait and the process has read
//!    nothing for 200 ms, further input is written to disk (256 MiB at most) and answered when the process takes it. The
//!    connection is still read, so a kill behind the input is executed.
//! 4. `follow` has one task per followed process of a connection: a cursor over the process's journal that encodes frames
//!    into the connection's outbox. A slow client delays only its own followers. A reattach on the same connection
//!    replaces the follower, and its reply follows the frames that existed when it was requested. When a client closes
//!    its sending half, its requests are answered and its processes streamed to their ends.
//!
//! **Bounds.** The load limit (`outpost_wire::Load`) bounds the requests without a reply: 8 MiB and 1,024 requests per
//! connection, 64 MiB over all connections beyond a small reserve of each. Semaphores bound file and git requests over
//! all connections. The outbox blocks its senders while the client does not read.
//!
//! **Invariant.** Nothing in this crate blocks the async runtime: file access and commands run on blocking threads.
//!
//! # Formats and paths
//!
//! JSON is read by our own reader, not serde, since clients can observe how the original's library reads: keys match in
//! any case, the last duplicate wins, `null` is a zero value, broken UTF-8 becomes U+FFFD, and a line is checked whole
//! before a member of the wrong type counts. Replies are written member by member in the contract's order.
//!
//! Each path that a client names is opened without waiting for a peer. `files.extract_tar` works below one directory
//! descriptor (openat2 with RESOLVE_BENEATH). git runs without prompts, hooks or fsmonitor, with a time limit, names
//! behind `--`.

#![forbid(unsafe_code)]

mod connection;
mod environment;
pub mod extract;
mod follow;
mod git;
pub mod go_compat;
pub mod go_json;
mod methods;
mod metrics;
mod process_queue;
mod server;
mod wire;

/// Entry point of the fuzz target: parses a request line, decodes the params of every method, and returns the reply line.
#[doc(hidden)]
pub fn read_request(line: &[u8]) -> Option<Vec<u8>> {
    wire::parse_as_every_method(line)
}

pub use metrics::Metrics;
pub use server::{Config, Relay, serve, serve_metrics};
