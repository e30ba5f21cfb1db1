//! Cursors: a reader's position in a journal. Replay and live reading use the same code.

use crate::journal::Journal;
use crate::record::{RECORD_BYTES, Record, RecordBody, Stream};
use crate::segment::{self, SEGMENT_BYTES};
use crate::{Error, FRAME_BYTES, Result};
use outpost_sys::Errno;
use outpost_sys::file::{self, Open};
use outpost_sys::pidfd::Exit;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The maximum number of frames in a batch, which bounds a batch of tiny frames.
const FRAMES_MAX: usize = 4096;

/// Whether a read may block on disk I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadMode {
    /// Fails with [`Error::NotCached`] instead of disk I/O. For the async runtime.
    CachedOnly,
    /// Blocks on disk I/O.
    MayBlock,
}

/// One frame of output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub seq: u64,
    pub stream: Stream,
    pub time_ms: u64,
    range: Range<usize>,
}

/// The exit of a process: the last item that its readers get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub seq: u64,
    pub time_ms: u64,
    pub exit: Exit,
}

/// The result of one read. Reused, so that reading does not allocate.
#[derive(Default)]
pub struct Batch {
    data: Vec<u8>,
    frames: Vec<Frame>,
    /// Frames before this sequence number were dropped and cannot be read.
    pub first_kept: Option<u64>,
    /// The process has exited; nothing follows.
    pub ended: Option<Ended>,
}

impl Batch {
    /// The frames in sequence order, each with its bytes.
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
    /// The record that contains `next_seq`, when known.
    record: Option<u64>,
    usage: Option<(u32, u32, u32)>,
    /// The writer's, or opened by the first read. A journal without readers and writers holds no descriptor.
    index: Option<Arc<Index>>,
    open: [Option<(u64, OwnedFd)>; 2],
}

/// An open index.
pub(crate) struct Index {
    pub(crate) file: OwnedFd,
    pub(crate) path: PathBuf,
}

impl Cursor {
    /// Starts after `seq`: the first frame read is the next one. 0 starts at the beginning.
    pub fn after(journal: Arc<Journal>, seq: u64) -> Cursor {
        let next_seq = seq.saturating_add(1);
        Cursor { journal, next_seq, record: None, usage: None, index: None, open: [None, None] }
    }

    /// Starts at the frame that contains the first of the last `bytes` bytes of output.
    pub fn tail(journal: Arc<Journal>, bytes: u64) -> Result<Cursor> {
        let mut cursor = Cursor::after(journal, 0);
        let first_kept = cursor.journal.first_seq.load(Ordering::Acquire);
        let mut record = cursor.journal.published_records.load(Ordering::Acquire);
        let index = cursor.index()?;
        let mut left = bytes;
        cursor.next_seq = cursor.journal.last_seq() + 1;
        while left > 0 && record > 0 {
            record -= 1;
            // A record that cannot be decoded belongs to the punched head.
            let Some(found) = index.record(record)? else { break };
            let RecordBody::Run { len, .. } = found.body else { continue };
            if found.seq < first_kept {
                break;
            }
            let len = u64::from(len);
            cursor.next_seq = found.seq + len.saturating_sub(left) / FRAME_BYTES;
            left = left.saturating_sub(len);
        }
        Ok(cursor)
    }

    /// The sequence number of the next frame.
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Fills `batch` with up to about `bytes_max` unread bytes; leaves it empty when there are none. After an
    /// error the cursor is unchanged.
    pub fn read(&mut self, batch: &mut Batch, bytes_max: usize, mode: ReadMode) -> Result<()> {
        loop {
            batch.clear();
            let before = (self.next_seq, self.record, self.usage);
            let first_kept = self.journal.first_seq.load(Ordering::Acquire);
            if self.next_seq < first_kept {
                batch.first_kept = Some(first_kept);
                self.next_seq = first_kept;
                self.record = None;
            }
            let outcome = self.fill(batch, bytes_max, mode);
            if outcome.is_err() {
                (self.next_seq, self.record, self.usage) = before;
                // The writer dropped the head meanwhile. The next round reports that as `first_kept`.
                if self.journal.first_seq.load(Ordering::Acquire) > first_kept {
                    continue;
                }
                // At the end of the journal, the current record may hold no frame and may have been punched
                // out.
                if self.record.take().is_some() && matches!(outcome, Err(Error::Damaged { .. })) {
                    continue;
                }
            }
            return outcome;
        }
    }

