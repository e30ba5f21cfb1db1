//! The broker face: pipelines that run, with root's rights or ours, once a human has allowed exactly them.
//!
//! # Theory of operation
//!
//! A connection carries one request line. Gates refuse what cannot be honest (`validate`, `freshness`,
//! `environment`); what passes is made an `order::Order`: every program looked up, opened and hashed, the directory
//! opened, the environment complete, all of it under one digest. Rules, grants or a human decide about that digest.
//! What runs are the files that were opened, after they were compared with what they were.
//!
//! Each step is in the books before it has consequences, and the keeper has the client's connection, so a worker that is
//! killed leaves nothing behind that the next one does not know: `resume` asks on, waits on, and answers.

#![forbid(unsafe_code)]

mod asker;
mod connection;
mod environment;
mod files;
mod forward;
mod freshness;
mod judging;
mod line;
mod order;
mod parse;
mod password;
mod peer;
mod peer_watch;
mod question;
mod rates;
mod records;
mod resume;
mod run;
mod server;
mod sudo;
mod under_way;
mod validate;

use outpost_broker_wire as wire;

pub use freshness::Window;
pub use password::{
    ASKPASS_ANCHOR, ASKPASS_HIDDEN, ASKPASS_RECOGNISED, ASKPASS_SOCKET, ASKPASS_VARIABLE, AskPassword,
    Askpass, Typed,
};
pub use rates::Rates;
pub use records::SCHEMA;
pub use server::{Notice, Server, Settings};
pub use validate::Shape;

/// For the fuzz target: takes a line through the gates that need nothing else. Returns the answer to one that does not
/// pass.
#[doc(hidden)]
pub fn read_line(line: &[u8]) -> Result<wire::Request, Vec<u8>> {
    let request = parse::request(line).map_err(|response| line::encode(&response))?;
    let checked = validate::check(&request, &Shape::default())
        .and_then(|()| freshness::check(&request.time, jiff::Timestamp::now(), Window::default()));
    match checked {
        Ok(_) => Ok(request),
        Err(message) => Err(line::encode(&wire::Response::error(&request.id, message))),
    }
}
