//! Chores: blocking disk work of a journal, which the reactor thread hands to another thread.
//!
//! [`Writer::chores`](crate::Writer::chores) and [`StdinLog::chores`] return pending chores. Any thread may
//! execute them, those of one journal in order. The result goes back to the writer or the log. A worker that
//! is killed in between leaves an empty segment, an empty part, or a segment that is still to be dropped.
//! Recovery accepts all three.

use crate::cursor::{Index, find_record};
use crate::record::{RECORD_BYTES, Stream};
use crate::stdin::Part;
use crate::{Error, ReadMode, Result, StdinLog, segment};
use outpost_sys::Errno;
use outpost_sys::file;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

/// The unit in which the head of an index is punched out.
pub(crate) const INDEX_BLOCK_BYTES: u64 = 4096;

/// One piece of work. Blocking; never execute it on the reactor thread or an async runtime.
pub struct Chore(pub(crate) Work);

/// The result of a chore. It goes back to the writer or the stdin log that returned the chore.
pub enum Done {
    Output(OutputDone),
    /// A stdin log was created. The caller makes the keeper hold the reader before the first delivery.
    Log(Result<StdinLog>),
    Stdin(StdinDone),
}

/// The result of a chore of a [`Writer`](crate::Writer).
pub struct OutputDone(pub(crate) Output);

/// The result of a chore of a [`StdinLog`].
pub struct StdinDone(pub(crate) Stdin);

pub(crate) enum Work {
    /// Create or open a segment; close files that are no longer written.
    Segment { dir: PathBuf, stream: Stream, number: u64, unused: Vec<OwnedFd> },
    /// Remove dropped segments, then punch out the index before them.
    Drop { dir: PathBuf, segments: Vec<(Stream, u64)>, head: Option<Head> },
    /// Create a stdin log.
    Log { path: PathBuf },
    /// Create the part of a stdin log whose first byte is at `base`.
    Part { path: PathBuf, base: u64 },
    /// Remove delivered parts and close their files.
    RemoveParts { path: PathBuf, bases: Vec<u64>, unused: Vec<Arc<OwnedFd>> },
    /// Truncate a part to the accepted size.
    Cut { file: Arc<OwnedFd>, size: u64 },
}

/// The part of an index that may be punched out: blocks from `begin` to the record of `first_seq`.
pub(crate) struct Head {
    pub(crate) index: Arc<Index>,
    pub(crate) first_seq: u64,
    pub(crate) records: u64,
    pub(crate) begin: u64,
}

pub(crate) enum Output {
    Segment {
        stream: Stream,
        number: u64,
        outcome: Result<OwnedFd>,
    },
    /// The number of removed segments, and the end of the hole in the index.
    Dropped {
        removed: usize,
        outcome: Result<Option<u64>>,
    },
}

pub(crate) enum Stdin {
    Part(Result<Part>),
    Removed,
    Cut,
}

impl Chore {
    pub fn execute(self) -> Done {
        match self.0 {
            Work::Segment { dir, stream, number, unused } => {
                drop(unused);
                let outcome = segment::create(&dir, stream, number);
                Done::Output(OutputDone(Output::Segment { stream, number, outcome }))
            }
            Work::Drop { dir, segments, head } => {
                // In order, and not past a failure: recovery takes a gap for damage.
                let remove = |(stream, number): &(Stream, u64)| segment::remove(&dir, *stream, *number);
                let failed = segments.iter().map(remove).enumerate().find_map(|(at, outcome)| {
                    outcome.err().map(|error| Output::Dropped { removed: at, outcome: Err(error) })
                });
                let dropped = failed.unwrap_or_else(|| Output::Dropped {
                    removed: segments.len(),
                    outcome: head.map_or(Ok(None), |head| head.punch()),
                });
                Done::Output(OutputDone(dropped))
            }
            Work::Log { path } => Done::Log(StdinLog::create(&path)),
            Work::Part { path, base } => Done::Stdin(StdinDone(Stdin::Part(Part::create(&path, base)))),
            Work::RemoveParts { path, bases, unused } => {
                drop(unused);
                crate::stdin::remove_parts(&path, &bases);
                Done::Stdin(StdinDone(Stdin::Removed))
            }
            Work::Cut { file, size } => {
                // If even this fails, the offset that the sender repeats still matches.
                let _uncut = file::set_size(&*file, size);
                Done::Stdin(StdinDone(Stdin::Cut))
            }
        }
    }
}

impl Head {
    /// Whether there may be a whole block to punch out.
    pub(crate) fn spans_a_block(&self) -> bool {
        self.records * RECORD_BYTES as u64 >= self.begin + INDEX_BLOCK_BYTES
    }

    fn punch(self) -> Result<Option<u64>> {
        let record = find_record(&self.index, self.first_seq, self.records, ReadMode::MayBlock)?;
        let end = record * RECORD_BYTES as u64 / INDEX_BLOCK_BYTES * INDEX_BLOCK_BYTES;
        if end <= self.begin {
            return Ok(None);
        }
        match file::punch_hole(&self.index.file, self.begin, end - self.begin) {
            Ok(()) => Ok(Some(end)),
            // A file system without holes keeps the index, which is small.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
            Err(errno) => Err(Error::io("punch a hole in", &self.index.path, errno)),
        }
    }
}
