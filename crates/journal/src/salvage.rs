//! Opening the journal of a process that has ended, whatever a power failure or a damaged disk left of it: every byte
//! that is on the disk stays readable.

use crate::record::{Entry, RECORD_BYTES, Record, Stream};
use crate::recovery::{self, NUMBER_MAX, Sizes};
use crate::segment::{self, SEGMENT_BYTES};
use crate::sync;
use crate::writer::{Writer, index_path, now_ms};
use crate::{Error, Result};
use outpost_sys::file::{self, Open};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Records and bytes read at a time.
const BLOCK_BYTES: usize = 64 * 1024;

/// The boot of the host in which the journal was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boot {
    /// The page cache was never lost: all bytes are those that the process wrote.
    Same,
    /// Unsynced bytes may be lost. Zeros at the end of a stream that were not synced are taken for blocks that the file
    /// system never wrote, and cut off.
    Another,
}

impl Writer {
    /// Opens the journal of a process that has ended. Sequence numbers stay as they were, except behind damage that left
    /// more bytes than numbers. Waits for the disk when the index has to be written anew.
    pub fn salvage(dir: &Path, bytes_max: u64, boot: Boot) -> Result<Writer> {
        if boot == Boot::Another {
            cut_zeros(dir)?;
        }
        let path = index_path(dir);
        let open = || file::open(&path, Open::Create).map_err(|errno| Error::io("open", &path, errno));
        let index = open()?;
        let scan = recovery::survey(dir, &index)?;
        let size = file::size(&index).map_err(|errno| Error::io("look at", &path, errno))?;
        let is_whole = scan.position.records * RECORD_BYTES as u64 == size
            && recovery::unreachable(&scan.position, &scan.sizes).next().is_none()
            && !(boot == Boot::Another && scan.hides_bytes());
        if is_whole {
            let writer = Writer::go_on(dir, index, scan.position, bytes_max)?;
            writer.journal().assume_synced();
            return Ok(writer);
        }
        Rebuilt::new(known_records(&index, &path)?, scan.sizes).write(dir)?;
        let index = open()?;
        let at = recovery::scan(dir, &index)?;
        Writer::go_on(dir, index, at, bytes_max)
    }
}

/// Cuts zeros off the end of each stream, down to what is known to have been synced.
fn cut_zeros(dir: &Path) -> Result<()> {
    let synced = sync::noted(dir);
    let sizes = recovery::sizes(dir)?;
    let mut ends = [0; 2];
    for stream in Stream::ALL {
        for (number, size) in sizes[stream.index()].iter().rev() {
            let begin = number * SEGMENT_BYTES;
            let kept = synced[stream.index()].saturating_sub(begin).min(*size);
            let path = segment::path(dir, stream, *number);
            let cut = || -> outpost_sys::Result<u64> {
                let segment = file::open(&path, Open::ReadWrite)?;
                let end = end_of_bytes(&segment, kept, *size)?;
                if end < *size {
                    file::set_size(&segment, end)?;
                }
                Ok(end)
            };
            let end = cut().map_err(|errno| Error::io("cut", &path, errno))?;
            if end > 0 || begin < synced[stream.index()] {
                ends[stream.index()] = begin + end;
                break;
            }
            segment::remove(dir, stream, *number)?;
        }
    }
    // The next look at this journal need not read it again. Without room for the note it does.
    if ends != synced {
        let _reads_again = sync::note(dir, ends);
    }
    Ok(())
}

