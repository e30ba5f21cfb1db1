//! Chores that are late, whose result is lost, or that a killed worker executed.

use crate::rig::{MIB, Random, Rig, Seen, WriteNow, at, drain, read_after};
use outpost_journal::{Chore, Cursor, Done, Pumped, SEGMENT_BYTES, Stream};
use outpost_sys::pipe::Moved;

/// A cap of three segments.
const CAP: u64 = 3 * SEGMENT_BYTES + SEGMENT_BYTES / 2;

#[test]
fn no_output_is_moved_before_its_segment_exists() {
    let mut rig = Rig::new(CAP);
    rig.write(Stream::Stderr, b"first");
    let pump = |rig: &mut Rig| rig.writer.pump(Stream::Stderr, &rig.sources[1].read).unwrap();
    assert_eq!(pump(&mut rig), Pumped::AwaitsChore);
    let chores = rig.writer.chores();
    assert_eq!((chores.len(), rig.writer.chores().len()), (1, 0), "it is returned once");
    assert_eq!(pump(&mut rig), Pumped::AwaitsChore);
    assert!(!rig.path("err.0").exists(), "the thread that pumps does not create it");
    for done in chores.into_iter().map(Chore::execute) {
        let Done::Output(done) = done else { panic!("not a chore of the writer") };
        rig.writer.take(done).unwrap();
    }
    rig.pump(Stream::Stderr);
    assert_eq!(read_after(&rig.journal(), 0).stream(Stream::Stderr), b"first");
}

/// Fills three segments, the first with many records, and moves output that drops the head.
fn feed_to_the_cap(rig: &mut Rig) {
    let bytes = Random::new(1).bytes(3 * SEGMENT_BYTES as usize);
    let (tiny, rest) = bytes.split_at(600);
    for byte in tiny {
        rig.feed(Stream::Stdout, &[*byte]);
    }
    rig.feed(Stream::Stdout, rest);
    assert_eq!(rig.journal().first_seq(), 1);
    rig.write(Stream::Stdout, b"more");
    let pumped = rig.writer.pump(Stream::Stdout, &rig.sources[0].read).unwrap();
    assert_eq!(pumped, Pumped::Moved(Moved::Bytes(4)));
}

#[test]
fn readers_learn_of_a_drop_before_the_file_is_gone() {
    let mut rig = Rig::new(CAP);
    feed_to_the_cap(&mut rig);
    assert!(rig.path("out.0").exists() && rig.journal().first_seq() > 1);
    rig.writer.work().unwrap();
    assert!(!rig.path("out.0").exists());
}

#[test]
fn nothing_is_appended_while_the_index_is_punched() {
    let mut rig = Rig::new(CAP);
    feed_to_the_cap(&mut rig);
    let chores = rig.writer.chores();
    assert!(rig.writer.is_busy(), "an append would wait for the lock of the file");
    rig.write(Stream::Stdout, b"late");
    assert_eq!(rig.writer.pump(Stream::Stdout, &rig.sources[0].read).unwrap(), Pumped::AwaitsChore);
    for done in chores.into_iter().map(Chore::execute) {
        let Done::Output(done) = done else { panic!("not a chore of the writer") };
        rig.writer.take(done).unwrap();
    }
    assert!(!rig.writer.is_busy());
    rig.pump(Stream::Stdout);
    assert!(read_after(&rig.journal(), 0).stream(Stream::Stdout).ends_with(b"morelate"));
}

/// Executes some of the chores in order. Some of their results are taken.
fn execute_some(rig: &mut Rig, waiting: &mut Vec<Chore>, random: &mut Random) {
    waiting.extend(rig.writer.chores());
    for chore in waiting.drain(..random.below(waiting.len() + 1)) {
        let Done::Output(done) = chore.execute() else { panic!("not a chore of the writer") };
        rig.writer.take(done).unwrap();
    }
}

#[test]
fn killed_between_any_two_chores_no_byte_is_lost_or_doubled() {
    for seed in 1..=12 {
        let mut random = Random::new(seed);
        let mut rig = Rig::new(CAP);
        let (mut waiting, mut seen, mut last) = (Vec::new(), Seen::default(), 0);
        while rig.written[0].len() + rig.written[1].len() < 24 * MIB {
            let stream = Stream::ALL[usize::from(random.below(4) == 0)];
            let in_pipe = outpost_sys::pipe::buffered(&rig.sources[at(stream)].read).unwrap();
            if in_pipe < MIB as u64 / 2 {
                let longest = [50, MIB / 4][random.below(2)];
                let len = 1 + random.below(longest);
                let bytes = random.bytes(len);
                rig.write(stream, &bytes);
            }
            rig.writer.pump(stream, &rig.sources[at(stream)].read).unwrap();
            execute_some(&mut rig, &mut waiting, &mut random);
            match random.below(60) {
                0 => {
                    // The worker is killed: pending chores are never executed.
                    waiting.clear();
                    rig.recover();
                }
                1 => {
                    // The same, after chores whose results it did not see.
                    waiting.drain(..).for_each(|chore| drop(chore.execute()));
                    rig.recover();
                }
                _ => {}
            }
            let mut cursor = Cursor::after(rig.journal(), last);
            drain(&mut cursor, &mut seen);
            last = seen.pieces.last().map_or(0, |piece| piece.seq);
        }
        waiting.into_iter().for_each(|chore| {
            let Done::Output(done) = chore.execute() else { panic!("not a chore of the writer") };
            rig.writer.take(done).unwrap();
        });
        Stream::ALL.into_iter().for_each(|stream| rig.pump(stream));
        drain(&mut Cursor::after(rig.journal(), last), &mut seen);
        assert!(seen.first_kept.is_empty(), "seed {seed}: a reader that keeps up is overtaken");
        seen.assert_in_order(1);
        for stream in Stream::ALL {
            assert!(seen.stream(stream) == rig.written[at(stream)], "seed {seed}: {stream:?} differs");
        }
        let kept = std::fs::read_dir(rig.dir.path()).unwrap();
        let bytes: u64 = kept.map(|file| file.unwrap().metadata().unwrap().len()).sum();
        assert!(bytes <= CAP + 2 * SEGMENT_BYTES, "seed {seed}: {bytes} bytes on disk");
    }
}
