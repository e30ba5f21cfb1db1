//! The error kernel: the small parent that spawns, holds every descriptor, reaps, and restarts the worker.
//!
//! # Theory of operation
//!
//! The keeper knows nothing of protocols, journals or clients. It has a table of *entries*: a slot number the worker
//! chose, the child's pid and pidfd, how it stands, and descriptors *held* under role numbers that mean something to
//! the worker only. Slot [`OWN_SLOT`] is the daemon itself: its listening sockets and its lock.
//!
//! Worker and keeper talk over a socket pair in fixed messages ([`Request`], [`Event`]). All the keeper ever says of
//! an entry is how it stands now, so a message that was never received (the worker died) needs no repeating protocol:
//! the next worker is told the whole table, with all descriptors.
//!
//! | who dies | what happens |
//! | --- | --- |
//! | worker | a new one is started at once and handed the table; clients wait in the listening sockets' backlog |
//! | worker, ten times killed before one served | it is restarted always, but from then on after 100 ms |
//! | worker, again and again by its own fault | after four quick restarts it is restarted after 1 s to 30 s, for ever while there are children; without children the keeper ends with 1 after ten failures over two minutes, or after five if no worker ever served; SIGHUP restarts at once |
//! | keeper | the worker starts another ([`state::State`] with an empty table) and hands every entry back ([`Request::Adopt`]) |
//! | both at once, under a supervisor that keeps descriptors | the next daemon it starts is given them back ([`Stored`]) |
//! | worker, hung, under a supervisor that wants to hear of us | it is killed, and so replaced |
//! | worker, while the daemon stops | another one is started and ends the processes in order; if none can, they are killed |
//! | keeper is replaced | it checks that the new binary understands its state, then executes it in place: same pid, same children |
//!
//! Nothing here may panic: no unwrapping, no indexing, no allocation that grows with what others send beyond a limit.

#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing, clippy::panic, clippy::unreachable, clippy::exit, clippy::string_slice)]

mod bytes;
mod children;
mod exits;
mod keeper;
mod link;
mod log;
mod message;
mod order;
mod recruits;
mod replace;
mod restarts;
mod spec;
pub mod state;
mod stopping;
mod store;
mod supervisor;
mod table;
mod worker;

pub use keeper::{Keeper, check};
pub use log::begin_anew_if_large;
pub use message::{
    DIRECTORY_TARGET, Event, GATE_TARGET, MESSAGE_BYTES, NOT_ADOPTED, OPENER_TARGET, ORDER_SPEC_BYTES_MAX,
    PROGRAM_TARGET, Request, Roles, Said, Standing, Targets, What,
};
pub use spec::Spec;
pub use store::Stored;
pub use table::{CGROUPS_ROLE, EXITS_ROLE, HELD_MAX, KEPT, NOTIFY_ROLE, OWN_SLOT, SLOT_MIN, STORE_ROLE};

/// The number under which a worker finds its end of the socket pair.
pub const LINK_FD: i32 = 3;

/// Version of the messages. A worker of another version is not given the table.
pub const LINK_VERSION: u32 = 3;
