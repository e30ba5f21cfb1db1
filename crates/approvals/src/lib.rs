//! What waits for a human: questions and decisions, grants, the operator's rules, and the audit chain of it all.
//!
//! A face that wants something done that a human has to allow describes it as a [`Question`] and asks. The answer comes
//! from an approver, signed, from an operator's rule, or from a grant that an approver has signed for exactly the
//! same thing. Whatever happens is in the audit chain before it has consequences.

#![forbid(unsafe_code)]

pub mod approvers;
pub mod audit;
mod client;
mod desk;
pub mod display;
mod error;
pub mod grants;
pub mod guard;
mod hex;
mod hook;
#[cfg(test)]
mod kit;
mod ledger;
mod moment;
mod question;
mod queue;
pub mod rules;
mod server;
pub mod signing;
mod silent;
mod trust;
pub mod wire;
pub mod written;

pub use client::{Client, Hello, sign};
pub use desk::{Approvals, Settings};
pub use error::{Cause, Error, Result};
pub use hex::hex;
pub use ledger::{Books, Ledger};
pub use moment::{Moment, unix_ms};
pub use question::{Decision, Line, Outcome, Question, Remember, Section};
pub use queue::{Asked, Queue, Remembered, Submitter};
pub use server::serve;
pub use trust::{Trust, Verified};
