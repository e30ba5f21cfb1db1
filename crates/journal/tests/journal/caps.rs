//! Dropping the head at the cap: bounded disk usage, readers that skip, recovery of the dropped state.

use crate::rig::{EXIT, MIB, NO_CAP, Random, Rig, Seen, WriteNow, blocks_bytes, drain, read_after};
use outpost_journal::{Batch, Cursor, FRAME_BYTES, ReadMode, SEGMENT_BYTES, Stream, Writer};
use outpost_sys::Errno;
use outpost_sys::fault::{self, Fault};
use outpost_sys::pipe::Moved;
use std::fs;
use std::io::Write;

const CAP: u64 = 12 * 1024 * 1024;

/// Checks a new reader: it skips once to the first kept frame, then gets exactly the tail of stdout.
fn assert_tail(rig: &Rig) -> Seen {
    let seen = read_after(&rig.journal(), 0);
    let [first] = seen.first_kept[..] else { panic!("first_kept is {:?}", seen.first_kept) };
    assert!(first > 1);
    assert_eq!(first, rig.journal().first_seq());
    seen.assert_in_order(first);
    for (stream, written) in Stream::ALL.into_iter().zip(&rig.written) {
        let tail = seen.stream(stream);
        assert!(written.ends_with(&tail), "{stream:?} has {} bytes that are no tail", tail.len());
    }
    seen
}

fn assert_recovers_alike(rig: &mut Rig, seen: &Seen) {
    let (first, last, total) =
        (rig.journal().first_seq(), rig.journal().last_seq(), rig.journal().bytes_total());
    let (closed, start, exit) = (rig.writer.stdin_closed(), rig.writer.start(), rig.writer.exit());
    for _ in 0..2 {
        rig.recover();
        assert_eq!(&read_after(&rig.journal(), 0), seen);
        let journal = rig.journal();
        assert_eq!((journal.first_seq(), journal.last_seq(), journal.bytes_total()), (first, last, total));
        assert_eq!((rig.writer.stdin_closed(), rig.writer.start(), rig.writer.exit()), (closed, start, exit));
    }
}

/// Hundreds of tiny records, and then a whole segment.
fn feed_tiny_runs_and_a_segment(rig: &mut Rig, random: &mut Random) {
    for _ in 0..300 {
        rig.feed(Stream::Stdout, b".");
    }
    let bytes = random.bytes(SEGMENT_BYTES as usize);
    rig.feed(Stream::Stdout, &bytes);
}

#[test]
fn output_past_the_cap_drops_the_head_and_reports_it() {
    let mut rig = Rig::new(CAP);
    let mut random = Random::new(1);
    rig.writer.started(3, 4).unwrap();
    let mut first_seq = 1;
    for _ in 0..64 {
        let bytes = random.bytes(MIB);
        rig.feed(Stream::Stdout, &bytes);
        assert!(rig.journal().bytes_kept() <= CAP, "{} kept", rig.journal().bytes_kept());
        assert!(rig.journal().first_seq() >= first_seq);
        first_seq = rig.journal().first_seq();
    }
    assert_eq!(rig.journal().bytes_total(), 64 * MIB as u64);
    let seen = assert_tail(&rig);
    // Space for a whole segment is freed before it begins, and the index counts too.
    assert!(seen.stream(Stream::Stdout).len() as u64 >= CAP - 2 * SEGMENT_BYTES);
    let on_disk: u64 =
        (0..16).filter_map(|n| fs::metadata(rig.path(&format!("out.{n}"))).ok()).map(|m| m.len()).sum();
    assert_eq!(on_disk as usize, seen.stream(Stream::Stdout).len());
    assert_recovers_alike(&mut rig, &seen);
    rig.writer.finish(&EXIT).unwrap();
    let seen = assert_tail(&rig);
    assert_eq!(seen.ended.map(|ended| ended.exit), Some(EXIT));
    assert_recovers_alike(&mut rig, &seen);
}

