//! The writing side of a journal: moves bytes from pipes to segments, appends records, drops the head at the cap.
//!
//! [`Writer::pump`], [`Writer::shed`] and the functions that append records write to open files only. What else there is to
//! do on the disk they leave to a [`Chore`].

use crate::chore::{Chore, Head, INDEX_BLOCK_BYTES, Output, OutputDone, Work};
use crate::cursor::Index;
use crate::record::{self, Entry, RECORD_BYTES, Record, Stream};
use crate::segment::{self, SEGMENT_BYTES};
use crate::sync::Synced;
use crate::{Error, Result};
use outpost_sys::file::{self, Open};
use outpost_sys::pidfd::Exit;
use outpost_sys::pipe::{self, Content, Moved};
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

/// The most one splice moves. More would only lengthen the time others wait.
const SPLICE_BYTES: u64 = 1024 * 1024;

/// Room on the disk that an index has before its first record.
const INDEX_RESERVED_BYTES: u64 = 4096;

/// The most records one append writes.
const RECORDS_AT_ONCE: usize = 3;

/// From this place in a segment on the next one is wanted.
const NEXT_WANTED_AT: u64 = SEGMENT_BYTES / 2;

/// What cursors see of a journal. The writer publishes here after each record.
pub struct Journal {
    pub(crate) dir: PathBuf,
    /// As long as somebody has it open.
    pub(crate) index: Weak<Index>,
    pub(crate) published_records: AtomicU64,
    last_seq: AtomicU64,
    pub(crate) first_seq: AtomicU64,
    bytes_kept: AtomicU64,
    bytes_total: AtomicU64,
    /// Per stream, the offset after the last recorded byte.
    pub(crate) ends: [AtomicU64; 2],
    finished: AtomicBool,
    pub(crate) synced: Mutex<Option<Synced>>,
}

impl Journal {
    /// The number of the newest frame or exit; 0 when there is none yet.
    pub fn last_seq(&self) -> u64 {
        self.last_seq.load(Ordering::Acquire)
    }

    /// The lowest number that can still be read; 0 when there is none yet.
    pub fn first_seq(&self) -> u64 {
        self.first_seq.load(Ordering::Acquire).min(self.last_seq())
    }

    /// Bytes on disk: output and index.
    pub fn bytes_kept(&self) -> u64 {
        self.bytes_kept.load(Ordering::Relaxed)
    }

    /// Bytes the process has written, kept or not.
    pub fn bytes_total(&self) -> u64 {
        self.bytes_total.load(Ordering::Relaxed)
    }

    /// Whether the exit has been recorded, after which nothing follows.
    pub fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    pub(crate) fn index_path(&self) -> PathBuf {
        index_path(&self.dir)
    }
}

pub(crate) fn index_path(dir: &Path) -> PathBuf {
    dir.join("index")
}

/// A segment on disk, and the number of the last frame in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) stream: Stream,
    pub(crate) number: u64,
    pub(crate) last_seq: u64,
}

/// What is known of a journal without its files: made empty for a new one, by recovery for an old one.
#[derive(Default)]
pub(crate) struct Position {
    pub(crate) records: u64,
    pub(crate) next_seq: u64,
    pub(crate) first_seq: u64,
    /// Per stream, the offset after the last recorded byte.
    pub(crate) ends: [u64; 2],
    /// Per stream, the bytes behind that offset which are in segments and which no record covers.
    pub(crate) unrecorded: [u64; 2],
    /// In the order they were begun.
    pub(crate) segments: VecDeque<Segment>,
    pub(crate) stdin_closed: Option<u64>,
    pub(crate) started: Option<(u32, u64)>,
    pub(crate) exit: Option<Exit>,
    /// Index bytes whose blocks were given back.
    pub(crate) punched: u64,
}

/// What one pump did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pumped {
    Moved(Moved),
    /// Bytes wait in the pipe until a chore is done.
    Waits,
}

