//! Random operations on a journal against a model in memory: kills, late and torn records, drops, reattached
//! readers.

use crate::rig::{EXIT, MIB, Random, Rig, Seen, WriteNow, append, at, drain, read_after};
use outpost_journal::{Cursor, Stream};

const CAP: u64 = 14 * 1024 * 1024;

fn run_randomly(seed: u64) {
    let mut random = Random::new(seed);
    let mut rig = Rig::new(CAP);
    let mut live = Cursor::after(rig.journal(), 0);
    // The model: every frame as the live reader saw it first.
    let mut model = Seen::default();
    for _ in 0..250 {
        let stream = Stream::ALL[usize::from(random.below(3) == 0)];
        match random.below(12) {
            0..=3 => {
                let len = 1 + random.below(2000);
                let bytes = random.bytes(len);
                rig.feed(stream, &bytes);
            }
            4 => {
                let len = 1 + random.below(MIB);
                let bytes = random.bytes(len);
                rig.feed(stream, &bytes);
            }
            5 => {
                for _ in 0..60 {
                    rig.feed(stream, b"+");
                }
            }
            6 => rig.recover(),
            7 => kill_before_the_record(&mut rig, stream, &mut random),
            8 => {
                // Killed inside the record, or a host that lost its end.
                let torn = random.bytes(31);
                append(&rig.path("index"), &torn[..1 + (seed as usize % 31)]);
                rig.recover();
            }
            9 => {
                if random.below(4) == 0 {
                    let kept = rig.journal().bytes_kept();
                    let shed = rig.writer.drop_oldest_now().unwrap();
                    assert!(!shed || rig.journal().bytes_kept() < kept);
                }
            }
            10 => rig.writer.close_stdin(seed).unwrap(),
            _ => {
                let after = random.below(rig.journal().last_seq() as usize + 2) as u64;
                compare(&rig, after, &model);
            }
        }
        // A reader of the killed worker reattaches after its last number.
        live = Cursor::after(rig.journal(), live.next_seq() - 1);
        drain(&mut live, &mut model);
        assert_eq!(model.first_kept, [], "the live reader keeps up");
    }
    rig.writer.finish(&EXIT).unwrap();
    drain(&mut live, &mut model);
    model.assert_in_order(1);
    for stream in Stream::ALL {
        assert!(model.stream(stream) == rig.written[at(stream)], "seed {seed}: {stream:?} differs");
    }
    assert_eq!(model.ended.map(|ended| ended.exit), Some(EXIT));
    let closed = rig.writer.stdin_closed();
    for _ in 0..2 {
        rig.recover();
        assert_eq!((rig.writer.exit(), rig.writer.stdin_closed()), (Some(EXIT), closed));
        compare(&rig, 0, &model);
    }
}

/// The bytes have been moved, but the record is missing.
fn kill_before_the_record(rig: &mut Rig, stream: Stream, random: &mut Random) {
    let name = ["out", "err"][at(stream)];
    let len = 1 + random.below(100_000);
    let end = rig.written[at(stream)].len();
    let room = 4 * MIB - end % (4 * MIB);
    let bytes = random.bytes(len.min(room));
    append(&rig.path(&format!("{name}.{}", end / (4 * MIB))), &bytes);
    rig.written[at(stream)].extend_from_slice(&bytes);
    rig.recover();
}

/// A reader that attaches after `after` sees the frames of the model from the first kept one on.
fn compare(rig: &Rig, after: u64, model: &Seen) {
    let seen = read_after(&rig.journal(), after);
    let begin = seen.first_kept.last().map_or(after, |first| first - 1);
    if begin > after {
        assert_eq!(begin + 1, rig.journal().first_seq().max(begin + 1));
    }
    assert!(seen.pieces.iter().eq(model.pieces.iter().filter(|piece| piece.seq > begin)), "after {after}");
    assert_eq!(seen.ended, model.ended);
}

#[test]
fn no_mix_of_kills_and_readers_changes_what_was_seen() {
    for seed in 1..=6 {
        run_randomly(seed);
    }
}
