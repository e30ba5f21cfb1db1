//! Decisions by humans about what the daemon may run: questions, signed decisions, grants and the operator's rules.
//!
//! A face describes an action as a [`Question`] and publishes it in the [`Queue`]. Three things can answer: an
//! approver's signed decision, an operator's rule, or a grant that an approver has signed for the same digest.
//!
//! **Invariant:** every step is recorded in the audit chain of the ledger before it takes effect. A stored decision or
//! grant counts only with a valid signature.
//!
//! **Boundary:** this crate does not know what a question is about. It runs no command that a question is about.
//!
//! # Theory of operation
//!
//! A face that needs a human creates a `Question`: an id, a digest of everything that is decided, and text that is
//! printable ASCII already. The drawing of commands is injective: a test decodes it. The queue holds open questions and
//! their watchers; the first valid decision wins.
//!
//! Decisions arrive over `approvals.sock` as signed statements. Verification covers host, question, digest, displayed
//! text, chain head, validity window, key, scope and signature. It runs again when a start is recorded, when a grant is
//! used (a grant is its statement), and when a worker resumes: an outcome without a valid proof is asked again. Approver
//! keys are replayed from signed key statements, or read from root's file. Each process sees the questions of its own
//! user. The notice program has no way to answer.
//!
//! The database and the audit chain cannot be written in one instant, so the database stores the record number up to
//! which it agrees with the chain. Records beyond it, of a worker that was killed in between, are followed by a `voided`
//! record. A chain that is shorter than the database's number within one boot gets a `shortened` record. The head also
//! goes to syslog, since a chain alone cannot show that its end was cut off.
//!
//! Deadlines, grants and used ids are on the boot clock with the boot id. Rules are read again when their file changes
//! and are evaluated before a human is asked.

#![forbid(unsafe_code)]

pub mod approvers;
pub mod authorization;
mod client;
mod connection_limit;
pub mod display;
pub mod grants;
pub mod guard;
mod hook;
#[cfg(test)]
mod kit;
mod question;
mod queue;
pub mod rules;
mod server;
mod service;
pub mod signing;
pub mod toml_diagnostics;
mod verifier;
pub mod wire;

pub use client::{Client, Hello, sign};
pub use outpost_ledger::{Error, Result};
pub use question::{Decision, Line, Outcome, Question, Remember, Section};
pub use queue::{PendingQuestion, Queue, StoredQuestion, Submitter};
pub use server::serve;
pub use service::{Approvals, Settings};
pub use verifier::{DecisionError, ListError, VerifiedDecision, Verifier};
