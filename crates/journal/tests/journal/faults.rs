//! Every system call of a journal fails once, in every way; the guarantees still hold.

use crate::rig::{EXIT, LogNow, MIB, NO_CAP, Random, Seen, Source, WriteNow, at, read_after};
use outpost_journal::{
    Accepted, Batch, Cursor, Error, FRAME_BYTES, ReadMode, SEGMENT_BYTES, StdinLog, Stream, Writer,
};
use outpost_sys::Errno;
use outpost_sys::fault::{self, Fault};
use outpost_sys::file;
use outpost_sys::pipe::{self, Moved, Pipe};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// How the caller reacts to an error.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reaction {
    /// Retry with the same writer.
    Retry,
    /// Exit; another writer recovers.
    Crash,
}

/// A failing call fails once, so the second attempt must succeed.
fn insist<T>(mut attempt: impl FnMut() -> Result<T, Error>) -> T {
    attempt().or_else(|_| attempt()).unwrap()
}

struct Life {
    dir: PathBuf,
    reaction: Reaction,
    writer: Option<Writer>,
    sources: [Source; 2],
    written: [Vec<u8>; 2],
    live: Seen,
    /// The live reader has read up to this number.
    begun: u64,
    log: Option<StdinLog>,
    reader: Option<OwnedFd>,
    child: (OwnedFd, File),
    bytes_max: u64,
}

impl Life {
    fn new(dir: PathBuf, reaction: Reaction, bytes_max: u64) -> Life {
        let Pipe { read, write } = pipe::pipe().unwrap();
        file::set_nonblocking(&read).unwrap();
        Life {
            dir,
            reaction,
            writer: None,
            sources: [Source::new(), Source::new()],
            written: [Vec::new(), Vec::new()],
            live: Seen::default(),
            begun: 0,
            log: None,
            reader: None,
            child: (write, File::from(read)),
            bytes_max,
        }
    }

    fn writing<T>(&mut self, mut act: impl FnMut(&mut Writer, &[Source; 2]) -> Result<T, Error>) -> T {
        let mut last = None;
        for _ in 0..3 {
            let mut writer = match self.writer.take() {
                Some(writer) => writer,
                None => insist(|| Writer::recover(&self.dir, self.bytes_max)),
            };
            let outcome = act(&mut writer, &self.sources);
            let abandoned = outcome.is_err() && self.reaction == Reaction::Crash;
            self.writer = (!abandoned).then_some(writer);
            match outcome {
                Ok(done) => return done,
                Err(error) => last = Some(error),
            }
        }
        panic!("still fails: {last:?}");
    }

    fn feed(&mut self, stream: Stream, bytes: &[u8]) {
        for piece in bytes.chunks(MIB) {
            self.sources[at(stream)].write.write_all(piece).unwrap();
            self.written[at(stream)].extend_from_slice(piece);
            // An injected EAGAIN hides bytes that are in the pipe. Readiness would report them again.
            let mut idle = 0;
            while idle < 2 {
                match self.writing(|writer, sources| writer.pump_now(stream, &sources[at(stream)].read)) {
                    Moved::Bytes(_) => idle = 0,
                    Moved::WouldBlock | Moved::End => idle += 1,
                }
            }
            self.follow();
        }
    }

    /// A reader that reattaches after each error, as a client that reconnects after its last number.
    fn follow(&mut self) {
        let seen = self.live.pieces.last().map_or(self.begun, |piece| piece.seq);
        let journal = self.writing(|writer, _| Ok(writer.journal().clone()));
        let (mut cursor, mut batch) = (Cursor::after(journal, seen), Batch::default());
        loop {
            insist(|| cursor.read(&mut batch, MIB / 2, ReadMode::MayBlock));
            if batch.is_empty() {
                return;
            }
            self.live.add(&batch);
        }
    }

