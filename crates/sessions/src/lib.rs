//! The sessions face: conversations with agent CLIs over HTTP and server-sent events, as codecast-daemon serves them.
//!
//! A message is a *turn*: a process of the engine whose output becomes events in a record on disk (`turn_log`), numbered
//! within the session. A client is a cursor over these records, so a hang-up changes nothing about the turn, and what
//! was missed can be read later, by whoever comes, also from another worker.

#![forbid(unsafe_code)]

mod agents;
mod asking;
mod clis;
mod closing;
mod confine;
mod delivery;
mod ending;
mod error;
mod event;
mod face;
mod http;
mod kept;
mod limits;
mod lines;
mod made_files;
mod mark;
mod memory;
mod methods;
mod openapi;
mod output;
mod own_files;
mod paths;
mod records;
mod resuming;
mod room;
mod rpc;
mod session;
mod settings;
mod shutdown;
mod skills;
mod starting;
mod stream;
mod tls;
mod tokens;
mod turn;
mod turn_log;

pub use agents::{Cli, Mode};
pub use clis::{Found, installed};
pub use error::Error;
pub use face::Face;
pub use http::{Door, serve};
pub use records::SCHEMA;
pub use settings::{AgentSettings, Settings};
pub use tls::Tls;
pub use tokens::{Token, Tokens};

/// The name of this face: of its processes in the engine, of its questions, in the records.
const FACE: &str = "sessions";

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// For the fuzz target: what an agent's lines become. `is_rich` chooses the interface it is spoken to by.
pub fn events_of(cli: Cli, mode: Mode, is_rich: bool, lines: &[u8]) -> Vec<u8> {
    let task = agents::Task {
        cli,
        mode,
        model: None,
        sdk_id: None,
        path: "/".into(),
        message: String::new(),
        is_rich,
        keeps: false,
    };
    let mut agent = task.call().agent;
    let mut out = output::Output::new(1, 1);
    for line in lines.split(|byte| *byte == b'\n') {
        agent.hear(line, &task, &mut out);
    }
    out.events
}
