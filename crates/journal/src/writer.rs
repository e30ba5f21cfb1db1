//! The writer: moves bytes from pipes to segments, appends records, drops the head at the cap.
//!
//! [`Writer::pump`], [`Writer::drop_oldest_segment`] and the functions that append records write to open
//! files only. A [`Chore`] does all other disk work.

use crate::chore::{Chore, Head, INDEX_BLOCK_BYTES, Output, OutputDone, Work};
use crate::cursor::Index;
use crate::journal::{Journal, index_path};
use crate::record::{self, RECORD_BYTES, Record, RecordBody, Stream};
use crate::segment::{self, SEGMENT_BYTES};
use crate::{Error, Result};
use outpost_sys::file::{self, Open};
use outpost_sys::pidfd::Exit;
use outpost_sys::pipe::{self, Content, Moved};
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

/// The maximum size of one splice. A larger one would delay other processes.
const SPLICE_BYTES: u64 = 1024 * 1024;

/// Disk space reserved for the index before its first record.
const INDEX_RESERVED_BYTES: u64 = 4096;

/// The maximum number of records in one append.
const RECORDS_AT_ONCE: usize = 3;

/// The offset in a segment from which on the next segment is created.
const NEXT_CREATED_AT: u64 = SEGMENT_BYTES / 2;

/// A segment on disk, and the sequence number of its last frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) stream: Stream,
    pub(crate) number: u64,
    pub(crate) last_seq: u64,
}

/// The writer's state in memory: empty for a new journal, from recovery for an old one.
#[derive(Default)]
pub(crate) struct JournalState {
    pub(crate) records: u64,
    pub(crate) next_seq: u64,
    pub(crate) first_seq: u64,
    /// Per stream, the offset after the last recorded byte.
    pub(crate) ends: [u64; 2],
    /// Per stream, the bytes after that offset that are in segments but not in a record.
    pub(crate) unindexed: [u64; 2],
    /// In order of creation.
    pub(crate) segments: VecDeque<Segment>,
    pub(crate) stdin_closed: Option<u64>,
    pub(crate) started: Option<(u32, u64)>,
    pub(crate) exit: Option<Exit>,
    /// Bytes of the index that were punched out.
    pub(crate) punched: u64,
}

/// The result of one pump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pumped {
    Moved(Moved),
    /// Bytes stay in the pipe until a chore is done.
    AwaitsChore,
}

/// The state of a stream's next segment.
enum NextSegment {
    Missing,
    Creating,
    Ready(u64, OwnedFd),
}

/// The one writer of a journal.
pub struct Writer {
    journal: Arc<Journal>,
    index: Arc<Index>,
    state: JournalState,
    current: [Option<(u64, OwnedFd)>; 2],
    next: [NextSegment; 2],
    /// Per stream: the last pump found no segment.
    waits: [bool; 2],
    /// Full segments that are still open.
    unused: Vec<OwnedFd>,
    /// Segments to be removed, oldest first. Readers cannot read them any more.
    dropping: Vec<(Stream, u64)>,
    /// A chore is removing those in `dropping`.
    is_dropping: bool,
    /// The chore also punches out the head of the index.
    is_punching: bool,
    bytes_max: u64,
}

impl Writer {
    /// Creates a journal in an existing, empty directory of its own.
    pub fn create(dir: &Path, bytes_max: u64) -> Result<Writer> {
        let path = index_path(dir);
        let index = file::open(&path, Open::Create).map_err(|errno| Error::io("create", &path, errno))?;
        // The start and the exit of a process can then be recorded on a full disk.
        file::reserve(&index, INDEX_RESERVED_BYTES).map_err(|errno| Error::io("reserve", &path, errno))?;
        let state = JournalState { next_seq: 1, first_seq: 1, ..JournalState::default() };
        Ok(Writer::from_state(dir, index, state, bytes_max))
    }

    /// Opens the journal of an earlier writer. Bytes after the last record become a new run.
    pub fn recover(dir: &Path, bytes_max: u64) -> Result<Writer> {
        let path = index_path(dir);
        let index = file::open(&path, Open::Create).map_err(|errno| Error::io("open", &path, errno))?;
        let state = crate::recovery::repair(dir, &index)?;
        Writer::resume(dir, index, state, bytes_max)
    }

    pub(crate) fn resume(dir: &Path, index: OwnedFd, state: JournalState, bytes_max: u64) -> Result<Writer> {
        let mut writer = Writer::from_state(dir, index, state, bytes_max);
        // On a full disk the tail stays unindexed. The next pump retries before it moves anything.
        match writer.index_tails() {
            Err(error) if !error.is_no_space() => Err(error),
            _ => Ok(writer),
        }
    }

