//! The broker face: runs pipelines, as root or as the requesting user, after a human approved exactly that command.
//!
//! # Theory of operation
//!
//! A connection carries one request line. `parse`, `validate` and `freshness` refuse malformed, oversized and stale
//! requests. `pinned_request` then resolves the rest: it finds every program on a fixed path, opens and hashes it, and
//! checks the path to it (for root's rights only root may be able to change it). It opens the working directory, checks
//! the variables and completes the environment. One SHA-256 digest covers all of this. Rules, grants or a human approve
//! or deny that digest. The broker executes the opened files, after it checked that they are unchanged.
//!
//! The ledger records each step before the step takes effect: the request, its id and its question in one transaction,
//! and the start once, before the first process. The keeper holds a copy of the client's connection under a number that
//! is recorded with the request. When a worker is killed, the next worker reads the ledger and matches the numbers.
//! `resume` then continues every request: it asks the same question with the remaining time, waits for running commands
//! and answers the clients. A request whose start is recorded and whose processes are unknown was interrupted. Its
//! client gets an answer, and the request is not repeated: a command starts at most once.
//!
//! A stage executes the hashed file (execveat) in the opened directory (fchdir), in a session of its own, without a
//! terminal. A script runs by its name where only root can change that, else by a descriptor that its interpreter opens.
//! sudo itself is executed by descriptor, with `-k`, so that no credential stays behind.
//!
//! A password is asked once per pipeline. sudo runs this binary as its askpass helper through `/proc/PID/exe` of an idle
//! child of the daemon, a name that no user can replace. The daemon checks the helper's file, its parent sudo by pid and
//! start time, and its dumpable flag before it sends the password.
//!
//! # Guard
//!
//! `outpost --guard serve` runs this face and approvals as root. A connection is a user: uid and gid by SO_PEERCRED,
//! groups from `/etc/group`. Names are looked up with that user's file rights, and an unprivileged request carries the
//! user's credentials into the child. Connections, requests, rates, questions and used ids are counted per user. Other
//! daemons forward the request line as it is and copy the answer back; the keeper holds both connections.
//!
//! # Differences from the original
//!
//! RFC 3339 times with offsets, at most five seconds in the future. Ids survive a restart, and refusals carry their id.
//! Output is kept at a time limit. A client that disconnects withdraws its question. A missing program is refused before
//! a human is asked. As root a privileged command gets umask 022, not 077.

#![forbid(unsafe_code)]

mod active_request;
mod connection;
mod disconnect;
mod environment;
mod files;
mod forward;
mod freshness;
mod line;
mod parse;
mod password;
mod peer;
mod pinned_request;
mod policy;
mod question;
mod rate_limit;
mod records;
mod requester;
mod resume;
mod run;
mod server;
mod sudo;
mod validate;

use outpost_broker_wire as wire;

pub use freshness::FreshnessWindow;
pub use password::{
    ASKPASS_ANCHOR, ASKPASS_SOCKET, ASKPASS_UNDUMPABLE, ASKPASS_VARIABLE, ASKPASS_VERIFIED, Askpass,
    PasswordSource, Secret,
};
pub use rate_limit::RateLimits;
pub use records::SCHEMA;
pub use server::{Notice, Server, Settings};
pub use validate::RequestLimits;

/// For the fuzz target: runs a line through the checks that need no daemon. Returns the encoded response if a check
/// fails.
#[doc(hidden)]
pub fn read_line(line: &[u8]) -> Result<wire::Request, Vec<u8>> {
    let request = parse::request(line).map_err(|response| line::encode(&response))?;
    let refuse = |message: String| line::encode(&wire::Response::error(&request.id, message));
    validate::check(&request, &RequestLimits::default()).map_err(|error| refuse(error.to_string()))?;
    freshness::check(&request.time, jiff::Timestamp::now(), FreshnessWindow::default())
        .map_err(|error| refuse(error.to_string()))?;
    Ok(request)
}
