//! The contract, row by row: each table reads like a section of the document, each answer is compared byte for byte.
//!
//! Where the document is silent, a row follows what the original was seen to do. Where the original is known to be wrong
//! (scrambled input, a branch left behind, options smuggled in by a name), a row says what is right, and that it does.

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
