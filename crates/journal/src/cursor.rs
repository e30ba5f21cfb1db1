//! A reader's position in a journal. Replay and live reading are the same: read what is there, then wait for more.

use crate::record::{Entry, RECORD_BYTES, Record, Stream};
use crate::segment::{self, SEGMENT_BYTES};
use crate::writer::Journal;
use crate::{Error, FRAME_BYTES, Result};
use outpost_sys::Errno;
use outpost_sys::file::{self, Open};
use outpost_sys::pidfd::Exit;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The most frames one batch holds, so that a batch of tiny frames is bounded too.
const FRAMES_MAX: usize = 4096;

/// Whether a read may wait for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Fail with [`Error::NotCached`] rather than wait: for threads that serve others.
    None,
    /// Wait for the disk.
    Disk,
}

/// One piece of output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub seq: u64,
    pub stream: Stream,
    pub time_ms: u64,
    range: Range<usize>,
}

/// How a process ended, as the last thing its readers learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub seq: u64,
    pub time_ms: u64,
    pub exit: Exit,
}

/// What one read found. Reused from read to read, so that reading allocates nothing.
#[derive(Default)]
pub struct Batch {
    data: Vec<u8>,
    frames: Vec<Frame>,
    /// The numbers before this one were dropped and cannot be read any more.
    pub first_kept: Option<u64>,
    /// The process has ended; nothing follows.
    pub ended: Option<Ended>,
}

impl Batch {
    /// The frames in the order of their numbers, each with its bytes.
    pub fn frames(&self) -> impl Iterator<Item = (&Frame, &[u8])> {
        self.frames.iter().map(|frame| (frame, self.data.get(frame.range.clone()).unwrap_or_default()))
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.first_kept.is_none() && self.ended.is_none()
    }

    /// Bytes of output in the batch.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    fn clear(&mut self) {
        self.data.clear();
        self.frames.clear();
        self.first_kept = None;
        self.ended = None;
    }
}

/// A position in a journal.
pub struct Cursor {
    journal: Arc<Journal>,
    next_seq: u64,
    /// The record that holds `next_seq`, when known.
    record: Option<u64>,
    usage: Option<(u32, u32, u32)>,
    /// The writer's, or opened with the first read: a journal that nobody reads or writes holds no descriptor.
    index: Option<Arc<Index>>,
    open: [Option<(u64, OwnedFd)>; 2],
}

/// An open index.
pub(crate) struct Index {
    pub(crate) file: OwnedFd,
    pub(crate) path: PathBuf,
}

impl Cursor {
    /// Begins behind `seq`: the first frame read has the next number. 0 begins at the beginning.
    pub fn after(journal: Arc<Journal>, seq: u64) -> Cursor {
        let next_seq = seq.saturating_add(1);
        Cursor { journal, next_seq, record: None, usage: None, index: None, open: [None, None] }
    }

    /// Begins so far back that the last `bytes` bytes of output follow, and what stands before them in their frames.
    pub fn tail(journal: Arc<Journal>, bytes: u64) -> Result<Cursor> {
        let mut cursor = Cursor::after(journal, 0);
        let first_kept = cursor.journal.first_seq.load(Ordering::Acquire);
        let mut record = cursor.journal.published_records.load(Ordering::Acquire);
        let index = cursor.index()?;
        let mut left = bytes;
        cursor.next_seq = cursor.journal.last_seq() + 1;
        while left > 0 && record > 0 {
            record -= 1;
            // What cannot be decoded is the head that was given back.
            let Some(found) = index.record(record)? else { break };
            let Entry::Run { len, .. } = found.entry else { continue };
            if found.seq < first_kept {
                break;
            }
            let len = u64::from(len);
            cursor.next_seq = found.seq + len.saturating_sub(left) / FRAME_BYTES;
            left = left.saturating_sub(len);
        }
        Ok(cursor)
    }

    /// The number of the frame that comes next.
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Fills `batch` with up to about `bytes_max` bytes that have not been read; empty when there are none now.
    /// After an error the cursor stands where it stood.
    pub fn read(&mut self, batch: &mut Batch, bytes_max: usize, patience: Patience) -> Result<()> {
        loop {
            batch.clear();
            let stood = (self.next_seq, self.record, self.usage);
            let first_kept = self.journal.first_seq.load(Ordering::Acquire);
            if self.next_seq < first_kept {
                batch.first_kept = Some(first_kept);
                self.next_seq = first_kept;
                self.record = None;
            }
            let outcome = self.fill(batch, bytes_max, patience);
            if outcome.is_err() {
                (self.next_seq, self.record, self.usage) = stood;
                // The head was dropped under our feet: that is told, not an error.
                if self.journal.first_seq.load(Ordering::Acquire) > first_kept {
                    continue;
                }
                // At the end of what is kept we may stand at a record that holds no frame and was given back.
                if self.record.take().is_some() && matches!(outcome, Err(Error::Damaged { .. })) {
                    continue;
                }
            }
            return outcome;
        }
    }

