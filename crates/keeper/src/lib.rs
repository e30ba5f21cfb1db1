//! The keeper: the small parent process that spawns children, holds their descriptors, reaps them, and restarts the
//! worker.
//!
//! # Theory of operation
//!
//! The keeper has no protocols, journals or clients. It has a table of *entries*: a slot number that the worker chose,
//! the child's pid, pidfd and state, and descriptors that are *held* under role numbers of the worker. Slot
//! [`OWN_SLOT`] is the daemon itself, with its listening sockets and its lock.
//!
//! Worker and keeper exchange messages over a socket pair ([`Request`], [`Event`]). The keeper reports the current
//! state of an entry and no history. So a lost message (the worker died) needs no retransmission: the next worker gets
//! the whole table, with all descriptors.
//!
//! There is one way to start a child: the worker sends [`Request::Spawn`]; the keeper clones and reports the child as
//! `Starting`; the worker writes its description; the keeper opens the child's exec gate; the child executes its
//! program; the keeper reports it as `Running`, or as `Failed` with the step and the errno.
//!
//! | event | reaction |
//! | --- | --- |
//! | the worker dies | the keeper starts a new one at once and sends it the table; clients wait in the backlog of the listening sockets |
//! | ten workers were killed before one served | restarts continue, with a pause of 100 ms |
//! | the worker fails repeatedly | after four restarts at once the pause grows from 1 s to 30 s. With children the keeper never gives up. Without children it exits with 1 after ten failures over two minutes, or after five if no worker ever served. SIGHUP restarts at once |
//! | the keeper dies | the worker starts another one ([`state::State`] with an empty table) and hands every entry over ([`Request::Adopt`]) |
//! | both die, under a supervisor with a descriptor store | the next daemon gets the stored descriptors ([`FdStoreName`]) |
//! | the worker hangs, under a supervisor with a watchdog | the keeper kills it and starts another |
//! | the worker dies while the daemon stops | another one is started and ends the processes in order; if none can, the keeper kills them |
//! | the keeper is replaced | a process of the new binary checks the state; then the keeper executes it: same pid, same children |
//!
//! **Invariant**: nothing here panics. No unwrapping, no indexing, no allocation that grows with input beyond a limit.

#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing, clippy::panic, clippy::unreachable, clippy::exit, clippy::string_slice)]

mod bytes;
mod children;
mod codec;
mod events;
mod exits;
mod fdstore;
mod keeper;
mod link;
mod log;
mod message;
mod replace;
mod restarts;
mod sd_notify;
mod spawn_request;
mod spec;
pub mod state;
mod stopping;
mod table;
mod worker;

pub use fdstore::FdStoreName;
pub use keeper::{Keeper, check};
pub use message::{
    Component, Event, FdRoles, FdTargets, MESSAGE_BYTES_MAX, NOT_ADOPTED, ProcessState, Readiness, Request,
    SpawnOptions,
};
pub use spec::Spec;
pub use table::{CGROUPS_ROLE, EXITS_ROLE, FDS_ONLY, HELD_MAX, NOTIFY_ROLE, OWN_SLOT, SLOT_MIN, STORE_ROLE};

/// The descriptor number of the worker's end of the socket pair.
pub const LINK_FD: i32 = 3;

/// The version of the messages. A worker of another version does not get the table.
pub const LINK_VERSION: u32 = 4;
