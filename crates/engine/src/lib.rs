//! The supervised processes of a worker, on top of keeper and journal.
//!
//! # Theory of operation
//!
//! A [`Process`] is a handle: cheap to clone and usable from any task. One thread, the *reactor*, moves all bytes and
//! changes the state of processes. It splices output into journals, delivers stdin, handles the keeper's events, and
//! records exits. It never blocks: it has one epoll set, and faces send it commands by a bounded queue. Readers bypass
//! it: a [`Subscription`] is a cursor over the files of the journal with a notification about more output.
//!
//! The keeper starts the children and outlives this process. [`Engine::start`] takes the link to it. A short-lived
//! program starts a keeper of its own ([`Engine::with_keeper_process`]). Tests and the benchmark run the same keeper
//! code in a thread ([`Engine::with_keeper_thread`]).
//!
//! A start has one path: [`Engine::spawn`] takes a prepared slot, prepares the child and sends the request; the keeper
//! reports the child as `Starting`, and the reactor writes its description and its start record; the keeper opens the
//! exec gate and reports `Running` or `Failed`; the reactor replies.
//!
//! **Invariants**: output is in the journal before a reader is notified. Stdin is in its log before it is acknowledged.
//! The keeper holds a descriptor before a byte depends on it. The exit is recorded once, last.
//!
//! # Exits and trees
//!
//! The keeper reaps; it is a subreaper, so orphans too. The engine drains output until EOF, or until 100 ms of silence
//! (2 s at most) if a descendant holds the pipe, then writes the exit record, last and once. The relay and exec contracts
//! set 5 s and 2 s; the description carries that to the next worker. Later output of descendants goes to `/dev/null`, so
//! they do not die of SIGPIPE.
//!
//! A tree is killed by `cgroup.kill`. Without a writable cgroup v2 the engine sweeps /proc for the marker
//! `OUTPOST_PROCESS`, the process group and descendants; a file `kill` in the slot directory lets the next worker finish
//! an interrupted sweep. Children of the relay carry no marker, since their environment is part of its contract.
//!
//! # Identity
//!
//! A pid is recycled, so no code signals a number. `sys::identity::Identity` (pid and start time, of this boot) names a
//! process in records and /proc. `sys::pidfd::Pidfd` is the only type that can be signalled. It comes from clone, from the
//! link, or from an open by number that is verified after the open. Before Linux 6.9 the process group of a child is
//! signalled by number, by its parent and before it is reaped.

#![forbid(unsafe_code)]

mod adoption;
mod cgroups;
mod child;
mod chores;
mod config;
mod daemon_fds;
mod descriptors;
mod ending;
mod engine;
mod environment;
mod error;
mod groups;
mod handover;
mod housekeeping;
mod input;
mod keeper_events;
mod kill;
mod launch;
mod link;
mod loading;
mod output;
mod prepare;
mod prepared_slots;
mod process;
mod process_dir;
mod reactor;
#[cfg(test)]
mod reactor_tests;
mod readers;
mod shared;
mod spec;
mod stdin_delivery;
mod stopping;
mod subscription;
mod syncing;
mod table;
mod timers;

pub use config::{Config, Counts, Lacks};
pub use engine::{Engine, Lifecycle, Notice, Replacement};
pub use environment::Environment;
pub use error::Error;
pub use kill::{KillReport, Ladder, Reach};
pub use outpost_journal::{Accepted, Batch, Ended, FRAME_BYTES, Frame, Stream};
pub use outpost_keeper::{Component, Readiness};
pub use outpost_sys::pidfd::{Exit, ExitCause};
pub use outpost_sys::pty::Size;
pub use outpost_sys::signal::Signal;
pub use outpost_sys::spawn::{Failure, ResourceLimit, Step};
pub use process::{ExitUnknown, Info, Process, Status};
pub use spec::{AtCap, Descendants, Drain, Key, OnTaken, OpenFiles, Slot, Spawn, Stdio};
pub use stopping::Stopped;
pub use subscription::Subscription;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
