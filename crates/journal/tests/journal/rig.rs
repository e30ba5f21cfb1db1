//! Shared test fixture: a journal in a directory of its own, fed through real pipes, read by cursors.

use outpost_journal::{
    Accepted, Batch, Chore, Cursor, Delivered, Done, Ended, Error, FRAME_BYTES, Journal, Pumped, ReadMode,
    StdinLog, Stream, Writer,
};
use outpost_sys::pidfd::{Exit, ExitCause};
use outpost_sys::pipe::{self, Moved};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

pub(crate) const MIB: usize = 1024 * 1024;

/// A cap that these tests never reach.
pub(crate) const NO_CAP: u64 = 1 << 40;

pub(crate) const EXIT: Exit = Exit { cause: ExitCause::Code(3), user_ms: 11, system_ms: 22, rss_max_kb: 33 };

/// Xorshift: the same numbers on every machine.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

/// A writer whose chores are executed at once, on this thread.
pub(crate) trait WriteNow {
    fn work(&mut self) -> Result<(), Error>;
    fn pump_now(&mut self, stream: Stream, pipe: &OwnedFd) -> Result<Moved, Error>;
    fn drop_oldest_now(&mut self) -> Result<bool, Error>;
}

impl WriteNow for Writer {
    fn work(&mut self) -> Result<(), Error> {
        self.chores().into_iter().map(Chore::execute).try_for_each(|done| match done {
            Done::Output(done) => self.take(done),
            Done::Log(_) | Done::Stdin(_) => unreachable!("no work of a writer"),
        })
    }

    fn pump_now(&mut self, stream: Stream, pipe: &OwnedFd) -> Result<Moved, Error> {
        // Chores that an earlier call left because it failed.
        self.work()?;
        loop {
            let pumped = self.pump(stream, pipe)?;
            self.work()?;
            if let Pumped::Moved(moved) = pumped {
                return Ok(moved);
            }
        }
    }

    fn drop_oldest_now(&mut self) -> Result<bool, Error> {
        let shed = self.drop_oldest_segment();
        self.work().map(|()| shed)
    }
}

/// A stdin log whose chores are executed at once, on this thread.
pub(crate) trait LogNow: Sized {
    fn create_now(path: &Path) -> Result<Self, Error>;
    fn work(&mut self) -> Result<(), Error>;
    fn accept_now(
        &mut self,
        offset: Option<u64>,
        data: &[u8],
        undelivered_max: u64,
    ) -> Result<Accepted, Error>;
    fn deliver_now(&mut self, to: &OwnedFd) -> Result<Delivered, Error>;
}

impl LogNow for StdinLog {
    fn create_now(path: &Path) -> Result<StdinLog, Error> {
        match StdinLog::create_chore(path).execute() {
            Done::Log(log) => log,
            Done::Output(_) | Done::Stdin(_) => unreachable!("no log was begun"),
        }
    }

    fn work(&mut self) -> Result<(), Error> {
        self.chores().into_iter().map(Chore::execute).try_for_each(|done| match done {
            Done::Stdin(done) => self.take(done),
            Done::Log(_) | Done::Output(_) => unreachable!("no work of a stdin log"),
        })
    }

    fn accept_now(
        &mut self,
        offset: Option<u64>,
        data: &[u8],
        undelivered_max: u64,
    ) -> Result<Accepted, Error> {
        loop {
            if let Some(accepted) = self.accept(offset, data, undelivered_max)? {
                return Ok(accepted);
            }
            self.work()?;
        }
    }

    fn deliver_now(&mut self, to: &OwnedFd) -> Result<Delivered, Error> {
        let delivered = self.deliver(to);
        self.work()?;
        delivered
    }
}

/// A frame with its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) seq: u64,
    pub(crate) stream: Stream,
    pub(crate) time_ms: u64,
    pub(crate) bytes: Vec<u8>,
}

/// Everything that a cursor has returned.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) first_kept: Vec<u64>,
    pub(crate) ended: Option<Ended>,
}

