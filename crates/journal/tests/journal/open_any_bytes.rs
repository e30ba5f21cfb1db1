//! Opens a journal of arbitrary bytes. Shared with the fuzz target `journal_open`.

use outpost_journal::{
    Batch, Boot, Chore, Cursor, Done, Ended, Pumped, ReadMode, SEGMENT_BYTES, Stream, Writer,
};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

const RECORD_BYTES: usize = 32;
const BLOCK_RECORDS: usize = 128;

/// Every record gets a valid checksum; otherwise only noise would be tried.
pub(crate) const REPAIR: u8 = 1;
/// The index begins with a block of good records, followed by a hole.
pub(crate) const HOLE: u8 = 2;
/// The second segment is the next of the same stream, and the first is full.
pub(crate) const SECOND_IS_NEXT: u8 = 4;
/// The first segment is missing, as if it had been dropped.
pub(crate) const FIRST_IS_GONE: u8 = 8;

/// What a new reader gets from a journal.
#[derive(Debug, PartialEq, Eq)]
struct ReadBack {
    first_kept: Option<u64>,
    frames: Vec<(u64, Stream, u64, Vec<u8>)>,
    ended: Option<Ended>,
}

/// `input`: a byte of the flags above, two bytes for the length of the index, the index, and the bytes of the
/// two segments in equal halves.
pub(crate) fn open_any_bytes(input: &[u8]) {
    let [flags, low, high, rest @ ..] = input else { return };
    let (index, segments) = rest.split_at(rest.len().min(usize::from(u16::from_le_bytes([*low, *high]))));
    let dir = tempfile::tempdir().unwrap();
    lay_out(dir.path(), *flags, index, segments);

    let mut writer = Writer::recover(dir.path(), 1 << 40).unwrap();
    let first = read_all(&writer);
    let again = Writer::recover(dir.path(), 1 << 40).unwrap();
    assert_eq!(read_all(&again), first, "a second recovery differs");
    assert_same_facts(&writer, &again);

    if writer.exit().is_none() {
        let pipe = outpost_sys::pipe::pipe().unwrap();
        for stream in Stream::ALL {
            File::from(pipe.write.try_clone().unwrap()).write_all(b"more").unwrap();
            while writer.pump(stream, &pipe.read).unwrap() == Pumped::AwaitsChore {
                for done in writer.chores().into_iter().map(Chore::execute) {
                    let Done::Output(done) = done else { unreachable!("no work of a writer") };
                    writer.take(done).unwrap();
                }
            }
        }
    }
    let longer = read_all(&writer);
    let appended = if writer.exit().is_none() { 2 } else { 0 };
    assert_eq!(longer.frames.len(), first.frames.len() + appended);
    assert_eq!(longer.frames[..first.frames.len()], first.frames);
    assert!(longer.frames[first.frames.len()..].iter().all(|(.., bytes)| bytes == b"more"));
    let again = Writer::recover(dir.path(), 1 << 40).unwrap();
    assert_eq!(read_all(&again), longer, "appended output differs after a recovery");
    assert_same_facts(&writer, &again);
    drop((writer, again));
    let boot = if segments.len().is_multiple_of(2) { Boot::Same } else { Boot::Another };
    salvage(*flags, index, segments, boot);
}

/// Whatever the index contains, every byte on disk is read, and a second read is the same.
fn salvage(flags: u8, index: &[u8], segments: &[u8], boot: Boot) {
    let dir = tempfile::tempdir().unwrap();
    lay_out(dir.path(), flags, index, segments);
    let writer = Writer::salvage(dir.path(), 1 << 40, boot).unwrap();
    let first = read_all(&writer);
    let again = Writer::salvage(dir.path(), 1 << 40, boot).unwrap();
    assert_eq!(read_all(&again), first, "a second salvage differs");
    assert_same_facts(&writer, &again);
}

fn assert_same_facts(writer: &Writer, again: &Writer) {
    assert_eq!(writer.start(), again.start());
    assert_eq!(writer.stdin_closed(), again.stdin_closed());
    assert_eq!(writer.exit(), again.exit());
    let facts =
        |journal: &outpost_journal::Journal| (journal.first_seq(), journal.last_seq(), journal.bytes_total());
    assert_eq!(facts(writer.journal()), facts(again.journal()));
}

fn lay_out(dir: &Path, flags: u8, index: &[u8], segments: &[u8]) {
    let mut records = Vec::new();
    if flags & HOLE != 0 {
        for number in 0..BLOCK_RECORDS as u64 {
            records.extend_from_slice(&run(number + 1, number));
        }
        records.resize(records.len() * 2, 0);
    }
    let repaired_from = records.len();
    records.extend_from_slice(index);
    if flags & REPAIR != 0 {
        for record in records[repaired_from..].chunks_exact_mut(RECORD_BYTES) {
            record[5] = 0;
            let checksum = crc32fast::hash(&record[4..]);
            record[..4].copy_from_slice(&checksum.to_le_bytes());
        }
    }
    fs::write(dir.join("index"), records).unwrap();
    let (first, second) = segments.split_at(segments.len() / 2);
    if flags & FIRST_IS_GONE == 0 {
        fs::write(dir.join("out.0"), first).unwrap();
    }
    if flags & SECOND_IS_NEXT == 0 {
        fs::write(dir.join("err.0"), second).unwrap();
    } else {
        fs::write(dir.join("out.1"), second).unwrap();
        if flags & FIRST_IS_GONE == 0 {
            fs::OpenOptions::new()
                .write(true)
                .open(dir.join("out.0"))
                .unwrap()
                .set_len(SEGMENT_BYTES)
                .unwrap();
        }
    }
}

/// A record of one byte of stdout.
pub(crate) fn run(seq: u64, offset: u64) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[4] = 2;
    record[12] = 1;
    record[16..24].copy_from_slice(&seq.to_le_bytes());
    record[24..].copy_from_slice(&offset.to_le_bytes());
    let checksum = crc32fast::hash(&record[4..]);
    record[..4].copy_from_slice(&checksum.to_le_bytes());
    record
}

fn read_all(writer: &Writer) -> ReadBack {
    let journal = writer.journal();
    let mut cursor = Cursor::after(Arc::clone(journal), 0);
    let mut batch = Batch::default();
    let mut first = ReadBack { first_kept: None, frames: Vec::new(), ended: None };
    // Each read advances by at least one frame, and the files are small.
    for _ in 0..100_000 {
        cursor.read(&mut batch, 1 << 20, ReadMode::MayBlock).unwrap();
        if batch.is_empty() {
            break;
        }
        assert!(first.ended.is_none(), "something follows the exit");
        assert!(batch.first_kept.is_none() || first.frames.is_empty());
        first.first_kept = first.first_kept.or(batch.first_kept);
        first.frames.extend(
            batch.frames().map(|(frame, bytes)| (frame.seq, frame.stream, frame.time_ms, bytes.to_vec())),
        );
        first.ended = batch.ended;
    }
    assert!(journal.last_seq() < cursor.next_seq(), "the reader never reaches the end");
    assert!(first.frames.is_sorted_by(|before, after| before.0 < after.0), "numbers must rise");
    first
}