    fn from_state(dir: &Path, index: OwnedFd, state: JournalState, bytes_max: u64) -> Writer {
        let index = Arc::new(Index { file: index, path: index_path(dir) });
        let journal = Arc::new(Journal {
            dir: dir.to_owned(),
            index: Arc::downgrade(&index),
            published_records: AtomicU64::new(0),
            last_seq: AtomicU64::new(0),
            first_seq: AtomicU64::new(state.first_seq),
            bytes_kept: AtomicU64::new(0),
            bytes_total: AtomicU64::new(0),
            ends: Default::default(),
            finished: AtomicBool::new(false),
            synced: Mutex::default(),
        });
        let writer = Writer {
            journal,
            index,
            state,
            current: [None, None],
            next: [NextSegment::Missing, NextSegment::Missing],
            waits: [false; 2],
            unused: Vec::new(),
            dropping: Vec::new(),
            is_dropping: false,
            is_punching: false,
            bytes_max,
        };
        writer.publish();
        writer
    }

    /// Changes the cap. Call it before there is output.
    pub fn set_bytes_max(&mut self, bytes_max: u64) {
        self.bytes_max = bytes_max;
    }

    /// The shared state for readers.
    pub fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// Records the start. Idempotent, because a worker may be killed between the start and the record.
    pub fn started(&mut self, pid: i32, start_ticks: u64) -> Result<()> {
        if self.state.started.is_some() {
            return Ok(());
        }
        let pid = pid.cast_unsigned();
        self.append(&[self.record(RecordBody::Started { pid, start_ticks })])?;
        self.state.started = Some((pid, start_ticks));
        Ok(())
    }

    /// The recorded pid and start time, if the process was started.
    pub fn start(&self) -> Option<(i32, u64)> {
        self.state.started.map(|(pid, ticks)| (pid.cast_signed(), ticks))
    }

    /// Records that stdin ends after `at` bytes.
    pub fn close_stdin(&mut self, at: u64) -> Result<()> {
        if self.state.stdin_closed.is_none() {
            self.append(&[self.record(RecordBody::StdinClosed { at })])?;
            self.state.stdin_closed = Some(at);
        }
        Ok(())
    }

    /// After how many bytes stdin ends, if it was closed.
    pub fn stdin_closed(&self) -> Option<u64> {
        self.state.stdin_closed
    }

    /// The exit, if it has been recorded.
    pub fn exit(&self) -> Option<Exit> {
        self.state.exit
    }

    /// Moves bytes from `pipe` into the stream's segment and records them. On an error nothing is lost: bytes
    /// that were not moved are in the pipe, and the next call records moved bytes.
    pub fn pump(&mut self, stream: Stream, pipe: impl AsFd) -> Result<Pumped> {
        self.waits[stream.index()] = false;
        if self.is_busy() {
            return Ok(Pumped::AwaitsChore);
        }
        self.index_tails()?;
        let offset = self.state.ends[stream.index()];
        let room = (SEGMENT_BYTES - segment::offset_in_segment(offset)).min(SPLICE_BYTES) as usize;
        let number = segment::segment_of(offset);
        if !self.is_open(stream, number) {
            // Create no segment, and drop none for it, before there is output.
            let content =
                pipe::peek(&pipe).map_err(|errno| Error::io("poll", Path::new("the output pipe"), errno))?;
            match content {
                Content::Bytes => {}
                Content::Nothing => return Ok(Pumped::Moved(Moved::WouldBlock)),
                Content::End => return Ok(Pumped::Moved(Moved::End)),
            }
        }
        let Some(segment) = self.segment(stream, number) else {
            self.waits[stream.index()] = true;
            return Ok(Pumped::AwaitsChore);
        };
        let moved = pipe::splice_to_file(pipe, segment, segment::offset_in_segment(offset), room)
            .map_err(|errno| Error::io("write", &segment::path(&self.journal.dir, stream, number), errno))?;
        if let Moved::Bytes(count) = moved {
            self.state.unindexed[stream.index()] += count as u64;
            self.append_run(stream, count as u64)?;
        }
        Ok(Pumped::Moved(moved))
    }

    /// Whether nothing can be appended now: a chore punches the index, and an append would wait for the inode
    /// lock.
    pub fn is_busy(&self) -> bool {
        self.is_punching
    }

    /// Pending chores. Each is returned once, and again if it fails.
    pub fn chores(&mut self) -> Vec<Chore> {
        let mut chores = Vec::new();
        for stream in Stream::ALL {
            if let (Some(number), NextSegment::Missing) =
                (self.needed_segment(stream), &self.next[stream.index()])
            {
                self.next[stream.index()] = NextSegment::Creating;
                let (dir, unused) = (self.journal.dir.clone(), std::mem::take(&mut self.unused));
                chores.push(Chore(Work::Segment { dir, stream, number, unused }));
            }
        }
        if !self.dropping.is_empty() && !self.is_dropping {
            let head = self.head();
            (self.is_dropping, self.is_punching) = (true, head.is_some());
            let (dir, segments) = (self.journal.dir.clone(), self.dropping.clone());
            chores.push(Chore(Work::Drop { dir, segments, head }));
        }
        chores
    }