#[test]
fn a_slow_reader_that_is_overtaken_skips_to_the_tail() {
    let mut rig = Rig::new(CAP);
    let mut random = Random::new(2);
    let mut slow = Cursor::after(rig.journal(), 0);
    let mut batch = Batch::default();
    let bytes = random.bytes(7 * MIB);
    rig.feed(Stream::Stdout, &bytes);
    // It has the first segment open and is in the middle of a run.
    slow.read(&mut batch, FRAME_BYTES as usize * 3, ReadMode::CachedOnly).unwrap();
    assert_eq!((batch.first_kept, slow.next_seq()), (None, 4));
    let bytes = random.bytes(20 * MIB);
    rig.feed(Stream::Stdout, &bytes);
    let first = rig.journal().first_seq();
    assert!(first > 4);
    let mut seen = Seen::default();
    drain(&mut slow, &mut seen);
    assert_eq!(seen.first_kept, [first]);
    seen.assert_in_order(first);
    assert!(rig.written[0].ends_with(&seen.stream(Stream::Stdout)));
}

#[test]
fn a_dropped_head_is_reported_also_when_the_first_read_fails() {
    let mut rig = Rig::new(CAP);
    let bytes = Random::new(3).bytes(20 * MIB);
    rig.feed(Stream::Stdout, &bytes);
    let first = rig.journal().first_seq();
    for nth in 1.. {
        let (mut cursor, mut batch) = (Cursor::after(rig.journal(), 0), Batch::default());
        fault::arm(nth, Fault::Errno(Errno::AGAIN));
        let failed = cursor.read(&mut batch, MIB, ReadMode::CachedOnly).is_err();
        if fault::disarm() {
            assert!(nth > 3);
            break;
        }
        assert!(failed);
        assert_eq!(cursor.next_seq(), 1, "the cursor is unchanged");
        cursor.read(&mut batch, MIB, ReadMode::MayBlock).unwrap();
        assert_eq!(batch.first_kept, Some(first), "call {nth}");
    }
}

#[test]
fn the_index_of_tiny_runs_is_punched_and_still_readable() {
    let mut rig = Rig::new(CAP);
    let mut random = Random::new(4);
    rig.writer.started(3, 4).unwrap();
    let mut live = Cursor::after(rig.journal(), 0);
    let mut seen_live = Seen::default();
    for _ in 0..12 {
        feed_tiny_runs_and_a_segment(&mut rig, &mut random);
        drain(&mut live, &mut seen_live);
    }
    let index = fs::metadata(rig.path("index")).unwrap().len();
    assert!(index > 12 * 300 * 32);
    assert!(blocks_bytes(&rig.path("index")) < index / 2, "blocks of the index were punched out");
    assert!(rig.journal().bytes_kept() <= CAP);
    let seen = assert_tail(&rig);
    assert!(seen_live.pieces.ends_with(&seen.pieces), "numbers that a reader has seen keep their content");
    assert_recovers_alike(&mut rig, &seen);
    let kept = rig.journal().bytes_kept();
    for after in (rig.journal().first_seq()..=rig.journal().last_seq()).step_by(37) {
        let rest = read_after(&rig.journal(), after);
        assert!(rest.pieces.iter().eq(seen.pieces.iter().filter(|piece| piece.seq > after)), "after {after}");
    }
    // And again after the recovery: the hole grows.
    for _ in 0..4 {
        feed_tiny_runs_and_a_segment(&mut rig, &mut random);
    }
    assert!(rig.journal().bytes_kept() < kept + SEGMENT_BYTES);
    rig.writer.finish(&EXIT).unwrap();
    let seen = assert_tail(&rig);
    assert_recovers_alike(&mut rig, &seen);
}

#[test]
fn state_that_only_the_punched_index_contained_survives() {
    let mut rig = Rig::new(CAP);
    let mut random = Random::new(5);
    rig.writer.started(3, 4).unwrap();
    // Past the first block of the index, which always stays.
    for _ in 0..200 {
        rig.feed(Stream::Stdout, b"-");
    }
    rig.feed(Stream::Stderr, b"a warning, early");
    rig.writer.close_stdin(1234).unwrap();
    for _ in 0..8 {
        feed_tiny_runs_and_a_segment(&mut rig, &mut random);
    }
    assert!(rig.journal().first_seq() > 1000);
    let seen = assert_tail(&rig);
    assert_eq!(seen.stream(Stream::Stderr), b"", "its frames were dropped with the head");
    assert_recovers_alike(&mut rig, &seen);
    assert_eq!(rig.writer.stdin_closed(), Some(1234));
    // Early bytes do not reappear under new numbers, and new bytes follow them.
    rig.feed(Stream::Stderr, b"a word, late");
    let seen = assert_tail(&rig);
    assert_eq!(seen.stream(Stream::Stderr), b"a word, late");
    assert_recovers_alike(&mut rig, &seen);
    crate::rig::append(&rig.path("err.0"), b", unrecorded");
    rig.written[1].extend_from_slice(b", unrecorded");
    rig.recover();
    assert_eq!(assert_tail(&rig).stream(Stream::Stderr), b"a word, late, unrecorded");
}

