//! Work on the files of a journal that may wait for the disk: the thread that moves bytes hands it to another thread.
//!
//! [`Writer::chores`](crate::Writer::chores) and [`StdinLog::chores`] return what is wanted. Any thread carries a chore
//! out, those of one journal in their order, and the result goes back to the writer or the log. A worker that is killed in
//! between leaves an empty segment, an empty part, or a segment that is still to be dropped; recovery accepts all three.

use crate::cursor::{Index, find_record};
use crate::record::{RECORD_BYTES, Stream};
use crate::stdin::Part;
use crate::{Error, Patience, Result, StdinLog, segment};
use outpost_sys::Errno;
use outpost_sys::file;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

/// The unit in which the head of an index is given back.
pub(crate) const INDEX_BLOCK_BYTES: u64 = 4096;

/// One piece of work. Blocking; never carry one out on a thread that serves others.
pub struct Chore(pub(crate) Work);

/// What became of a chore. It belongs to the writer or to the stdin log that asked for it.
pub enum Done {
    Output(OutputDone),
    /// A stdin log was begun. The caller has the keeper hold the reader before the first delivery.
    Log(Result<StdinLog>),
    Stdin(StdinDone),
}

/// Work that was done for a [`Writer`](crate::Writer).
pub struct OutputDone(pub(crate) Output);

/// Work that was done for a [`StdinLog`].
pub struct StdinDone(pub(crate) Stdin);

pub(crate) enum Work {
    /// Create or open a segment; close files that are no longer written.
    Segment { dir: PathBuf, stream: Stream, number: u64, unused: Vec<OwnedFd> },
    /// Remove segments that no reader is promised any more, then give back the index before them.
    Drop { dir: PathBuf, segments: Vec<(Stream, u64)>, head: Option<Head> },
    /// Begin a stdin log.
    Log { path: PathBuf },
    /// Begin the part of a stdin log whose first byte is at `base`.
    Part { path: PathBuf, base: u64 },
    /// Remove parts that are delivered, and close their files.
    RemoveParts { path: PathBuf, bases: Vec<u64>, unused: Vec<Arc<OwnedFd>> },
    /// Cut a part down to what was accepted.
    Cut { file: Arc<OwnedFd>, size: u64 },
}

/// The part of an index that may be given back: blocks from `begin` to the record of `first_seq`.
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
    /// How many segments were removed, and the byte before which the index was given back.
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
    pub fn carry_out(self) -> Done {
        match self.0 {
            Work::Segment { dir, stream, number, unused } => {
                drop(unused);
                let outcome = segment::create(&dir, stream, number);
                Done::Output(OutputDone(Output::Segment { stream, number, outcome }))
            }
            Work::Drop { dir, segments, head } => {
                // In their order, and not past a failure: recovery takes a gap for damage.
                let remove = |(stream, number): &(Stream, u64)| segment::remove(&dir, *stream, *number);
                let failed = segments.iter().map(remove).enumerate().find_map(|(at, outcome)| {
                    outcome.err().map(|error| Output::Dropped { removed: at, outcome: Err(error) })
                });
                let dropped = failed.unwrap_or_else(|| Output::Dropped {
                    removed: segments.len(),
                    outcome: head.map_or(Ok(None), |head| head.give_back()),
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
                // If even this fails, the offset that the sender repeats still fits.
                let _counted_twice = file::set_size(&*file, size);
                Done::Stdin(StdinDone(Stdin::Cut))
            }
        }
    }
}

impl Head {
    /// Whether there can be a block to give back.
    pub(crate) fn is_worth_it(&self) -> bool {
        self.records * RECORD_BYTES as u64 >= self.begin + INDEX_BLOCK_BYTES
    }

    fn give_back(self) -> Result<Option<u64>> {
        let record = find_record(&self.index, self.first_seq, self.records, Patience::Disk)?;
        let end = record * RECORD_BYTES as u64 / INDEX_BLOCK_BYTES * INDEX_BLOCK_BYTES;
        if end <= self.begin {
            return Ok(None);
        }
        match file::punch_hole(&self.index.file, self.begin, end - self.begin) {
            Ok(()) => Ok(Some(end)),
            // A file system without holes keeps the index; the segments are what matters.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
            Err(errno) => Err(Error::io("shrink", &self.index.path, errno)),
        }
    }
}