/// The next segment of a stream.
enum Next {
    Missing,
    UnderWay,
    Ready(u64, OwnedFd),
}

/// The one writer of a journal.
pub struct Writer {
    journal: Arc<Journal>,
    index: Arc<Index>,
    at: Position,
    current: [Option<(u64, OwnedFd)>; 2],
    next: [Next; 2],
    /// Per stream: the last pump found no segment.
    waits: [bool; 2],
    /// Full segments that are still open.
    unused: Vec<OwnedFd>,
    /// Segments to be removed, oldest first. No reader is promised their frames.
    dropping: Vec<(Stream, u64)>,
    /// A chore removes those in `dropping`.
    is_dropping: bool,
    /// The chore also gives back the head of the index.
    is_punching: bool,
    bytes_max: u64,
}

impl Writer {
    /// Begins a journal in an existing, empty directory of its own.
    pub fn create(dir: &Path, bytes_max: u64) -> Result<Writer> {
        let path = index_path(dir);
        let index = file::open(&path, Open::Create).map_err(|errno| Error::io("create", &path, errno))?;
        // The start and the exit of a process can then be recorded on a full disk.
        file::reserve(&index, INDEX_RESERVED_BYTES).map_err(|errno| Error::io("reserve", &path, errno))?;
        let at = Position { next_seq: 1, first_seq: 1, ..Position::default() };
        Ok(Writer::at(dir, index, at, bytes_max))
    }

    /// Opens what an earlier writer left, however it ended. Bytes past the last record become a new run.
    pub fn recover(dir: &Path, bytes_max: u64) -> Result<Writer> {
        let path = index_path(dir);
        let index = file::open(&path, Open::Create).map_err(|errno| Error::io("open", &path, errno))?;
        let at = crate::recovery::scan(dir, &index)?;
        Writer::go_on(dir, index, at, bytes_max)
    }

    pub(crate) fn go_on(dir: &Path, index: OwnedFd, at: Position, bytes_max: u64) -> Result<Writer> {
        let mut writer = Writer::at(dir, index, at, bytes_max);
        // On a full disk the tail waits: the next pump tries again before it moves anything.
        match writer.record_tails() {
            Err(error) if !error.is_no_space() => Err(error),
            _ => Ok(writer),
        }
    }