#[test]
fn both_streams_past_the_cap_share_it() {
    let mut rig = Rig::new(CAP);
    let mut random = Random::new(6);
    for round in 0..24 {
        let bytes = random.bytes(MIB);
        rig.feed(Stream::ALL[round % 2], &bytes);
        let bytes = random.bytes(777);
        rig.feed(Stream::ALL[(round + 1) % 2], &bytes);
        assert!(rig.journal().bytes_kept() <= CAP);
    }
    let seen = assert_tail(&rig);
    assert!(!seen.stream(Stream::Stderr).is_empty());
    assert_recovers_alike(&mut rig, &seen);
}

#[test]
fn current_segments_are_never_dropped() {
    let mut rig = Rig::new(NO_CAP);
    rig.feed(Stream::Stdout, b"a");
    rig.feed(Stream::Stderr, b"b");
    assert!(!rig.writer.drop_oldest_now().unwrap());
    assert_eq!(read_after(&rig.journal(), 0).pieces.len(), 2);
    assert_eq!(rig.journal().first_seq(), 1);
}

#[test]
fn a_finished_journal_with_a_dropped_head_keeps_its_exit() {
    let mut rig = Rig::new(NO_CAP);
    rig.writer.started(3, 4).unwrap();
    rig.feed(Stream::Stderr, b"early");
    let bytes = Random::new(7).bytes(9 * MIB);
    rig.feed(Stream::Stdout, &bytes);
    rig.writer.finish(&EXIT).unwrap();
    let last = rig.journal().last_seq();
    let mut shed = 0;
    while rig.writer.drop_oldest_now().unwrap() {
        shed += 1;
        let seen = read_after(&rig.journal(), 0);
        assert_eq!(seen.ended.map(|ended| (ended.seq, ended.exit)), Some((last, EXIT)));
        assert_recovers_alike(&mut rig, &seen);
    }
    assert_eq!(shed, 4);
    assert_eq!(read_after(&rig.journal(), 0).first_kept, [last]);
}

#[test]
fn killed_after_a_full_segment_was_dropped_and_before_the_next_begins_no_number_is_used_twice() {
    for is_made_ahead in [true, false] {
        let mut rig = Rig::new(NO_CAP);
        rig.writer.started(3, 4).unwrap();
        let bytes = Random::new(8).bytes(SEGMENT_BYTES as usize);
        rig.feed(Stream::Stderr, b"x");
        for piece in bytes.chunks(MIB) {
            rig.write(Stream::Stdout, piece);
            // One pump each: a further pump would find the pipe empty and begin the next segment.
            rig.writer.pump_now(Stream::Stdout, &rig.sources[0].read).unwrap();
        }
        let last = rig.journal().last_seq();
        assert!(rig.writer.drop_oldest_now().unwrap());
        assert!(!rig.path("out.0").exists());
        assert_eq!(fs::metadata(rig.path("out.1")).unwrap().len(), 0);
        if !is_made_ahead {
            fs::remove_file(rig.path("out.1")).unwrap();
        }
        rig.recover();
        assert_eq!(rig.journal().last_seq(), last);
        assert_eq!(rig.journal().bytes_total(), SEGMENT_BYTES + 1);
        rig.feed(Stream::Stdout, b"next");
        let seen = read_after(&rig.journal(), 0);
        assert_eq!((seen.first_kept[0], &seen.pieces[0].bytes[..]), (last + 1, &b"next"[..]));
    }
}

