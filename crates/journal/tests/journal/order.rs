//! Output is read back: all of it, once, in order, by live and late readers.

use crate::rig::{EXIT, MIB, NO_CAP, Random, Rig, Seen, WriteNow, drain, read_after};
use outpost_journal::{Batch, Cursor, FRAME_BYTES, ReadMode, SEGMENT_BYTES, Stream};
use outpost_sys::pipe::Moved;

/// Writes about `total` bytes in random sizes on both streams while a live cursor reads.
fn random_output(rig: &mut Rig, seed: u64, total: usize) -> Seen {
    let mut random = Random::new(seed);
    let mut live = Cursor::after(rig.journal(), 0);
    let mut seen = Seen::default();
    while rig.written[0].len() + rig.written[1].len() < total {
        let stream = Stream::ALL[random.below(2)];
        let len = match random.below(4) {
            0 => 1 + random.below(10),
            1 => 1 + random.below(5000),
            2 => FRAME_BYTES as usize * (1 + random.below(4)),
            _ => 1 + random.below(300_000),
        };
        let bytes = random.bytes(len);
        rig.write(stream, &bytes);
        // Sometimes both pipes hold bytes before either is moved.
        if random.below(3) > 0 {
            rig.pump(stream);
        }
        if random.below(3) == 0 {
            rig.pump(Stream::Stderr);
            rig.pump(Stream::Stdout);
        }
        if rig.sources.iter().any(|source| outpost_sys::pipe::buffered(&source.read).unwrap() > 500_000) {
            rig.pump(Stream::Stdout);
            rig.pump(Stream::Stderr);
        }
        drain(&mut live, &mut seen);
    }
    rig.pump(Stream::Stdout);
    rig.pump(Stream::Stderr);
    rig.writer.finish(&EXIT).unwrap();
    drain(&mut live, &mut seen);
    seen
}

#[test]
fn bytes_of_both_streams_are_neither_lost_nor_reordered() {
    for seed in 1..=4 {
        let mut rig = Rig::new(NO_CAP);
        rig.writer.started(77, 99).unwrap();
        let live = random_output(&mut rig, seed, 6 * MIB);
        live.assert_in_order(1);
        assert_eq!(live.stream(Stream::Stdout), rig.written[0]);
        assert_eq!(live.stream(Stream::Stderr), rig.written[1]);
        assert_eq!(live.ended.map(|ended| ended.exit), Some(EXIT));
        assert_eq!(live.first_kept, []);
        let journal = rig.journal();
        assert_eq!(journal.bytes_total() as usize, rig.written[0].len() + rig.written[1].len());
        assert_eq!((journal.first_seq(), Some(journal.last_seq())), (1, live.ended.map(|ended| ended.seq)));
    }
}

#[test]
fn replay_does_not_differ_from_live_reading() {
    let mut rig = Rig::new(NO_CAP);
    let live = random_output(&mut rig, 9, 9 * MIB);
    assert!(rig.written[0].len() as u64 > SEGMENT_BYTES, "a segment border is crossed");
    assert_eq!(read_after(&rig.journal(), 0), live);
    rig.recover();
    assert_eq!(read_after(&rig.journal(), 0), live);
}

#[test]
fn a_reader_that_resumes_sees_exactly_the_rest() {
    let mut rig = Rig::new(NO_CAP);
    rig.writer.started(1, 2).unwrap();
    rig.feed(Stream::Stdout, b"first");
    rig.writer.close_stdin(5).unwrap();
    let live = random_output(&mut rig, 5, 3 * MIB);
    for after in 0..=rig.journal().last_seq() {
        let rest = read_after(&rig.journal(), after);
        let expected = live.pieces.iter().filter(|piece| piece.seq > after);
        assert!(rest.pieces.iter().eq(expected), "after {after}");
        let ended = live.ended.filter(|ended| ended.seq > after);
        assert_eq!(rest.ended, ended, "after {after}");
        assert_eq!(rest.first_kept, []);
    }
}

