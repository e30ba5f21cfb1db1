//! The sessions face: conversations with agent CLIs over HTTP and server-sent events, compatible with codecast-daemon.
//!
//! A message starts a *turn*: a process of the engine whose output becomes events in a log on disk (`store`). Events are
//! numbered within the session. A client stream is a cursor over these logs. So a disconnect does not affect the turn, and
//! any client can read missed events later, also from the next worker.
//!
//! Where to look:
//! - `http/`: the server, JSON-RPC, event streams, TLS and tokens.
//! - `methods/`: one file per method of the contract, named after it.
//! - `turn/`: a running turn, from the launch of the CLI to the terminal event, and its checkpoint.
//! - `store/`: the database tables, the event logs, and what is deleted from them.
//! - `agents/`: one adapter per CLI interface, and what differs between the CLIs.
//! - `face` is the state that all requests share; `session` is the state of one session.
//!
//! # Theory of operation
//!
//! A message is a turn, and a turn is an engine process with the key (session, number). Its output is cut into lines and
//! given to the agent adapter, which returns events, lines for the CLI's stdin, and questions. Exactly one terminal event
//! ends a turn, and nothing follows it.
//!
//! A turn's record is two files: the events in the bytes of the stream, and the checkpoint: how many of those bytes are
//! valid, from which journal offset the next event comes, which stdin bytes were sent at which offset, and the adapter's
//! state. The order is events, checkpoint, then CLI and clients. The checkpoint holds the next stdin bytes and their
//! offset, so sending them again is idempotent. The checkpoint of a turn is written before its process starts, so the
//! adapter that started a process also reads it.
//!
//! A stream is a cursor over records: it copies 256 KiB at a time from the page cache and parses no event twice. The
//! delivered count is stored when hyper has flushed the bytes; `session.reconnect` without a cursor starts there. `[DONE]`
//! follows when no turn is open. Turns run on a thread of their own, so parsing agent output delays no request.
//!
//! An interrupt sets a flag that the turn's task sees at every await, writes `interrupted` at once, and then kills the
//! process tree. The CLI's interface is derived from its package or its version output, never by running a script.
//! Questions of agents are `Question`s in the one queue and survive the worker.
//!
//! With `claude_keep_s` a process stays for the next message. The checkpoint of a turn then names the turn whose process
//! answers it and starts at the journal and stdin offsets where the previous one ended. The warm pool is in memory only:
//! the next worker ends those processes, and messages start one that resumes the conversation.
//!
//! Limits: 64 MiB per CLI line, 1 GiB of events per turn, 1,000 messages or 64 MiB queued per session, the last 64 turns
//! or 64 MiB of read events for cursors. Unread events are kept.

#![forbid(unsafe_code)]

mod agents;
mod error;
mod event;
mod face;
mod http;
mod methods;
mod session;
mod settings;
mod shutdown;
mod store;
mod turn;

pub use agents::installed::{InstalledCli, installed};
pub use agents::{Cli, Mode};
pub use error::Error;
pub use face::Face;
pub use http::serve;
pub use http::tls::Tls;
pub use http::tokens::{Token, Tokens};
pub use settings::{AgentSettings, Settings};
pub use store::database::SCHEMA;

/// The face's name in process keys, in approval questions and in the database.
const FACE: &str = "sessions";

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// For the fuzz target: the events that an adapter produces from these lines. `is_interactive` selects the CLI's interface.
pub fn events_of(cli: Cli, mode: Mode, is_interactive: bool, lines: &[u8]) -> Vec<u8> {
    let request = agents::TurnRequest {
        cli,
        mode,
        model: None,
        conversation_id: None,
        path: "/".into(),
        message: String::new(),
        is_interactive,
        keep_process: false,
    };
    let mut adapter = request.invocation().adapter;
    let mut out = turn::output::Output::detached(1);
    for line in lines.split(|byte| *byte == b'\n') {
        adapter.on_line(line, &request, &mut out);
    }
    out.events
}