    fn with_log<T>(&mut self, mut act: impl FnMut(&mut StdinLog, &OwnedFd) -> Result<T, Error>) -> T {
        let path = self.dir.join("stdin");
        for _ in 0..3 {
            let mut log = match (self.log.take(), &self.reader) {
                (Some(log), _) => log,
                (None, None) => insist(|| StdinLog::create_now(&path)),
                (None, Some(kept)) => insist(|| {
                    let kept = file::duplicate(kept).or_else(|_| file::duplicate(kept)).unwrap();
                    StdinLog::resume(&path, kept)
                }),
            };
            if self.reader.is_none() {
                self.reader =
                    Some(file::duplicate(log.reader()).or_else(|_| file::duplicate(log.reader())).unwrap());
            }
            let outcome = act(&mut log, &self.child.0);
            let abandoned = outcome.is_err() && self.reaction == Reaction::Crash;
            self.log = (!abandoned).then_some(log);
            if let Ok(done) = outcome {
                return done;
            }
        }
        panic!("still fails");
    }

    fn stdin(&mut self, bytes: &[u8]) {
        for (number, piece) in bytes.chunks(7000).enumerate() {
            let offset = number as u64 * 7000;
            let accepted = self.with_log(|log, _| log.accept_now(Some(offset), piece, 1 << 20));
            let applied = offset + piece.len() as u64;
            // After a crash, bytes of a partly failed write may be counted already.
            assert!(
                accepted == Accepted::Applied { applied } || accepted == Accepted::Duplicate { applied },
                "{accepted:?}"
            );
            self.with_log(|log, to| log.deliver_now(to));
        }
        let mut got = Vec::new();
        while got.len() < bytes.len() {
            self.with_log(|log, to| log.deliver_now(to));
            let _empty = self.child.1.read_to_end(&mut got);
        }
        assert!(got == bytes, "stdin differs");
        assert_eq!(self.with_log(|log, to| { log.deliver_now(to).and(log.delivered()) }), bytes.len() as u64);
    }
}

/// Extends a segment as if it had been filled and not recorded. Returns the number of frames that makes.
fn nearly_fill(dir: &Path, name: &str, len: u64) -> u64 {
    let segment = OpenOptions::new().write(true).create(true).truncate(false).open(dir.join(name)).unwrap();
    segment.set_len(len).unwrap();
    len.div_ceil(FRAME_BYTES)
}

/// A journal's whole lifetime with `fault` injected into the `nth` call. Returns false when nothing failed.
fn run_with_fault(reaction: Reaction, nth: u64, fault: Fault, output: &[u8]) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let mut life = Life::new(dir.path().to_owned(), reaction, NO_CAP);
    fault::arm(nth, fault);
    drop(insist(|| Writer::create(dir.path(), NO_CAP)));
    life.begun = nearly_fill(dir.path(), "out.0", SEGMENT_BYTES - 40_000);
    life.writing(|writer, _| writer.started(41, 42));
    life.feed(Stream::Stderr, &output[..50_000]);
    life.feed(Stream::Stdout, &output[..10]);
    life.stdin(&output[..30_000]);
    life.writing(|writer, _| writer.close_stdin(30_000));
    life.feed(Stream::Stdout, &output[10..]);
    life.feed(Stream::Stderr, b"the end");
    life.writing(|writer, _| writer.finish(&EXIT));
    life.follow();
    let recovered = insist(|| Writer::recover(dir.path(), NO_CAP));
    let fired = !fault::disarm();

    life.live.assert_in_order(life.begun + 1);
    assert!(life.live.first_kept.is_empty());
    for stream in Stream::ALL {
        assert!(life.live.stream(stream) == life.written[at(stream)], "{stream:?} differs");
    }
    assert_eq!(life.live.ended.map(|ended| ended.exit), Some(EXIT));
    assert!(
        read_after(recovered.journal(), life.begun) == life.live,
        "what was seen live differs from the replay"
    );
    assert_eq!((recovered.start(), recovered.stdin_closed()), (Some((41, 42)), Some(30_000)));
    assert_eq!(recovered.exit(), Some(EXIT));
    fired
}

fn each_call(reaction: Reaction, fault: Fault) {
    let output = Random::new(1).bytes(150_000);
    let mut nth = 1;
    while run_with_fault(reaction, nth, fault, &output) {
        nth += 1;
    }
    assert!(nth > 50, "only {nth} calls were tried");
}

#[test]
fn a_call_that_is_interrupted_changes_nothing() {
    each_call(Reaction::Retry, Fault::Errno(Errno::INTR));
    each_call(Reaction::Crash, Fault::Errno(Errno::INTR));
}

