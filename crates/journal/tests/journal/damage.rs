//! Recovery after a writer, a disk or a host stopped at any point.

use crate::open_any_bytes::run;
use crate::rig::{EXIT, MIB, NO_CAP, Random, Rig, Seen, append, read_after};
use outpost_journal::{FRAME_BYTES, SEGMENT_BYTES, Stream, Writer};
use std::fs;
use std::path::Path;

const RECORD_BYTES: usize = 32;

/// A small finished journal of several runs, and what a reader saw of it.
fn small() -> (Rig, Seen) {
    let mut rig = Rig::new(NO_CAP);
    let mut random = Random::new(3);
    rig.writer.started(5, 6).unwrap();
    for (stream, len) in [
        (Stream::Stdout, 100),
        (Stream::Stderr, 1),
        (Stream::Stdout, FRAME_BYTES as usize + 1),
        (Stream::Stderr, 70),
        (Stream::Stdout, 3),
    ] {
        let bytes = random.bytes(len);
        rig.feed(stream, &bytes);
    }
    rig.writer.close_stdin(9).unwrap();
    rig.feed(Stream::Stderr, b"the last words");
    rig.writer.finish(&EXIT).unwrap();
    let seen = read_after(&rig.journal(), 0);
    (rig, seen)
}

/// The number of frames before a record, with the exit as a frame.
fn frames_before_record(record: usize) -> usize {
    // started, 5 runs (the third has two frames), stdin closed, a run, usage, exit
    [0, 0, 1, 2, 4, 5, 6, 6, 7, 7, 7][record]
}

/// Recovers a copy with this index twice, and compares with what was seen before the damage.
fn recover_damaged(rig: &Rig, before: &Seen, index: &[u8], whole_records: usize) {
    let dir = tempfile::tempdir().unwrap();
    for name in ["out.0", "err.0"] {
        fs::copy(rig.path(name), dir.path().join(name)).unwrap();
    }
    fs::write(dir.path().join("index"), index).unwrap();
    let writer = Writer::recover(dir.path(), NO_CAP).unwrap();
    let seen = read_after(writer.journal(), 0);
    let intact = frames_before_record(whole_records);
    assert!(seen.pieces.len() >= intact);
    assert_eq!(seen.pieces[..intact], before.pieces[..intact]);
    seen.assert_in_order(1);
    assert_eq!(seen.stream(Stream::Stdout), rig.written[0]);
    assert_eq!(seen.stream(Stream::Stderr), rig.written[1]);
    let finished = whole_records == 10;
    assert_eq!(seen.ended, before.ended.filter(|_| finished));
    assert_eq!(writer.exit(), finished.then_some(EXIT));
    assert_eq!(writer.journal().is_finished(), finished);
    assert_eq!(writer.start(), (whole_records >= 1).then_some((5, 6)));
    assert_eq!(writer.stdin_closed(), (whole_records >= 7).then_some(9));
    assert_eq!(read_after(Writer::recover(dir.path(), NO_CAP).unwrap().journal(), 0), seen);
}

#[test]
fn an_index_cut_at_any_byte_loses_no_output() {
    let (rig, before) = small();
    let index = fs::read(rig.path("index")).unwrap();
    assert_eq!(index.len(), 10 * RECORD_BYTES);
    for len in 0..=index.len() {
        recover_damaged(&rig, &before, &index[..len], len / RECORD_BYTES);
    }
}

#[test]
fn an_index_with_any_byte_wrong_loses_no_output() {
    let (rig, before) = small();
    let index = fs::read(rig.path("index")).unwrap();
    for at in 0..index.len() {
        for flip in [0xff, 0x01] {
            let mut wrong = index.clone();
            wrong[at] ^= flip;
            recover_damaged(&rig, &before, &wrong, at / RECORD_BYTES);
        }
    }
}

