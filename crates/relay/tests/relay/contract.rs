//! Contract tests: each table corresponds to a section of the document, each reply is compared byte for byte.
//!
//! Where the document does not specify something, a row has the observed behaviour of the original. Where the original has
//! a known defect (reordered stdin, a leftover branch, option injection), a row has the correct behaviour.

mod child;
mod envelope;
mod extract;
mod files;
mod git;
mod kill;
mod params;
mod reattach;
mod server;
mod spawn;
mod stdin;
mod streaming;
mod table;
mod transport;
mod worktree;
