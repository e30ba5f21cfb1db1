//! The exec face as its clients see it: the real binary on real pipes, answers compared byte for byte.
//!
//! `OUTPOST_EXEC_PEER=/path/to/codex` (0.124.0) runs the same tests against the original, except those named in
//! `runs_on_original`: what we do otherwise on purpose.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod daemon;
mod envelope;
mod escapes;
mod flood;
mod framing;
mod parse_texts;
mod process;
mod recorded;
mod running;
mod sandbox;
mod schema;
mod scope;
mod streaming;
mod table;
mod validation;
