//! The socket behind Outpost's own command line: every process of every face, over JSON lines.
//!
//! This is no contract with anybody outside: the program on both ends is the same binary, or a newer one that was put
//! in place while the other runs. Unknown members are ignored in both directions.

#![forbid(unsafe_code)]

pub mod client;
mod confining;
mod methods;
mod naming;
mod owned;
mod peer;
mod pens;
mod server;
mod starting;
mod stream;
pub mod wire;

pub use confining::Sandboxing;
pub use methods::exit_status;
pub use server::{Declined, Program, serve};
