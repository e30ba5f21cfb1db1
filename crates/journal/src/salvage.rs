//! Salvage: opens the journal of a process that has exited, after a power failure or disk damage. Every byte
//! that is on disk stays readable.

use crate::journal::index_path;
use crate::record::{RECORD_BYTES, Record, RecordBody, Stream};
use crate::recovery::{self, SEQ_MAX, Sizes};
use crate::segment::{self, SEGMENT_BYTES};
use crate::sync;
use crate::writer::{Writer, now_ms};
use crate::{Error, Result};
use outpost_sys::file::{self, Open};
use std::os::fd::OwnedFd;
use std::path::Path;

/// How much is read at a time.
const BLOCK_BYTES: usize = 64 * 1024;

/// In which boot of the host the journal was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boot {
    /// This boot: the page cache was never lost, so all bytes are the process's.
    Same,
    /// An earlier boot: unsynced bytes may be lost. Unsynced zeros at the end of a stream are taken for
    /// blocks that the file system never wrote, and are cut off.
    Another,
}

impl Writer {
    /// Opens the journal of a process that has exited. Sequence numbers do not change, except after damage
    /// that left more bytes than numbers. Blocks on the disk if the index must be rewritten.
    pub fn salvage(dir: &Path, bytes_max: u64, boot: Boot) -> Result<Writer> {
        if boot == Boot::Another {
            cut_zeros(dir)?;
        }
        let path = index_path(dir);
        let open = || file::open(&path, Open::Create).map_err(|errno| Error::io("open", &path, errno));
        let index = open()?;
        let scan = recovery::scan_index(dir, &index)?;
        let size = file::size(&index).map_err(|errno| Error::io("stat", &path, errno))?;
        let is_whole = scan.state.records * RECORD_BYTES as u64 == size
            && recovery::unreachable(&scan.state, &scan.sizes).next().is_none()
            && !(boot == Boot::Another && scan.has_unindexed_bytes());
        if is_whole {
            let writer = Writer::resume(dir, index, scan.state, bytes_max)?;
            writer.journal().assume_synced();
            return Ok(writer);
        }
        RebuiltIndex::new(known_records(&index, &path)?, scan.sizes).write(dir)?;
        let index = open()?;
        let state = recovery::repair(dir, &index)?;
        Writer::resume(dir, index, state, bytes_max)
    }
}

/// Truncates zeros at the end of each stream, down to the synced watermark.
fn cut_zeros(dir: &Path) -> Result<()> {
    let synced = sync::read_watermark(dir);
    let sizes = recovery::sizes(dir)?;
    let mut ends = [0; 2];
    for stream in Stream::ALL {
        for (number, size) in sizes[stream.index()].iter().rev() {
            let begin = number * SEGMENT_BYTES;
            let kept = synced[stream.index()].saturating_sub(begin).min(*size);
            let path = segment::path(dir, stream, *number);
            let cut = || -> outpost_sys::Result<u64> {
                let segment = file::open(&path, Open::ReadWrite)?;
                let end = end_of_nonzero(&segment, kept, *size)?;
                if end < *size {
                    file::set_size(&segment, end)?;
                }
                Ok(end)
            };
            let end = cut().map_err(|errno| Error::io("truncate", &path, errno))?;
            if end > 0 || begin < synced[stream.index()] {
                ends[stream.index()] = begin + end;
                break;
            }
            segment::remove(dir, stream, *number)?;
        }
    }
    // With a new watermark the next open need not read these bytes again. A failure to write it costs only
    // that read.
    if ends != synced {
        let _read_again = sync::write_watermark(dir, ends);
    }
    Ok(())
}

/// The end of the last nonzero byte between `begin` and `end`; `begin` if there is none.
fn end_of_nonzero(segment: &OwnedFd, begin: u64, mut end: u64) -> outpost_sys::Result<u64> {
    let mut block = vec![0; BLOCK_BYTES];
    while end > begin {
        let from = end.saturating_sub(BLOCK_BYTES as u64).max(begin);
        let part = &mut block[..(end - from) as usize];
        let read = file::read_full_at(segment, part, from)?;
        if let Some(last) = part[..read].iter().rposition(|byte| *byte != 0) {
            return Ok(from + last as u64 + 1);
        }
        end = from;
    }
    Ok(begin)
}

/// Every record of the index with a valid checksum, at any offset.
fn known_records(index: &OwnedFd, path: &Path) -> Result<Vec<Record>> {
    let (mut records, mut block, mut at) = (Vec::new(), vec![0; BLOCK_BYTES], 0);
    loop {
        let read =
            file::read_full_at(index, &mut block, at).map_err(|errno| Error::io("read", path, errno))?;
        let (found, _) = block[..read].as_chunks::<RECORD_BYTES>();
        records.extend(found.iter().filter_map(Record::decode));
        if read < BLOCK_BYTES {
            return Ok(records);
        }
        at += read as u64;
    }
}

/// The bytes of a stream from `offset` to `end`.
#[derive(Clone, Copy)]
struct Span {
    stream: Stream,
    offset: u64,
    end: u64,
}

/// An index rebuilt from the remaining records and segments.
struct RebuiltIndex {
    records: Vec<Record>,
    sizes: Sizes,
    next_seq: u64,
    time_ms: u64,
    /// Per stream, the offset up to which the bytes are indexed.
    ends: [u64; 2],
}