/// The end of the last byte between `begin` and `end` that is not zero; `begin` if there is none.
fn end_of_bytes(segment: &OwnedFd, begin: u64, mut end: u64) -> outpost_sys::Result<u64> {
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

/// Every record of the index that has the right checksum, wherever it stands.
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

/// Part of a stream: its bytes from `offset` to `end`.
#[derive(Clone, Copy)]
struct Span {
    stream: Stream,
    offset: u64,
    end: u64,
}

/// An index made anew of the records that are left and the segments there are.
struct Rebuilt {
    records: Vec<Record>,
    sizes: Sizes,
    next_seq: u64,
    time_ms: u64,
    /// Per stream, the offset up to which the bytes are indexed.
    ends: [u64; 2],
}

impl Rebuilt {
    fn new(known: Vec<Record>, sizes: Sizes) -> Rebuilt {
        let time_ms = known.first().map_or_else(now_ms, |record| record.time_ms);
        let mut rebuilt = Rebuilt { records: Vec::new(), sizes, next_seq: 1, time_ms, ends: [0; 2] };
        let started = known.iter().find(|record| matches!(record.entry, Entry::Started { .. }));
        rebuilt.records.extend(started.map(|record| Record { seq: 1, ..*record }));
        let runs = plausible_runs(&known);
        for (at, (run, seq, time_ms)) in runs.iter().enumerate() {
            if *seq > rebuilt.next_seq {
                // Records are missing here. Whatever they told of stands before the next run of its stream.
                for stream in Stream::ALL {
                    let next = runs[at..].iter().find(|(run, ..)| run.stream == stream);
                    rebuilt.index_up_to(stream, next.map_or(NUMBER_MAX, |(run, ..)| run.offset));
                }
            }
            rebuilt.time_ms = *time_ms;
            rebuilt.index_up_to(run.stream, run.offset);
            rebuilt.index(*run, *seq);
        }
        for stream in Stream::ALL {
            rebuilt.index_up_to(stream, NUMBER_MAX);
        }
        rebuilt.end_with(&known);
        rebuilt
    }

    /// Indexes the bytes of a stream before `end` that are on the disk and that no record covers.
    fn index_up_to(&mut self, stream: Stream, end: u64) {
        let begin = self.ends[stream.index()];
        let segments: Vec<u64> =
            self.sizes[stream.index()].range(segment::number(begin)..).map(|(number, _)| *number).collect();
        for number in segments {
            let offset = begin.max(number * SEGMENT_BYTES);
            let span = Span { stream, offset, end: end.min((number + 1) * SEGMENT_BYTES) };
            self.index(span, 0);
        }
    }

    /// Indexes the bytes of a span within one segment that are on the disk, under this number or a later one.
    fn index(&mut self, span: Span, seq: u64) {
        let Span { stream, offset, end } = span;
        let number = segment::number(offset);
        let size = self.sizes[stream.index()].get(&number).copied().unwrap_or(0);
        let end = end.min(number * SEGMENT_BYTES + size);
        if offset >= end {
            return;
        }
        if offset != self.ends[stream.index()] || seq > self.next_seq {
            self.next_seq = self.next_seq.max(seq);
            self.add(Entry::Lost { stream, offset });
        }
        self.add(Entry::Run { stream, offset, len: (end - offset) as u32 });
        self.ends[stream.index()] = end;
    }

    /// Adds what is known of the end.
    fn end_with(&mut self, known: &[Record]) {
        let closed = known.iter().rfind(|record| matches!(record.entry, Entry::StdinClosed { .. }));
        if let Some(record) = closed {
            self.add(record.entry);
        }
        let exit = known.iter().rposition(|record| matches!(record.entry, Entry::Exit { .. }));
        if let Some(at) = exit {
            self.time_ms = known[at].time_ms;
            let seq = known[at].seq.min(NUMBER_MAX);
            if seq > self.next_seq {
                self.next_seq = seq;
                self.add(Entry::Lost { stream: Stream::Stdout, offset: self.ends[Stream::Stdout.index()] });
            }
            let usage = known[..at].iter().rfind(|record| matches!(record.entry, Entry::Usage { .. }));
            if let Some(record) = usage {
                self.add(record.entry);
            }
            self.add(known[at].entry);
        }
    }

    fn add(&mut self, entry: Entry) {
        let record = Record { seq: self.next_seq, time_ms: self.time_ms, entry };
        self.next_seq += record.numbers();
        self.records.push(record);
    }

    /// Puts the index in the place of the damaged one.
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

/// The runs that follow from each other: span, number and time.
fn plausible_runs(known: &[Record]) -> Vec<(Span, u64, u64)> {
    let (mut next_seq, mut ends) = (1, [0; 2]);
    let mut runs = Vec::new();
    for record in known {
        let Entry::Run { stream, offset, len } = record.entry else { continue };
        let end = offset.saturating_add(len.into());
        let follows = record.seq >= next_seq && offset >= ends[stream.index()];
        let fits =
            len > 0 && record.seq <= NUMBER_MAX && segment::place(offset) + u64::from(len) <= SEGMENT_BYTES;
        if follows && fits && end <= NUMBER_MAX {
            (next_seq, ends[stream.index()]) = (record.seq + record.numbers(), end);
            runs.push((Span { stream, offset, end }, record.seq, record.time_ms));
        }
    }
    runs
}