impl Seen {
    pub(crate) fn add(&mut self, batch: &Batch) {
        assert_eq!(self.ended, None, "something follows the exit");
        self.first_kept.extend(batch.first_kept);
        self.pieces.extend(batch.frames().map(|(frame, bytes)| Piece {
            seq: frame.seq,
            stream: frame.stream,
            time_ms: frame.time_ms,
            bytes: bytes.to_vec(),
        }));
        self.ended = batch.ended;
    }

    pub(crate) fn stream(&self, stream: Stream) -> Vec<u8> {
        let of_stream = self.pieces.iter().filter(|piece| piece.stream == stream);
        of_stream.map(|piece| &piece.bytes[..]).collect::<Vec<_>>().concat()
    }

    /// Checks that numbers have no holes from `first` on, frames are neither empty nor too long, and the exit
    /// comes last.
    pub(crate) fn assert_in_order(&self, first: u64) {
        for (expected, piece) in (first..).zip(&self.pieces) {
            assert_eq!(piece.seq, expected);
            assert!(
                (1..=FRAME_BYTES as usize).contains(&piece.bytes.len()),
                "frame of {}",
                piece.bytes.len()
            );
        }
        if let Some(ended) = self.ended {
            assert_eq!(ended.seq, first + self.pieces.len() as u64);
        }
    }
}

/// Reads until the cursor has nothing more.
pub(crate) fn drain(cursor: &mut Cursor, seen: &mut Seen) {
    let mut batch = Batch::default();
    loop {
        cursor.read(&mut batch, MIB, ReadMode::MayBlock).unwrap();
        if batch.is_empty() {
            return;
        }
        seen.add(&batch);
    }
}

pub(crate) fn read_after(journal: &Arc<Journal>, seq: u64) -> Seen {
    let mut seen = Seen::default();
    drain(&mut Cursor::after(journal.clone(), seq), &mut seen);
    seen
}

/// Both ends of one output pipe.
pub(crate) struct Source {
    pub(crate) read: OwnedFd,
    pub(crate) write: File,
}

impl Source {
    pub(crate) fn new() -> Source {
        let pipe = pipe::pipe().unwrap();
        pipe::set_capacity(&pipe.write, MIB).unwrap();
        Source { read: pipe.read, write: File::from(pipe.write) }
    }
}

/// A journal and the pipes that feed it.
pub(crate) struct Rig {
    pub(crate) dir: TempDir,
    pub(crate) writer: Writer,
    pub(crate) sources: [Source; 2],
    pub(crate) written: [Vec<u8>; 2],
    bytes_max: u64,
}

pub(crate) fn at(stream: Stream) -> usize {
    usize::from(stream == Stream::Stderr)
}

impl Rig {
    pub(crate) fn new(bytes_max: u64) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let writer = Writer::create(dir.path(), bytes_max).unwrap();
        let written = [Vec::new(), Vec::new()];
        Rig { dir, writer, sources: [Source::new(), Source::new()], written, bytes_max }
    }

    pub(crate) fn journal(&self) -> Arc<Journal> {
        self.writer.journal().clone()
    }

    /// The child writes; the writer has not moved the bytes yet.
    pub(crate) fn write(&mut self, stream: Stream, bytes: &[u8]) {
        self.sources[at(stream)].write.write_all(bytes).unwrap();
        self.written[at(stream)].extend_from_slice(bytes);
    }

    /// Pumps until the pipe is empty.
    pub(crate) fn pump(&mut self, stream: Stream) {
        while let Moved::Bytes(_) = self.writer.pump_now(stream, &self.sources[at(stream)].read).unwrap() {}
    }

    /// The child writes in pieces that fit into the pipe, and all are moved.
    pub(crate) fn feed(&mut self, stream: Stream, bytes: &[u8]) {
        for piece in bytes.chunks(MIB) {
            self.write(stream, piece);
            self.pump(stream);
        }
    }

    /// The writer is killed and another recovers.
    pub(crate) fn recover(&mut self) {
        self.writer = Writer::recover(self.dir.path(), self.bytes_max).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// Appends directly to a file, as a splice whose record is missing.
pub(crate) fn append(path: &Path, bytes: &[u8]) {
    OpenOptions::new().append(true).create(true).open(path).unwrap().write_all(bytes).unwrap();
}

/// Disk blocks of a file, in bytes.
pub(crate) fn blocks_bytes(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).unwrap().blocks() * 512
}