#[test]
fn an_index_with_zeros_behind_its_end_is_read_to_its_end() {
    let (rig, before) = small();
    let index = fs::read(rig.path("index")).unwrap();
    for zeros in [1, RECORD_BYTES, 4096, 3 * 4096, 10 * 4096] {
        for records in 0..=10 {
            let mut longer = index[..records * RECORD_BYTES].to_vec();
            longer.resize(longer.len() + zeros, 0);
            recover_damaged(&rig, &before, &longer, records);
        }
    }
}

#[test]
fn whole_zero_blocks_after_whole_blocks_are_not_a_punched_head() {
    // 256 records fill two blocks exactly.
    let mut rig = Rig::new(NO_CAP);
    for _ in 0..256 {
        rig.feed(Stream::Stdout, b"y");
    }
    let before = read_after(&rig.journal(), 0);
    let index = fs::read(rig.path("index")).unwrap();
    assert_eq!(index.len(), 2 * 4096);
    for (len, garbage) in [(4096, 0), (8192, 0), (8192, 10), (4096, 40)] {
        let mut longer = index[..len].to_vec();
        longer.resize(len + 5 * 4096, 0);
        longer.resize(longer.len() + garbage, 0xaa);
        fs::write(rig.path("index"), &longer).unwrap();
        rig.recover();
        let seen = read_after(&rig.journal(), 0);
        assert_eq!(seen.pieces[..len / RECORD_BYTES], before.pieces[..len / RECORD_BYTES]);
        seen.assert_in_order(1);
        assert_eq!(seen.stream(Stream::Stdout), rig.written[0]);
        rig.feed(Stream::Stdout, b"z");
        rig.recover();
        let again = read_after(&rig.journal(), 0);
        assert_eq!(again.pieces[..seen.pieces.len()], seen.pieces);
        assert_eq!(again.stream(Stream::Stdout), rig.written[0]);
        // Restore the original for the next kind of damage.
        rig.written[0].truncate(256);
        fs::OpenOptions::new().write(true).open(rig.path("out.0")).unwrap().set_len(256).unwrap();
    }
}

#[test]
fn killed_between_splice_and_record_the_bytes_get_the_next_number() {
    let mut rig = Rig::new(NO_CAP);
    rig.feed(Stream::Stdout, b"seen");
    rig.feed(Stream::Stderr, b"seen too");
    let seen = read_after(&rig.journal(), 0);
    append(&rig.path("out.0"), b"unrecorded");
    rig.recover();
    let after = read_after(&rig.journal(), 0);
    assert_eq!(after.pieces[..2], seen.pieces);
    assert_eq!((after.pieces.len(), after.pieces[2].seq), (3, 3));
    assert_eq!(after.pieces[2].bytes, b"unrecorded");
    rig.feed(Stream::Stdout, b"more");
    assert_eq!(read_after(&rig.journal(), 3).pieces[0].bytes, b"more");
    rig.recover();
    assert_eq!(rig.journal().last_seq(), 4);
}

#[test]
fn a_lost_index_still_yields_all_segments() {
    let mut rig = Rig::new(NO_CAP);
    let bytes = Random::new(8).bytes(2 * SEGMENT_BYTES as usize + 12345);
    rig.feed(Stream::Stdout, &bytes);
    rig.feed(Stream::Stderr, &bytes[..100]);
    fs::remove_file(rig.path("index")).unwrap();
    rig.recover();
    let seen = read_after(&rig.journal(), 0);
    seen.assert_in_order(1);
    assert_eq!(seen.stream(Stream::Stdout), rig.written[0]);
    assert_eq!(seen.stream(Stream::Stderr), rig.written[1]);
}

#[test]
fn a_finished_journal_ignores_records_after_its_exit() {
    let (mut rig, before) = small();
    append(&rig.path("out.0"), b"too late");
    append(&rig.path("index"), &[7; 100]);
    for _ in 0..2 {
        rig.recover();
        assert_eq!(read_after(&rig.journal(), 0), before);
        assert_eq!(rig.writer.exit(), Some(EXIT));
    }
}