    fn fill(&mut self, batch: &mut Batch, bytes_max: usize, patience: Patience) -> Result<()> {
        let published = self.journal.published_records.load(Ordering::Acquire);
        let index = self.index()?;
        let mut record = match self.record {
            Some(record) => record,
            // From the beginning there is nothing to look for.
            None if self.next_seq == 1 => 0,
            None => find_record(&index, self.next_seq, published, patience)?,
        };
        let mut ranges = [Span::default(), Span::default()];
        let mut block = Block::default();
        while record < published {
            let Some(found) = block.get(&index, record, published, patience)? else {
                return Err(Error::Damaged { path: index.path.clone(), seq: self.next_seq });
            };
            match found.entry {
                Entry::Run { stream, offset, len } => {
                    let run =
                        Run { stream, offset, len: u64::from(len), seq: found.seq, time_ms: found.time_ms };
                    if !self.take_run(&run, batch, &mut ranges, bytes_max) {
                        break;
                    }
                }
                Entry::Usage { user_ms, system_ms, rss_max_kb } => {
                    self.usage = Some((user_ms, system_ms, rss_max_kb));
                }
                Entry::Exit { how } if found.seq >= self.next_seq => {
                    // Usage and exit have the same number, by which a new reader finds the second of them.
                    if self.usage.is_none()
                        && record > 0
                        && let Some(before) = Block::default().get(&index, record - 1, published, patience)?
                        && let Entry::Usage { user_ms, system_ms, rss_max_kb } = before.entry
                    {
                        self.usage = Some((user_ms, system_ms, rss_max_kb));
                    }
                    let (user_ms, system_ms, rss_max_kb) = self.usage.unwrap_or_default();
                    let exit = Exit { how, user_ms, system_ms, rss_max_kb };
                    batch.ended = Some(Ended { seq: found.seq, time_ms: found.time_ms, exit });
                    self.next_seq = found.seq + 1;
                }
                // The numbers in between were lost.
                Entry::Lost { .. } => self.next_seq = self.next_seq.max(found.seq),
                Entry::Exit { .. }
                | Entry::Started { .. }
                | Entry::StdinClosed { .. }
                | Entry::StreamEnd { .. } => {}
            }
            record += 1;
        }
        self.record = Some(record);
        self.load(batch, &ranges, patience)
    }

    /// Adds the frames of a run that come next and fit; false when some of them did not.
    fn take_run(&mut self, run: &Run, batch: &mut Batch, spans: &mut [Span; 2], bytes_max: usize) -> bool {
        let mut skipped = self.next_seq.saturating_sub(run.seq).saturating_mul(FRAME_BYTES);
        while skipped < run.len {
            let taken = spans[0].len() + spans[1].len();
            if batch.frames.len() >= FRAMES_MAX || (taken > 0 && taken >= bytes_max as u64) {
                return false;
            }
            let len = (run.len - skipped).min(FRAME_BYTES);
            let span = &mut spans[run.stream.index()];
            // Bytes in between were lost.
            if span.len() > 0 && span.end != run.offset + skipped {
                return false;
            }
            span.add(run.offset + skipped, len);
            // Relative to the stream's span; made absolute when the bytes are loaded.
            let begin = (run.offset + skipped - span.begin) as usize;
            let frame = Frame {
                seq: self.next_seq,
                stream: run.stream,
                time_ms: run.time_ms,
                range: begin..begin + len as usize,
            };
            batch.frames.push(frame);
            self.next_seq += 1;
            skipped += len;
        }
        true
    }

    /// Reads the bytes of each stream's span, which lie side by side, and points the frames at them.
    fn load(&mut self, batch: &mut Batch, spans: &[Span; 2], patience: Patience) -> Result<()> {
        let first_len = spans[0].len() as usize;
        batch.data.resize(first_len + spans[1].len() as usize, 0);
        let (stdout, stderr) = batch.data.split_at_mut(first_len);
        self.load_span(Stream::Stdout, &spans[0], stdout, patience)?;
        self.load_span(Stream::Stderr, &spans[1], stderr, patience)?;
        for frame in batch.frames.iter_mut().filter(|frame| frame.stream == Stream::Stderr) {
            frame.range = frame.range.start + first_len..frame.range.end + first_len;
        }
        Ok(())
    }

    fn load_span(
        &mut self,
        stream: Stream,
        span: &Span,
        mut data: &mut [u8],
        patience: Patience,
    ) -> Result<()> {
        let mut offset = span.begin;
        while !data.is_empty() {
            let number = segment::number(offset);
            let here = (SEGMENT_BYTES - segment::place(offset)).min(data.len() as u64) as usize;
            let (part, rest) = data.split_at_mut(here);
            let path = segment::path(&self.journal.dir, stream, number);
            let file = self.segment(stream, number)?;
            let read = read(file, part, segment::place(offset), patience);
            if read.map_err(|errno| unread(errno, patience, &path))? != here {
                return Err(Error::Damaged { path, seq: self.next_seq });
            }
            offset += here as u64;
            data = rest;
        }
        Ok(())
    }

