//! The control socket: the JSON-lines protocol between the `outpost` command line and the daemon, for the processes of
//! every face.
//!
//! The protocol is private. Both ends are the same binary, or one end is a newer version after an upgrade. Each end
//! ignores unknown members.
//!
//! # Theory of operation
//!
//! A name is looked up among the processes of all faces; an ambiguous one is refused with the candidates. A connection
//! has the input of a process while it is attached; a second one watches unless it steals the input. Input of other
//! faces' processes is never taken, since those faces count their offsets. Taking the input waits for a write under
//! way, so that offsets stay true.
//!
//! Requests under way are bounded by weight as in the relay. When a client disconnects, input that waits for room is
//! dropped, and every other request completes.
//!
//! Processes of `outpost exec` are bound to their connection: they get SIGHUP, and SIGKILL three seconds later, when it
//! closes. A new worker gives their clients ten seconds to reconnect. A sandbox is planned and built in the worker, as in
//! the exec face. SIGINT, SIGQUIT and SIGHUP to a confined command reach its whole process group, as from a terminal.

#![forbid(unsafe_code)]

pub mod client;
mod client_bound;
mod input_lock;
mod lookup;
mod methods;
mod peer;
mod sandboxing;
mod server;
mod spawn;
mod stream;
pub mod wire;

pub use methods::exit_status;
pub use server::{DaemonOps, Declined, serve};