#[test]
fn a_reader_ahead_of_the_journal_gets_no_frame_it_claims_to_have() {
    let mut rig = Rig::new(NO_CAP);
    rig.feed(Stream::Stdout, b"one");
    let mut cursor = Cursor::after(rig.journal(), 2);
    let mut seen = Seen::default();
    drain(&mut cursor, &mut seen);
    assert!(rig.journal().last_seq() < cursor.next_seq());
    rig.feed(Stream::Stdout, b"two");
    drain(&mut cursor, &mut seen);
    assert_eq!(seen, Seen::default());
    rig.feed(Stream::Stderr, b"three");
    assert!(rig.journal().last_seq() >= cursor.next_seq());
    drain(&mut cursor, &mut seen);
    assert_eq!(seen.stream(Stream::Stderr), b"three");
    assert_eq!(cursor.next_seq(), 4);
}

#[test]
fn a_batch_is_bounded_in_bytes_and_in_frames() {
    let mut rig = Rig::new(NO_CAP);
    for _ in 0..5000 {
        rig.feed(Stream::Stdout, b"x");
    }
    let bytes = Random::new(1).bytes(MIB);
    rig.feed(Stream::Stderr, &bytes);
    let (mut cursor, mut batch) = (Cursor::after(rig.journal(), 0), Batch::default());
    cursor.read(&mut batch, MIB, ReadMode::MayBlock).unwrap();
    assert_eq!(batch.frames().count(), 4096);
    cursor.read(&mut batch, 1000, ReadMode::CachedOnly).unwrap();
    assert_eq!(batch.bytes(), 904 + FRAME_BYTES as usize);
    cursor.read(&mut batch, 0, ReadMode::CachedOnly).unwrap();
    assert_eq!((batch.frames().count(), batch.bytes()), (1, FRAME_BYTES as usize));
    assert_eq!(batch.frames().next().unwrap().1, &bytes[FRAME_BYTES as usize..][..FRAME_BYTES as usize]);
}

#[test]
fn an_empty_pipe_and_eof_are_distinguished() {
    let mut rig = Rig::new(NO_CAP);
    assert_eq!(rig.writer.pump_now(Stream::Stdout, &rig.sources[0].read).unwrap(), Moved::WouldBlock);
    let pipe = outpost_sys::pipe::pipe().unwrap();
    drop(pipe.write);
    assert_eq!(rig.writer.pump_now(Stream::Stderr, &pipe.read).unwrap(), Moved::End);
    assert_eq!(rig.journal().last_seq(), 0);
    assert_eq!(rig.journal().first_seq(), 0);
}

#[test]
fn start_stdin_end_and_exit_are_recorded_once() {
    let mut rig = Rig::new(NO_CAP);
    rig.writer.started(10, 20).unwrap();
    rig.writer.started(11, 21).unwrap();
    rig.writer.close_stdin(7).unwrap();
    rig.writer.close_stdin(8).unwrap();
    rig.writer.finish(&EXIT).unwrap();
    let kept = rig.journal().bytes_kept();
    rig.writer.finish(&outpost_sys::pidfd::Exit::UNKNOWN).unwrap();
    assert_eq!(rig.journal().bytes_kept(), kept);
    for _ in 0..2 {
        assert_eq!(rig.writer.start(), Some((10, 20)));
        assert_eq!(rig.writer.stdin_closed(), Some(7));
        assert_eq!(rig.writer.exit(), Some(EXIT));
        assert!(rig.journal().is_finished());
        assert_eq!(read_after(&rig.journal(), 0).ended.map(|ended| (ended.seq, ended.exit)), Some((1, EXIT)));
        rig.recover();
    }
}

#[test]
fn a_tail_begins_with_the_frame_that_its_first_byte_is_in() {
    let mut rig = Rig::new(64 * MIB as u64);
    let frame = FRAME_BYTES as usize;
    // Two frames for each piece, the second of one byte.
    for byte in 0..10 {
        rig.feed(Stream::Stdout, &vec![byte; frame + 1]);
    }
    let begins = |bytes: usize| Cursor::tail(rig.journal(), bytes as u64).unwrap().next_seq();
    for (bytes, seq) in
        [(0, 21), (1, 20), (2, 19), (frame + 1, 19), (frame + 2, 18), (frame + 3, 17), (MIB, 1)]
    {
        assert_eq!(begins(bytes), seq, "{bytes}");
    }
}
