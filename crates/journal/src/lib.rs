//! One process's record on disk: output segments, an index of runs, a stdin log, and their recovery.
//!
//! # Theory of operation
//!
//! Output moves by splice(2) from the child's pipe into the stream's current *segment*, a file of at most
//! [`SEGMENT_BYTES`]. The size of that file is the truth: a byte is in the pipe or in the file, never only in our
//! memory. After each splice one *record* is appended to the index: a *run* of so many bytes of this stream, whose
//! first *frame* has this sequence number. A frame is at most [`FRAME_BYTES`]; a run of n bytes has as many
//! consecutive frames as it takes, by arithmetic, without a record each. Nobody sees a frame before its record is
//! written, so numbers that a reader has seen never change their content.
//!
//! Killed after the splice and before the record: the bytes past the last run become a new run at the next open;
//! nobody has seen them under another number. Killed inside the record: its checksum is wrong and it counts as not
//! written.
//!
//! The thread that moves bytes only writes to files that are open. The next segment is created, and dropped segments are
//! removed, by a [`Chore`] that another thread carries out.
//!
//! A power failure leaves files that no writer left: tails are lost, blocks are zeros, names are missing.
//! [`Writer::salvage`] opens such a journal of a process that has ended. It indexes every byte that is on the disk, and
//! puts a record where bytes or numbers are missing. [`Journal::sync`] bounds what a power failure takes, and notes how
//! far the bytes are safe: only zeros beyond that can be blocks that were never written.
//!
//! Readers ([`Cursor`]) are positions over the same files, any number at once. Replay and live reading are one code
//! path; the writer never waits for a reader and keeps no queue for one.
//!
//! The stdin log ([`StdinLog`]) is the same idea backwards: its end says how many bytes were accepted, and the
//! position of an open file description that the keeper shares says how many were delivered.

#![forbid(unsafe_code)]

mod chore;
mod cursor;
mod error;
mod record;
mod recovery;
mod salvage;
mod segment;
mod stdin;
mod sync;
mod writer;

pub use chore::{Chore, Done, OutputDone, StdinDone};
pub use cursor::{Batch, Cursor, Ended, Frame, Patience};
pub use error::Error;
pub use record::Stream;
pub use salvage::Boot;
pub use segment::SEGMENT_BYTES;
pub use stdin::{Accepted, Delivered, StdinLog};
pub use sync::Synced;
pub use writer::{Journal, Pumped, Writer};

/// The most bytes one frame carries.
pub const FRAME_BYTES: u64 = 32 * 1024;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