    /// The segment that this stream needs soon, or waits for.
    fn needed_segment(&self, stream: Stream) -> Option<u64> {
        let end = self.state.ends[stream.index()];
        let number = segment::segment_of(end);
        match self.is_open(stream, number) {
            true => (self.state.exit.is_none() && segment::offset_in_segment(end) >= NEXT_CREATED_AT)
                .then_some(number + 1),
            false => self.waits[stream.index()].then_some(number),
        }
    }

    /// Takes the result of a chore. After an error the chore is pending again.
    pub fn take(&mut self, done: OutputDone) -> Result<()> {
        match done.0 {
            Output::Segment { stream, number, outcome } => {
                self.next[stream.index()] = NextSegment::Missing;
                self.next[stream.index()] = NextSegment::Ready(number, outcome?);
            }
            Output::Dropped { removed, outcome } => {
                self.dropping.drain(..removed);
                (self.is_dropping, self.is_punching) = (false, false);
                if let Some(end) = outcome? {
                    self.state.punched = end - INDEX_BLOCK_BYTES;
                    self.publish();
                }
            }
        }
        Ok(())
    }

    /// Records the exit as the last record.
    pub fn finish(&mut self, exit: &Exit) -> Result<()> {
        if self.state.exit.is_some() {
            return Ok(());
        }
        self.index_tails()?;
        self.append(&record::ending(self.state.next_seq, now_ms(), exit))?;
        self.state.exit = Some(*exit);
        // Closed together with the writer, because close(2) may block on the disk.
        self.unused.extend(self.current.iter_mut().filter_map(|current| Some(current.take()?.1)));
        self.journal.finished.store(true, Ordering::Release);
        Ok(())
    }

    /// The last sequence number that the next pump of this stream would drop at the cap, if it would drop
    /// any.
    pub fn would_drop(&self, stream: Stream) -> Option<u64> {
        let number = segment::segment_of(self.state.ends[stream.index()]);
        if self.is_open(stream, number) || self.journal.bytes_kept() + SEGMENT_BYTES <= self.bytes_max {
            return None;
        }
        self.oldest_droppable()
            .and_then(|oldest| self.state.segments.get(oldest))
            .map(|segment| segment.last_seq)
    }

    fn is_open(&self, stream: Stream, number: u64) -> bool {
        self.current[stream.index()].as_ref().is_some_and(|(open, _)| *open == number)
    }

    /// The oldest segment that may be dropped. While the process lives, current segments are never dropped.
    fn oldest_droppable(&self) -> Option<usize> {
        let being_written = |segment: &Segment| {
            self.state.exit.is_none()
                && segment.number == segment::segment_of(self.state.ends[segment.stream.index()])
        };
        self.state.segments.iter().position(|segment| !being_written(segment))
    }

    /// Drops the oldest segment. Returns false when none may be dropped. A chore removes its file.
    pub fn drop_oldest_segment(&mut self) -> bool {
        let Some(oldest) = self.oldest_droppable() else { return false };
        let Segment { stream, number, last_seq } = self.state.segments[oldest];
        // Published before the removal, so a reader that finds the file missing knows the reason.
        self.state.first_seq = self.state.first_seq.max(last_seq + 1);
        self.journal.first_seq.store(self.state.first_seq, Ordering::Release);
        self.state.segments.remove(oldest);
        self.dropping.push((stream, number));
        self.publish();
        true
    }

    /// The open segment of this number, if it exists.
    fn segment(&mut self, stream: Stream, number: u64) -> Option<&OwnedFd> {
        let at = stream.index();
        // Until the chore has removed the dropped segments, another segment would exceed the cap.
        if !self.is_open(stream, number) && self.dropping.is_empty() {
            match std::mem::replace(&mut self.next[at], NextSegment::Missing) {
                NextSegment::Ready(ready, file) if ready == number => {
                    while self.journal.bytes_kept() + SEGMENT_BYTES > self.bytes_max
                        && self.drop_oldest_segment()
                    {}
                    self.unused.extend(self.current[at].take().map(|(_, full)| full));
                    self.note_segment(stream, number);
                    self.current[at] = Some((number, file));
                }
                NextSegment::Creating => self.next[at] = NextSegment::Creating,
                NextSegment::Ready(..) | NextSegment::Missing => {}
            }
        }
        self.current[at].as_ref().filter(|(open, _)| *open == number).map(|(_, file)| file)
    }