impl RebuiltIndex {
    fn new(known: Vec<Record>, sizes: Sizes) -> RebuiltIndex {
        let time_ms = known.first().map_or_else(now_ms, |record| record.time_ms);
        let mut rebuilt = RebuiltIndex { records: Vec::new(), sizes, next_seq: 1, time_ms, ends: [0; 2] };
        let started = known.iter().find(|record| matches!(record.body, RecordBody::Started { .. }));
        rebuilt.records.extend(started.map(|record| Record { seq: 1, ..*record }));
        let runs = plausible_runs(&known);
        for (at, (run, seq, time_ms)) in runs.iter().enumerate() {
            if *seq > rebuilt.next_seq {
                // Records are missing here. The bytes they covered precede the next run of their stream.
                for stream in Stream::ALL {
                    let next = runs[at..].iter().find(|(run, ..)| run.stream == stream);
                    rebuilt.index_up_to(stream, next.map_or(SEQ_MAX, |(run, ..)| run.offset));
                }
            }
            rebuilt.time_ms = *time_ms;
            rebuilt.index_up_to(run.stream, run.offset);
            rebuilt.index(*run, *seq);
        }
        for stream in Stream::ALL {
            rebuilt.index_up_to(stream, SEQ_MAX);
        }
        rebuilt.append_exit(&known);
        rebuilt
    }

    /// Indexes the bytes of a stream before `end` that are on disk and that no record covers.
    fn index_up_to(&mut self, stream: Stream, end: u64) {
        let begin = self.ends[stream.index()];
        let segments: Vec<u64> = self.sizes[stream.index()]
            .range(segment::segment_of(begin)..)
            .map(|(number, _)| *number)
            .collect();
        for number in segments {
            let offset = begin.max(number * SEGMENT_BYTES);
            let span = Span { stream, offset, end: end.min((number + 1) * SEGMENT_BYTES) };
            self.index(span, 0);
        }
    }

    /// Indexes the bytes of a span within one segment that are on disk, under this sequence number or a later
    /// one.
    fn index(&mut self, span: Span, seq: u64) {
        let Span { stream, offset, end } = span;
        let number = segment::segment_of(offset);
        let size = self.sizes[stream.index()].get(&number).copied().unwrap_or(0);
        let end = end.min(number * SEGMENT_BYTES + size);
        if offset >= end {
            return;
        }
        if offset != self.ends[stream.index()] || seq > self.next_seq {
            self.next_seq = self.next_seq.max(seq);
            self.add(RecordBody::Lost { stream, offset });
        }
        self.add(RecordBody::Run { stream, offset, len: (end - offset) as u32 });
        self.ends[stream.index()] = end;
    }

    /// Adds the records of the end of stdin and the exit.
    fn append_exit(&mut self, known: &[Record]) {
        let closed = known.iter().rfind(|record| matches!(record.body, RecordBody::StdinClosed { .. }));
        if let Some(record) = closed {
            self.add(record.body);
        }
        let exit = known.iter().rposition(|record| matches!(record.body, RecordBody::Exit { .. }));
        if let Some(at) = exit {
            self.time_ms = known[at].time_ms;
            let seq = known[at].seq.min(SEQ_MAX);
            if seq > self.next_seq {
                self.next_seq = seq;
                self.add(RecordBody::Lost {
                    stream: Stream::Stdout,
                    offset: self.ends[Stream::Stdout.index()],
                });
            }
            let usage = known[..at].iter().rfind(|record| matches!(record.body, RecordBody::Usage { .. }));
            if let Some(record) = usage {
                self.add(record.body);
            }
            self.add(known[at].body);
        }
    }

    fn add(&mut self, body: RecordBody) {
        let record = Record { seq: self.next_seq, time_ms: self.time_ms, body };
        self.next_seq += record.frame_count();
        self.records.push(record);
    }

    /// Replaces the damaged index atomically.
    fn write(&self, dir: &Path) -> Result<()> {
        let (path, new) = (index_path(dir), dir.join("index.new"));
        let bytes: Vec<u8> = self.records.iter().flat_map(Record::encode).collect();
        let write = || -> outpost_sys::Result<()> {
            let file = file::open(&new, Open::Replace)?;
            file::write_all_at(&file, &bytes, 0)?;
            file::sync_data(&file)
        };
        write().map_err(|errno| Error::io("write", &new, errno))?;
        std::fs::rename(&new, &path).map_err(|error| {
            let errno = outpost_sys::Errno::from_io_error(&error).unwrap_or(outpost_sys::Errno::IO);
            Error::io("replace", &path, errno)
        })
    }
}

/// The consistent runs: span, sequence number and time.
fn plausible_runs(known: &[Record]) -> Vec<(Span, u64, u64)> {
    let (mut next_seq, mut ends) = (1, [0; 2]);
    let mut runs = Vec::new();
    for record in known {
        let RecordBody::Run { stream, offset, len } = record.body else { continue };
        let end = offset.saturating_add(len.into());
        let follows = record.seq >= next_seq && offset >= ends[stream.index()];
        let fits = len > 0
            && record.seq <= SEQ_MAX
            && segment::offset_in_segment(offset) + u64::from(len) <= SEGMENT_BYTES;
        if follows && fits && end <= SEQ_MAX {
            (next_seq, ends[stream.index()]) = (record.seq + record.frame_count(), end);
            runs.push((Span { stream, offset, end }, record.seq, record.time_ms));
        }
    }
    runs
}