/// Three segments of stdout, with one run of stderr in the middle of each.
fn three_segments() -> (Rig, Seen) {
    let mut rig = Rig::new(NO_CAP);
    let bytes = Random::new(4).bytes(3 * SEGMENT_BYTES as usize - 1000);
    for piece in bytes.chunks(2 * MIB) {
        rig.feed(Stream::Stdout, piece);
        rig.feed(Stream::Stderr, b"between");
    }
    let seen = read_after(&rig.journal(), 0);
    (rig, seen)
}

fn assert_cut(rig: &mut Rig, before: &Seen, out_bytes: usize) {
    for _ in 0..2 {
        rig.recover();
        let seen = read_after(&rig.journal(), 0);
        seen.assert_in_order(1);
        assert_eq!(seen.stream(Stream::Stdout), rig.written[0][..out_bytes]);
        assert_eq!(seen.stream(Stream::Stderr), rig.written[1]);
        let same = seen.pieces.iter().zip(&before.pieces).take_while(|(now, then)| now == then).count();
        let same_out = seen.pieces[..same].iter().filter(|piece| piece.stream == Stream::Stdout);
        let same_bytes: usize = same_out.map(|piece| piece.bytes.len()).sum();
        assert!(same_bytes + MIB >= out_bytes, "only the run that was cut may change: {same_bytes}");
    }
    // And it continues from there.
    rig.written[0].truncate(out_bytes);
    rig.feed(Stream::Stdout, b"onward");
    rig.recover();
    let seen = read_after(&rig.journal(), 0);
    seen.assert_in_order(1);
    assert_eq!(seen.stream(Stream::Stdout), rig.written[0]);
}

#[test]
fn a_segment_lost_in_a_crash_cuts_off_the_end() {
    let (mut rig, before) = three_segments();
    fs::remove_file(rig.path("out.2")).unwrap();
    assert_cut(&mut rig, &before, 2 * SEGMENT_BYTES as usize);
}

#[test]
fn a_segment_truncated_in_a_crash_hides_later_segments() {
    let (mut rig, before) = three_segments();
    let keep = 1_500_000;
    fs::OpenOptions::new().write(true).open(rig.path("out.1")).unwrap().set_len(keep).unwrap();
    assert_cut(&mut rig, &before, (SEGMENT_BYTES + keep) as usize);
    assert!(!rig.path("out.2").exists(), "an unreachable segment would be taken for output later");
}

#[test]
fn files_that_are_not_ours_are_left_alone() {
    use std::os::unix::ffi::OsStrExt;
    let (mut rig, before) = small();
    let names = [
        "stdin",
        "out",
        "out.",
        "out.01",
        "out.+1",
        "err.x",
        "err.1.2",
        "index.old",
        "out.18446744073709551615",
    ];
    let not_utf8 = std::ffi::OsStr::from_bytes(b"out.\xff");
    let names = || names.iter().map(Path::new).chain([Path::new(not_utf8)]);
    for name in names() {
        fs::write(rig.dir.path().join(name), b"stray").unwrap();
    }
    rig.recover();
    assert_eq!(read_after(&rig.journal(), 0), before);
    for name in names() {
        assert_eq!(fs::read(rig.dir.path().join(name)).unwrap(), b"stray", "{}", name.display());
    }
}

/// A number above the maximum would overflow sums with it.
#[test]
fn a_record_after_a_hole_with_an_impossible_number_is_refused() {
    const NUMBER_MAX: u64 = 1 << 62;
    for (seq, is_taken) in
        [(5, false), (129, true), (200, true), (NUMBER_MAX, true), (NUMBER_MAX + 1, false), (u64::MAX, false)]
    {
        let dir = tempfile::tempdir().unwrap();
        let mut index: Vec<u8> = (0..128).flat_map(|number| run(number + 1, number)).collect();
        index.resize(2 * 4096, 0);
        index.extend(run(seq, 128));
        fs::write(dir.path().join("index"), index).unwrap();
        fs::write(dir.path().join("out.0"), [b'x'; 129]).unwrap();
        let writer = Writer::recover(dir.path(), NO_CAP).unwrap();
        // Bytes of a refused record are recorded again, under the next number.
        assert_eq!(writer.journal().last_seq(), if is_taken { seq } else { 129 }, "{seq}");
    }
}
