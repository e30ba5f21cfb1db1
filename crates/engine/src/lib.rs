//! The table of supervised processes, over keeper and journal.
//!
//! # Theory of operation
//!
//! A [`Process`] is a handle: cheap to clone, safe to keep, usable from any task. Behind it one thread, the *reactor*,
//! does everything that moves bytes or changes a process: it splices output into journals, delivers stdin, listens to
//! the keeper, records exits. It is plain blocking-free code around one epoll set; faces reach it by a bounded queue
//! of commands. Readers do not go through it: a [`Subscription`] is a cursor over the journal's files plus a
//! notice that there is more.
//!
//! Children are made by the keeper, which outlives this process. [`Engine::start`] takes the link to one; an engine
//! for a short-lived program ([`Engine::embedded`]) runs the very same keeper code in a thread of its own.
//!
//! Orders that everything else rests on: output is in the journal before anyone is told; stdin is in its log before it
//! is acknowledged; the keeper holds a descriptor before a byte depends on it; the exit is recorded once, last.

#![forbid(unsafe_code)]

mod adoption;
mod birth;
mod child;
mod chores;
mod config;
mod descriptors;
mod ending;
mod engine;
mod environment;
mod error;
mod feeding;
mod groups;
mod handover;
mod hearing;
mod housekeeping;
mod input;
mod kill;
mod link;
mod loading;
mod own;
mod process;
mod pumping;
mod reactor;
#[cfg(test)]
mod reactor_tests;
mod readers;
mod shared;
mod spares;
mod spec;
mod starting;
mod stopping;
mod store;
mod subscription;
mod syncing;
mod table;

pub use config::{Config, Counts, Lacks};
pub use engine::{Engine, Lifecycle, Notice, Replacement};
pub use environment::Environment;
pub use error::Error;
pub use kill::{KillReport, Ladder, Reach};
pub use outpost_journal::{Accepted, Batch, Ended, FRAME_BYTES, Frame, Stream};
pub use outpost_keeper::{Said, What};
pub use outpost_sys::pidfd::{Exit, How};
pub use outpost_sys::pty::Size;
pub use outpost_sys::signal::Signal;
pub use outpost_sys::spawn::{Failure, ResourceLimit, Step};
pub use process::{ExitUnknown, Info, Process, Status};
pub use spec::{AtCap, Drain, Given, Key, OnTaken, Rest, Slot, Spawn, Stdio};
pub use stopping::Stopped;
pub use subscription::Subscription;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
