//! One process's record on disk: output segments, an index of runs, a stdin log, and their recovery.
//!
//! # Theory of operation
//!
//! Output moves by splice(2) from the child's pipe into the stream's current *segment*, a file of at most
//! [`SEGMENT_BYTES`]. The size of that file is authoritative: a byte is in the pipe or in the file, never
//! only in our memory. After each splice the writer appends one *record* to the index: a *run* of n bytes of
//! this stream, whose first *frame* has this sequence number. A frame has at most [`FRAME_BYTES`]. The frames
//! of a run are computed and need no record each. No reader sees a frame before its record is written, so the
//! content of a sequence number that a reader has seen never changes.
//!
//! If the worker is killed after the splice and before the record, the bytes after the last run become a new
//! run at the next open. No reader has seen them under another number. If the worker is killed inside the
//! write of a record, the checksum of the record is wrong and recovery ignores it.
//!
//! The reactor thread writes to open files only. A [`Chore`] creates the next segment and removes dropped
//! segments on another thread.
//!
//! A power failure leaves files that no writer leaves: tails are lost, blocks are zero, names are missing.
//! [`Writer::salvage`] opens such a journal of a process that has exited. It indexes every byte that is on
//! disk, and adds a record where bytes or numbers are missing. [`Journal::sync`] bounds the loss, and stores
//! a watermark of the synced bytes. Only zeros after the watermark can be blocks that were never written.
//!
//! Readers ([`Cursor`]) are positions over the same files. There may be any number of them. Replay and live
//! reading use the same code. The writer never waits for a reader and keeps no queue for one.
//!
//! The stdin log ([`StdinLog`]) is the same in the other direction. Its size is the number of accepted bytes.
//! The position of an open file description, which the keeper shares, is the number of delivered bytes.

#![forbid(unsafe_code)]

mod chore;
mod cursor;
mod error;
mod journal;
mod record;
mod recovery;
mod salvage;
mod segment;
mod stdin;
mod sync;
mod writer;

pub use chore::{Chore, Done, OutputDone, StdinDone};
pub use cursor::{Batch, Cursor, Ended, Frame, ReadMode};
pub use error::Error;
pub use journal::Journal;
pub use record::Stream;
pub use salvage::Boot;
pub use segment::SEGMENT_BYTES;
pub use stdin::{Accepted, Delivered, StdinLog};
pub use sync::Synced;
pub use writer::{Pumped, Writer};

/// The maximum size of a frame.
pub const FRAME_BYTES: u64 = 32 * 1024;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