    fn at(dir: &Path, index: OwnedFd, at: Position, bytes_max: u64) -> Writer {
        let index = Arc::new(Index { file: index, path: index_path(dir) });
        let journal = Arc::new(Journal {
            dir: dir.to_owned(),
            index: Arc::downgrade(&index),
            published_records: AtomicU64::new(0),
            last_seq: AtomicU64::new(0),
            first_seq: AtomicU64::new(at.first_seq),
            bytes_kept: AtomicU64::new(0),
            bytes_total: AtomicU64::new(0),
            ends: Default::default(),
            finished: AtomicBool::new(false),
            synced: Mutex::default(),
        });
        let writer = Writer {
            journal,
            index,
            at,
            current: [None, None],
            next: [Next::Missing, Next::Missing],
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

    /// Changes the cap, before there is anything to drop.
    pub fn set_bytes_max(&mut self, bytes_max: u64) {
        self.bytes_max = bytes_max;
    }

    /// The side that readers use.
    pub fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// Records the start; done once, also when a worker dies between the start and this.
    pub fn started(&mut self, pid: i32, start_ticks: u64) -> Result<()> {
        if self.at.started.is_some() {
            return Ok(());
        }
        let pid = pid.cast_unsigned();
        self.append(&[self.record(Entry::Started { pid, start_ticks })])?;
        self.at.started = Some((pid, start_ticks));
        Ok(())
    }

    /// The pid and start time recorded, if the process was ever started.
    pub fn start(&self) -> Option<(i32, u64)> {
        self.at.started.map(|(pid, ticks)| (pid.cast_signed(), ticks))
    }

    /// Records that stdin ends after `at` bytes.
    pub fn close_stdin(&mut self, at: u64) -> Result<()> {
        if self.at.stdin_closed.is_none() {
            self.append(&[self.record(Entry::StdinClosed { at })])?;
            self.at.stdin_closed = Some(at);
        }
        Ok(())
    }

    /// After how many bytes stdin ends, if it was closed.
    pub fn stdin_closed(&self) -> Option<u64> {
        self.at.stdin_closed
    }

    /// The exit, if it has been recorded.
    pub fn exit(&self) -> Option<Exit> {
        self.at.exit
    }

    /// Moves what waits in `pipe` into the stream's segment and records it. On an error nothing is lost: what was not
    /// moved is in the pipe, and what was moved but not recorded is recorded by the next call.
    pub fn pump(&mut self, stream: Stream, pipe: impl AsFd) -> Result<Pumped> {
        self.waits[stream.index()] = false;
        if self.is_busy() {
            return Ok(Pumped::Waits);
        }
        self.record_tails()?;
        let offset = self.at.ends[stream.index()];
        let room = (SEGMENT_BYTES - segment::place(offset)).min(SPLICE_BYTES) as usize;
        let number = segment::number(offset);
        if !self.is_open(stream, number) {
            // No segment, and no room made for one, before there is something to put into it.
            let content =
                pipe::look(&pipe).map_err(|errno| Error::io("look at", Path::new("a pipe"), errno))?;
            match content {
                Content::Bytes => {}
                Content::Nothing => return Ok(Pumped::Moved(Moved::WouldBlock)),
                Content::End => return Ok(Pumped::Moved(Moved::End)),
            }
        }
        let Some(segment) = self.segment(stream, number) else {
            self.waits[stream.index()] = true;
            return Ok(Pumped::Waits);
        };
        let moved = pipe::splice_to_file(pipe, segment, segment::place(offset), room)
            .map_err(|errno| Error::io("write", &segment::path(&self.journal.dir, stream, number), errno))?;
        if let Moved::Bytes(count) = moved {
            self.at.unrecorded[stream.index()] += count as u64;
            self.append_run(stream, count as u64)?;
        }
        Ok(Pumped::Moved(moved))
    }

    /// Whether nothing can be appended now: a chore works on the index, and an append would wait for its lock.
    pub fn is_busy(&self) -> bool {
        self.is_punching
    }

    /// The work that is wanted now. Each piece is returned once, and again if it fails.
    pub fn chores(&mut self) -> Vec<Chore> {
        let mut chores = Vec::new();
        for stream in Stream::ALL {
            if let (Some(number), Next::Missing) = (self.wants(stream), &self.next[stream.index()]) {
                self.next[stream.index()] = Next::UnderWay;
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
    fn wants(&self, stream: Stream) -> Option<u64> {
        let end = self.at.ends[stream.index()];
        let number = segment::number(end);
        match self.is_open(stream, number) {
            true => (self.at.exit.is_none() && segment::place(end) >= NEXT_WANTED_AT).then_some(number + 1),
            false => self.waits[stream.index()].then_some(number),
        }
    }

    /// Takes the result of a chore. After an error the chore is wanted again.
    pub fn take(&mut self, done: OutputDone) -> Result<()> {
        match done.0 {
            Output::Segment { stream, number, outcome } => {
                self.next[stream.index()] = Next::Missing;
                self.next[stream.index()] = Next::Ready(number, outcome?);
            }
            Output::Dropped { removed, outcome } => {
                self.dropping.drain(..removed);
                (self.is_dropping, self.is_punching) = (false, false);
                if let Some(end) = outcome? {
                    self.at.punched = end - INDEX_BLOCK_BYTES;
                    self.publish();
                }
            }
        }
        Ok(())
    }

    /// Records the exit as the last entry.
    pub fn finish(&mut self, exit: &Exit) -> Result<()> {
        if self.at.exit.is_some() {
            return Ok(());
        }
        self.record_tails()?;
        self.append(&record::ending(self.at.next_seq, now_ms(), exit))?;
        self.at.exit = Some(*exit);
        // Closed with the writer: closing a file may wait for the disk.
        self.unused.extend(self.current.iter_mut().filter_map(|current| Some(current.take()?.1)));
        self.journal.finished.store(true, Ordering::Release);
        Ok(())
    }

    /// The last number that the next pump of this stream would drop because of the cap, if it would drop any.
    pub fn would_drop(&self, stream: Stream) -> Option<u64> {
        let number = segment::number(self.at.ends[stream.index()]);
        if self.is_open(stream, number) || self.journal.bytes_kept() + SEGMENT_BYTES <= self.bytes_max {
            return None;
        }
        self.oldest_to_spare().and_then(|oldest| self.at.segments.get(oldest)).map(|segment| segment.last_seq)
    }

    fn is_open(&self, stream: Stream, number: u64) -> bool {
        self.current[stream.index()].as_ref().is_some_and(|(open, _)| *open == number)
    }

    /// While the process lives, the segments being written are never dropped.
    fn oldest_to_spare(&self) -> Option<usize> {
        let being_written = |segment: &Segment| {
            self.at.exit.is_none() && segment.number == segment::number(self.at.ends[segment.stream.index()])
        };
        self.at.segments.iter().position(|segment| !being_written(segment))
    }

    /// Drops the oldest segment to make room for others; false when there is none to spare. A chore removes its file.
    pub fn shed(&mut self) -> bool {
        let Some(oldest) = self.oldest_to_spare() else { return false };
        let Segment { stream, number, last_seq } = self.at.segments[oldest];
        // Readers learn of it before it is done: one that then finds the file gone knows why.
        self.at.first_seq = self.at.first_seq.max(last_seq + 1);
        self.journal.first_seq.store(self.at.first_seq, Ordering::Release);
        self.at.segments.remove(oldest);
        self.dropping.push((stream, number));
        self.publish();
        true
    }

    /// The open segment of this number, if it is there.
    fn segment(&mut self, stream: Stream, number: u64) -> Option<&OwnedFd> {
        let at = stream.index();
        // Until the last segments that were dropped are removed, another one would exceed the cap.
        if !self.is_open(stream, number) && self.dropping.is_empty() {
            match std::mem::replace(&mut self.next[at], Next::Missing) {
                Next::Ready(ready, file) if ready == number => {
                    while self.journal.bytes_kept() + SEGMENT_BYTES > self.bytes_max && self.shed() {}
                    self.unused.extend(self.current[at].take().map(|(_, full)| full));
                    self.note_segment(stream, number);
                    self.current[at] = Some((number, file));
                }
                Next::UnderWay => self.next[at] = Next::UnderWay,
                Next::Ready(..) | Next::Missing => {}
            }
        }
        self.current[at].as_ref().filter(|(open, _)| *open == number).map(|(_, file)| file)
    }

    fn note_segment(&mut self, stream: Stream, number: u64) {
        let known =
            self.at.segments.iter().any(|segment| segment.stream == stream && segment.number == number);
        if !known {
            self.at.segments.push_back(Segment { stream, number, last_seq: 0 });
        }
    }

    /// Turns bytes that no record covers into runs.
    fn record_tails(&mut self) -> Result<()> {
        for stream in Stream::ALL {
            while self.at.unrecorded[stream.index()] > 0 {
                let end = self.at.ends[stream.index()];
                let room = SEGMENT_BYTES - segment::place(end);
                self.note_segment(stream, segment::number(end));
                self.append_run(stream, self.at.unrecorded[stream.index()].min(room))?;
            }
        }
        Ok(())
    }

    fn append_run(&mut self, stream: Stream, len: u64) -> Result<()> {
        let offset = self.at.ends[stream.index()];
        // A run never crosses the end of its segment, so its length fits.
        let run = self.record(Entry::Run { stream, offset, len: len as u32 });
        self.append(&[run])?;
        self.at.ends[stream.index()] = offset + len;
        self.at.unrecorded[stream.index()] -= len;
        let (number, last_seq) = (segment::number(offset), self.at.next_seq - 1);
        let mut newest_first = self.at.segments.iter_mut().rev();
        if let Some(segment) =
            newest_first.find(|segment| segment.stream == stream && segment.number == number)
        {
            segment.last_seq = last_seq;
        }
        self.publish();
        Ok(())
    }

    fn record(&self, entry: Entry) -> Record {
        Record { seq: self.at.next_seq, time_ms: now_ms(), entry }
    }

    /// Writes records behind the last one. After a failure the same place is written again.
    fn append(&mut self, records: &[Record]) -> Result<()> {
        let mut bytes = [0; RECORDS_AT_ONCE * RECORD_BYTES];
        let (places, _) = bytes.as_chunks_mut::<RECORD_BYTES>();
        for (place, record) in places.iter_mut().zip(records) {
            *place = record.encode();
        }
        let at = self.at.records * RECORD_BYTES as u64;
        file::write_all_at(&self.index.file, &bytes[..records.len() * RECORD_BYTES], at)
            .map_err(|errno| Error::io("append to", &self.index.path, errno))?;
        self.at.records += records.len() as u64;
        self.at.next_seq += records.iter().map(Record::numbers).sum::<u64>();
        self.publish();
        Ok(())
    }

    fn publish(&self) {
        let journal = &self.journal;
        let kept: u64 = Stream::ALL.iter().map(|stream| self.kept(*stream)).sum();
        let index = self.at.records * RECORD_BYTES as u64 - self.at.punched;
        journal.bytes_kept.store(kept + index, Ordering::Relaxed);
        journal.bytes_total.store(self.at.ends.iter().sum(), Ordering::Relaxed);
        for (published, end) in journal.ends.iter().zip(self.at.ends) {
            published.store(end, Ordering::Release);
        }
        journal.finished.store(self.at.exit.is_some(), Ordering::Release);
        journal.published_records.store(self.at.records, Ordering::Release);
        journal.last_seq.store(self.at.next_seq - 1, Ordering::Release);
    }

    /// Bytes of a stream on disk: from its oldest segment to its end.
    fn kept(&self, stream: Stream) -> u64 {
        let oldest = self.at.segments.iter().find(|segment| segment.stream == stream);
        oldest
            .map_or(0, |segment| self.at.ends[stream.index()].saturating_sub(segment.number * SEGMENT_BYTES))
    }

    /// Says again what only records that are about to go may have said.
    fn repeat_facts(&mut self) -> Result<()> {
        let mut facts = Vec::with_capacity(RECORDS_AT_ONCE);
        for stream in Stream::ALL {
            facts.push(self.record(Entry::StreamEnd { stream, offset: self.at.ends[stream.index()] }));
        }
        facts.extend(self.at.stdin_closed.map(|at| self.record(Entry::StdinClosed { at })));
        self.append(&facts)
    }

    /// The head of the index that no reader can ask for any more, if there may be blocks of it to give back.
    fn head(&mut self) -> Option<Head> {
        // Nothing may follow the exit, not even a repeated fact; what is finished is dropped whole anyway.
        if self.at.exit.is_some() {
            return None;
        }
        // The first block stays: it holds the start of the process.
        let begin = self.at.punched + INDEX_BLOCK_BYTES;
        let (first_seq, records) = (self.at.first_seq, self.at.records);
        let head = Head { index: self.index.clone(), first_seq, records, begin };
        // Without room for the facts the index keeps its head until the next segment is dropped.
        (head.is_worth_it() && self.repeat_facts().is_ok()).then_some(head)
    }
}

pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