    fn fill(&mut self, batch: &mut Batch, bytes_max: usize, mode: ReadMode) -> Result<()> {
        let published = self.journal.published_records.load(Ordering::Acquire);
        let index = self.index()?;
        let mut record = match self.record {
            Some(record) => record,
            // At the beginning there is nothing to search for.
            None if self.next_seq == 1 => 0,
            None => find_record(&index, self.next_seq, published, mode)?,
        };
        let mut ranges = [Span::default(), Span::default()];
        let mut block = Block::default();
        while record < published {
            let Some(found) = block.get(&index, record, published, mode)? else {
                return Err(Error::Damaged { path: index.path.clone(), seq: self.next_seq });
            };
            match found.body {
                RecordBody::Run { stream, offset, len } => {
                    let run =
                        Run { stream, offset, len: u64::from(len), seq: found.seq, time_ms: found.time_ms };
                    if !self.take_run(&run, batch, &mut ranges, bytes_max) {
                        break;
                    }
                }
                RecordBody::Usage { user_ms, system_ms, rss_max_kb } => {
                    self.usage = Some((user_ms, system_ms, rss_max_kb));
                }
                RecordBody::Exit { cause } if found.seq >= self.next_seq => {
                    // Usage and exit have the same sequence number. The search of a new reader finds the
                    // exit.
                    if self.usage.is_none()
                        && record > 0
                        && let Some(before) = Block::default().get(&index, record - 1, published, mode)?
                        && let RecordBody::Usage { user_ms, system_ms, rss_max_kb } = before.body
                    {
                        self.usage = Some((user_ms, system_ms, rss_max_kb));
                    }
                    let (user_ms, system_ms, rss_max_kb) = self.usage.unwrap_or_default();
                    let exit = Exit { cause, user_ms, system_ms, rss_max_kb };
                    batch.ended = Some(Ended { seq: found.seq, time_ms: found.time_ms, exit });
                    self.next_seq = found.seq + 1;
                }
                // The sequence numbers in between were lost.
                RecordBody::Lost { .. } => self.next_seq = self.next_seq.max(found.seq),
                RecordBody::Exit { .. }
                | RecordBody::Started { .. }
                | RecordBody::StdinClosed { .. }
                | RecordBody::StreamEnd { .. } => {}
            }
            record += 1;
        }
        self.record = Some(record);
        self.load(batch, &ranges, mode)
    }

    /// Adds the next frames of a run that fit. Returns false when some did not fit.
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
            // Relative to the stream's span. `load` makes it absolute.
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

    /// Reads the bytes of both spans into one buffer and points the frames at them.
    fn load(&mut self, batch: &mut Batch, spans: &[Span; 2], mode: ReadMode) -> Result<()> {
        let first_len = spans[0].len() as usize;
        batch.data.resize(first_len + spans[1].len() as usize, 0);
        let (stdout, stderr) = batch.data.split_at_mut(first_len);
        self.load_span(Stream::Stdout, &spans[0], stdout, mode)?;
        self.load_span(Stream::Stderr, &spans[1], stderr, mode)?;
        for frame in batch.frames.iter_mut().filter(|frame| frame.stream == Stream::Stderr) {
            frame.range = frame.range.start + first_len..frame.range.end + first_len;
        }
        Ok(())
    }

    fn load_span(&mut self, stream: Stream, span: &Span, mut data: &mut [u8], mode: ReadMode) -> Result<()> {
        let mut offset = span.begin;
        while !data.is_empty() {
            let number = segment::segment_of(offset);
            let here = (SEGMENT_BYTES - segment::offset_in_segment(offset)).min(data.len() as u64) as usize;
            let (part, rest) = data.split_at_mut(here);
            let path = segment::path(&self.journal.dir, stream, number);
            let file = self.segment(stream, number)?;
            let read = read(file, part, segment::offset_in_segment(offset), mode);
            if read.map_err(|errno| read_error(errno, mode, &path))? != here {
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

/// The bytes of one stream that a batch needs. They are contiguous: a batch ends before a gap.
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

/// A cached piece of the index.
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

    /// The record of this number, if it can be decoded.
    fn get(&mut self, index: &Index, number: u64, published: u64, mode: ReadMode) -> Result<Option<Record>> {
        if !(self.begin..self.begin + self.records).contains(&number) {
            let wanted =
                (published.saturating_sub(number)).min(Block::RECORDS as u64) as usize * RECORD_BYTES;
            let at = number * RECORD_BYTES as u64;
            let read = index.read(&mut self.bytes[..wanted], at, mode)?;
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
        self.read(&mut bytes, number * RECORD_BYTES as u64, ReadMode::MayBlock)?;
        Ok(Record::decode(&bytes))
    }

    fn read(&self, buffer: &mut [u8], at: u64, mode: ReadMode) -> Result<usize> {
        read(&self.file, buffer, at, mode).map_err(|errno| read_error(errno, mode, &self.path))
    }
}

fn read(file: &OwnedFd, buffer: &mut [u8], at: u64, mode: ReadMode) -> outpost_sys::Result<usize> {
    match mode {
        ReadMode::CachedOnly => file::read_cached_at(file, buffer, at),
        ReadMode::MayBlock => file::read_full_at(file, buffer, at),
    }
}

fn read_error(errno: Errno, mode: ReadMode, path: &Path) -> Error {
    match (errno, mode) {
        (Errno::AGAIN, ReadMode::CachedOnly) => Error::NotCached,
        _ => Error::io("read", path, errno),
    }
}

/// The last record whose sequence number is at most `seq`: the record that contains it, if any does.
pub(crate) fn find_record(index: &Index, seq: u64, published: u64, mode: ReadMode) -> Result<u64> {
    let (mut low, mut high) = (0, published);
    while low < high {
        let middle = low + (high - low) / 2;
        let mut bytes = [0; RECORD_BYTES];
        index.read(&mut bytes, middle * RECORD_BYTES as u64, mode)?;
        // A record that cannot be decoded belongs to the punched head and precedes every wanted one.
        if Record::decode(&bytes).is_none_or(|record| record.seq <= seq) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(low.saturating_sub(1))
}