#[test]
fn a_reader_at_the_end_survives_the_punching_of_the_index_before_it() {
    // The reader has read everything. Then only checkpoints are appended and everything it read is dropped.
    // Whether its record is punched out depends on the end of the block, so every offset in a block is tried.
    for tiny in 256..256 + 130 {
        let mut rig = Rig::new(NO_CAP);
        for _ in 0..tiny {
            rig.feed(Stream::Stdout, b".");
        }
        for name in ["out.0", "out.1"] {
            let segment =
                fs::OpenOptions::new().write(true).create(true).truncate(false).open(rig.path(name)).unwrap();
            segment.set_len(SEGMENT_BYTES).unwrap();
        }
        rig.recover();
        let mut cursor = Cursor::after(rig.journal(), rig.journal().last_seq() - 1);
        let mut seen = Seen::default();
        drain(&mut cursor, &mut seen);
        assert_eq!(seen.pieces.len(), 1);
        assert!(rig.writer.drop_oldest_now().unwrap());
        assert!(rig.writer.drop_oldest_now().unwrap());
        assert!(!rig.writer.drop_oldest_now().unwrap());
        drain(&mut cursor, &mut seen);
        rig.write(Stream::Stdout, b"next");
        rig.writer.pump_now(Stream::Stdout, &rig.sources[0].read).unwrap();
        drain(&mut cursor, &mut seen);
        assert_eq!(seen.pieces[1].bytes, b"next", "{tiny} tiny runs");
    }
}

#[test]
fn an_index_damaged_after_a_dropped_head_recovers_to_the_same_every_time() {
    let mut rig = Rig::new(CAP);
    let mut random = Random::new(9);
    rig.writer.started(3, 4).unwrap();
    rig.feed(Stream::Stderr, b"early");
    for _ in 0..5 {
        feed_tiny_runs_and_a_segment(&mut rig, &mut random);
    }
    let index = fs::read(rig.path("index")).unwrap();
    let filled: Vec<usize> = (0..index.len()).filter(|at| index[*at] != 0).collect();
    for round in 0..40 {
        // The first record after the hole, and any other.
        let behind_hole = filled.iter().copied().find(|at| *at >= 4096).unwrap();
        let at = if round == 0 { behind_hole } else { filled[random.below(filled.len())] };
        let copy = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(rig.dir.path()).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        let mut damaged = index.clone();
        damaged[at] ^= 0x10;
        fs::write(copy.path().join("index"), &damaged).unwrap();

        let mut writer = Writer::recover(copy.path(), CAP).unwrap();
        let seen = read_after(writer.journal(), 0);
        seen.assert_in_order(seen.first_kept.first().copied().unwrap_or(1));
        let again = Writer::recover(copy.path(), CAP).unwrap();
        assert_eq!(again.journal().last_seq(), writer.journal().last_seq());
        assert!(read_after(again.journal(), 0) == seen, "damage at {at}: a second recovery differs");

        // Appends do not bring dropped numbers back with other bytes.
        rig.sources[0].write.write_all(b"more").unwrap();
        writer.pump_now(Stream::Stdout, &rig.sources[0].read).unwrap();
        let longer = read_after(writer.journal(), 0);
        assert_eq!(longer.pieces.last().unwrap().bytes, b"more");
        let again = Writer::recover(copy.path(), CAP).unwrap();
        assert!(read_after(again.journal(), 0) == longer, "damage at {at}: appended output differs");
    }
}

#[test]
fn a_full_segment_with_nothing_in_the_pipe_drops_nothing() {
    let mut rig = Rig::new(CAP);
    // The next segment would exceed the cap.
    let bytes = Random::new(10).bytes(2 * SEGMENT_BYTES as usize);
    rig.feed(Stream::Stdout, &bytes);
    assert!(rig.writer.would_drop(Stream::Stdout).is_some());
    assert_eq!(rig.writer.pump_now(Stream::Stdout, &rig.sources[0].read).unwrap(), Moved::WouldBlock);
    assert_eq!(rig.journal().first_seq(), 1, "the head is dropped before there is anything to record");
    assert!(rig.path("out.0").exists());
    assert_eq!(fs::metadata(rig.path("out.2")).unwrap().len(), 0);
    assert_eq!(read_after(&rig.journal(), 0).stream(Stream::Stdout), rig.written[0]);
}

#[test]
fn output_that_fits_into_the_open_segment_drops_nothing() {
    let mut rig = Rig::new(2 * SEGMENT_BYTES + SEGMENT_BYTES / 8);
    let bytes = Random::new(11).bytes(SEGMENT_BYTES as usize + MIB);
    rig.feed(Stream::Stdout, &bytes);
    for _ in 0..3 {
        assert_eq!(rig.writer.would_drop(Stream::Stdout), None);
        rig.feed(Stream::Stdout, b"a little more");
        assert_eq!(rig.journal().first_seq(), 1, "room is made for a segment that is not begun");
    }
    assert_eq!(read_after(&rig.journal(), 0).stream(Stream::Stdout), rig.written[0]);
}