    fn note_segment(&mut self, stream: Stream, number: u64) {
        let known =
            self.state.segments.iter().any(|segment| segment.stream == stream && segment.number == number);
        if !known {
            self.state.segments.push_back(Segment { stream, number, last_seq: 0 });
        }
    }

    /// Records runs for bytes that no record covers.
    fn index_tails(&mut self) -> Result<()> {
        for stream in Stream::ALL {
            while self.state.unindexed[stream.index()] > 0 {
                let end = self.state.ends[stream.index()];
                let room = SEGMENT_BYTES - segment::offset_in_segment(end);
                self.note_segment(stream, segment::segment_of(end));
                self.append_run(stream, self.state.unindexed[stream.index()].min(room))?;
            }
        }
        Ok(())
    }

    fn append_run(&mut self, stream: Stream, len: u64) -> Result<()> {
        let offset = self.state.ends[stream.index()];
        // A run never crosses the end of its segment, so its length fits.
        let run = self.record(RecordBody::Run { stream, offset, len: len as u32 });
        self.append(&[run])?;
        self.state.ends[stream.index()] = offset + len;
        self.state.unindexed[stream.index()] -= len;
        let (number, last_seq) = (segment::segment_of(offset), self.state.next_seq - 1);
        let mut newest_first = self.state.segments.iter_mut().rev();
        if let Some(segment) =
            newest_first.find(|segment| segment.stream == stream && segment.number == number)
        {
            segment.last_seq = last_seq;
        }
        self.publish();
        Ok(())
    }

    fn record(&self, body: RecordBody) -> Record {
        Record { seq: self.state.next_seq, time_ms: now_ms(), body }
    }

    /// Writes records after the last one. After a failure the next call overwrites them.
    fn append(&mut self, records: &[Record]) -> Result<()> {
        let mut bytes = [0; RECORDS_AT_ONCE * RECORD_BYTES];
        let (slots, _) = bytes.as_chunks_mut::<RECORD_BYTES>();
        for (slot, record) in slots.iter_mut().zip(records) {
            *slot = record.encode();
        }
        let at = self.state.records * RECORD_BYTES as u64;
        file::write_all_at(&self.index.file, &bytes[..records.len() * RECORD_BYTES], at)
            .map_err(|errno| Error::io("append to", &self.index.path, errno))?;
        self.state.records += records.len() as u64;
        self.state.next_seq += records.iter().map(Record::frame_count).sum::<u64>();
        self.publish();
        Ok(())
    }

    fn publish(&self) {
        let journal = &self.journal;
        let kept: u64 = Stream::ALL.iter().map(|stream| self.kept(*stream)).sum();
        let index = self.state.records * RECORD_BYTES as u64 - self.state.punched;
        journal.bytes_kept.store(kept + index, Ordering::Relaxed);
        journal.bytes_total.store(self.state.ends.iter().sum(), Ordering::Relaxed);
        for (published, end) in journal.ends.iter().zip(self.state.ends) {
            published.store(end, Ordering::Release);
        }
        journal.finished.store(self.state.exit.is_some(), Ordering::Release);
        journal.published_records.store(self.state.records, Ordering::Release);
        journal.last_seq.store(self.state.next_seq - 1, Ordering::Release);
    }

    /// Bytes of a stream on disk: from its oldest segment to its end.
    fn kept(&self, stream: Stream) -> u64 {
        let oldest = self.state.segments.iter().find(|segment| segment.stream == stream);
        oldest.map_or(0, |segment| {
            self.state.ends[stream.index()].saturating_sub(segment.number * SEGMENT_BYTES)
        })
    }

    /// Checkpoint: repeats the state that only records about to be punched out may contain.
    fn checkpoint(&mut self) -> Result<()> {
        let mut records = Vec::with_capacity(RECORDS_AT_ONCE);
        for stream in Stream::ALL {
            records
                .push(self.record(RecordBody::StreamEnd { stream, offset: self.state.ends[stream.index()] }));
        }
        records.extend(self.state.stdin_closed.map(|at| self.record(RecordBody::StdinClosed { at })));
        self.append(&records)
    }

    /// The head of the index that no reader can need any more, if it may contain whole blocks.
    fn head(&mut self) -> Option<Head> {
        // Nothing may follow the exit, not even a checkpoint. A finished journal is removed as a whole.
        if self.state.exit.is_some() {
            return None;
        }
        // The first block stays: it contains the start of the process.
        let begin = self.state.punched + INDEX_BLOCK_BYTES;
        let (first_seq, records) = (self.state.first_seq, self.state.records);
        let head = Head { index: self.index.clone(), first_seq, records, begin };
        // Without room for the checkpoint, the index keeps its head until the next segment is dropped.
        (head.spans_a_block() && self.checkpoint().is_ok()).then_some(head)
    }
}

pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