#[test]
fn a_call_that_would_block_changes_nothing() {
    each_call(Reaction::Retry, Fault::Errno(Errno::AGAIN));
    each_call(Reaction::Crash, Fault::Errno(Errno::AGAIN));
}

#[test]
fn a_full_disk_at_any_call_changes_nothing() {
    each_call(Reaction::Retry, Fault::Errno(Errno::NOSPC));
    each_call(Reaction::Crash, Fault::Errno(Errno::NOSPC));
}

#[test]
fn a_failing_disk_at_any_call_changes_nothing() {
    each_call(Reaction::Retry, Fault::Errno(Errno::IO));
    each_call(Reaction::Crash, Fault::Errno(Errno::IO));
}

#[test]
fn a_call_that_moves_only_a_part_changes_nothing() {
    each_call(Reaction::Retry, Fault::Short);
    each_call(Reaction::Crash, Fault::Short);
}

const HEAD_CAP: u64 = 9 * 1024 * 1024;

/// A journal of hundreds of records and two segments, the second of which is nearly full.
fn many_records(dir: &Path) {
    let mut life = Life::new(dir.to_owned(), Reaction::Retry, HEAD_CAP);
    life.writing(|writer, _| writer.started(41, 42));
    for number in 0..400 {
        if number == 200 {
            life.feed(Stream::Stderr, b"early");
            life.writing(|writer, _| writer.close_stdin(7));
        }
        life.feed(Stream::Stdout, b".");
    }
}

/// Exceeds the cap: the head is dropped and the index is punched while a call fails.
fn drop_head(reaction: Reaction, nth: u64, fault: Fault, template: &Path, output: &[u8]) -> bool {
    let dir = tempfile::tempdir().unwrap();
    for name in ["index", "out.0", "err.0"] {
        std::fs::copy(template.join(name), dir.path().join(name)).unwrap();
    }
    nearly_fill(dir.path(), "out.0", SEGMENT_BYTES);
    nearly_fill(dir.path(), "out.1", SEGMENT_BYTES - 10);
    let mut life = Life::new(dir.path().to_owned(), reaction, HEAD_CAP);
    life.begun = life.writing(|writer, _| Ok(writer.journal().last_seq()));
    fault::arm(nth, fault);
    life.feed(Stream::Stdout, output);
    life.feed(Stream::Stderr, b"late");
    life.writing(|writer, _| writer.finish(&EXIT));
    life.follow();
    let recovered = insist(|| Writer::recover(dir.path(), HEAD_CAP));
    let fired = !fault::disarm();

    let replay = read_after(recovered.journal(), 0);
    assert_eq!(replay.first_kept.len(), 1);
    replay.assert_in_order(replay.first_kept[0]);
    assert!(
        replay.pieces.len() > SEGMENT_BYTES.div_ceil(FRAME_BYTES) as usize,
        "one segment was dropped, not two"
    );
    life.live.assert_in_order(life.begun + 1);
    assert!(life.live.first_kept.is_empty(), "the live reader was never overtaken");
    for stream in Stream::ALL {
        assert!(life.live.stream(stream) == life.written[at(stream)], "{stream:?} differs");
    }
    assert!(replay.pieces.ends_with(&life.live.pieces));
    assert_eq!((replay.ended, recovered.exit()), (life.live.ended, Some(EXIT)));
    assert_eq!((recovered.start(), recovered.stdin_closed()), (Some((41, 42)), Some(7)));
    assert!(recovered.journal().bytes_kept() <= HEAD_CAP);
    fired
}

#[test]
fn a_call_that_fails_while_the_head_is_dropped_changes_nothing() {
    let output = Random::new(2).bytes(1000);
    let template = tempfile::tempdir().unwrap();
    many_records(template.path());
    for reaction in [Reaction::Retry, Reaction::Crash] {
        for fault in [Fault::Errno(Errno::NOSPC), Fault::Errno(Errno::IO), Fault::Short] {
            let mut nth = 1;
            while drop_head(reaction, nth, fault, template.path(), &output) {
                nth += 1;
            }
            assert!(nth > 15, "only {nth} calls were tried");
        }
    }
}