    fn index(&mut self) -> Result<Arc<Index>> {
        if let Some(index) = &self.index {
            return Ok(index.clone());
        }
        let index = match self.journal.index.upgrade() {
            Some(open) => open,
            None => {
                let path = self.journal.index_path();
                let file = file::open(&path, Open::Read).map_err(|errno| Error::io("open", &path, errno))?;
                Arc::new(Index { file, path })
            }
        };
        Ok(self.index.insert(index).clone())
    }

    fn segment(&mut self, stream: Stream, number: u64) -> Result<&OwnedFd> {
        let slot = &mut self.open[stream.index()];
        if slot.as_ref().is_none_or(|(open, _)| *open != number) {
            let path = segment::path(&self.journal.dir, stream, number);
            let file = file::open(&path, Open::Read).map_err(|errno| Error::io("open", &path, errno))?;
            *slot = Some((number, file));
        }
        match slot {
            Some((_, file)) => Ok(file),
            None => Err(Error::Damaged { path: self.journal.dir.clone(), seq: self.next_seq }),
        }
    }
}

struct Run {
    stream: Stream,
    offset: u64,
    len: u64,
    seq: u64,
    time_ms: u64,
}

/// The bytes of one stream that a batch needs. They follow each other without a gap: a batch ends before one.
#[derive(Default)]
struct Span {
    begin: u64,
    end: u64,
}

impl Span {
    fn add(&mut self, offset: u64, len: u64) {
        if self.end == self.begin {
            self.begin = offset;
        }
        self.end = offset + len;
    }

    fn len(&self) -> u64 {
        self.end - self.begin
    }
}

/// A piece of the index in memory.
struct Block {
    begin: u64,
    records: u64,
    bytes: [u8; Block::RECORDS * RECORD_BYTES],
}

impl Default for Block {
    fn default() -> Block {
        Block { begin: 0, records: 0, bytes: [0; Block::RECORDS * RECORD_BYTES] }
    }
}

impl Block {
    const RECORDS: usize = 64;

    /// The record of this number, if it can be read.
    fn get(
        &mut self,
        index: &Index,
        number: u64,
        published: u64,
        patience: Patience,
    ) -> Result<Option<Record>> {
        if !(self.begin..self.begin + self.records).contains(&number) {
            let wanted =
                (published.saturating_sub(number)).min(Block::RECORDS as u64) as usize * RECORD_BYTES;
            let at = number * RECORD_BYTES as u64;
            let read = index.read(&mut self.bytes[..wanted], at, patience)?;
            (self.begin, self.records) = (number, (read / RECORD_BYTES) as u64);
        }
        let (records, _) = self.bytes.as_chunks::<RECORD_BYTES>();
        let in_block = usize::try_from(number - self.begin).unwrap_or(usize::MAX);
        Ok(records.get(in_block).filter(|_| (in_block as u64) < self.records).and_then(Record::decode))
    }
}

impl Index {
    fn record(&self, number: u64) -> Result<Option<Record>> {
        let mut bytes = [0; RECORD_BYTES];
        self.read(&mut bytes, number * RECORD_BYTES as u64, Patience::Disk)?;
        Ok(Record::decode(&bytes))
    }

    fn read(&self, buffer: &mut [u8], at: u64, patience: Patience) -> Result<usize> {
        read(&self.file, buffer, at, patience).map_err(|errno| unread(errno, patience, &self.path))
    }
}

fn read(file: &OwnedFd, buffer: &mut [u8], at: u64, patience: Patience) -> outpost_sys::Result<usize> {
    match patience {
        Patience::None => file::read_cached_at(file, buffer, at),
        Patience::Disk => file::read_full_at(file, buffer, at),
    }
}

fn unread(errno: Errno, patience: Patience, path: &Path) -> Error {
    match (errno, patience) {
        (Errno::AGAIN, Patience::None) => Error::NotCached,
        _ => Error::io("read", path, errno),
    }
}

/// The number of the last record whose sequence number is at most `seq`: the one that holds it, if any does.
pub(crate) fn find_record(index: &Index, seq: u64, published: u64, patience: Patience) -> Result<u64> {
    let (mut low, mut high) = (0, published);
    while low < high {
        let middle = low + (high - low) / 2;
        let mut bytes = [0; RECORD_BYTES];
        index.read(&mut bytes, middle * RECORD_BYTES as u64, patience)?;
        // What cannot be decoded is the head that was given back, and lower than anything wanted.
        if Record::decode(&bytes).is_none_or(|record| record.seq <= seq) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(low.saturating_sub(1))
}
