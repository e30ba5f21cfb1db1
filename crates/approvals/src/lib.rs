//! What waits for a human: questions and decisions, grants, the operator's rules, and the audit chain of it all.
//!
//! A face that wants something done that a human has to allow describes it as a [`Question`] and asks. The answer comes
//! from an approver, over a socket that no requester can use, from an operator's rule, or from a grant that an approver
//! left for exactly the same thing. Whatever happens is in the audit chain before it has consequences.

#![forbid(unsafe_code)]

pub mod audit;
mod client;
mod desk;
pub mod display;
mod error;
pub mod grants;
pub mod guard;
mod hook;
mod ledger;
mod moment;
mod question;
mod queue;
pub mod rules;
mod secret;
mod server;
pub mod signing;
pub mod wire;
pub mod written;

pub use client::Client;
pub use desk::{Approvals, Settings};
pub use error::{Cause, Error, Result};
pub use ledger::{Books, Ledger};
pub use moment::{Moment, unix_ms};
pub use question::{Decision, Line, Outcome, Question, Remember, Section};
pub use queue::{Asked, Queue, Remembered};
pub use secret::hex;
pub use server::serve;
