//! The fuzz target's body on stable Rust, with inputs derived from real journals.

use crate::open_any_bytes::{FIRST_IS_GONE, HOLE, REPAIR, SECOND_IS_NEXT, open_any_bytes};
use crate::rig::{EXIT, NO_CAP, Random, Rig};
use outpost_journal::Stream;
use std::fs;

/// An input with the files of a small journal.
fn real_input(flags: u8, finished: bool) -> Vec<u8> {
    let mut rig = Rig::new(NO_CAP);
    rig.writer.started(1, 2).unwrap();
    rig.feed(Stream::Stdout, b"some output");
    rig.feed(Stream::Stderr, b"an error");
    rig.writer.close_stdin(3).unwrap();
    rig.feed(Stream::Stdout, &[b'x'; 300]);
    if finished {
        rig.writer.finish(&EXIT).unwrap();
    }
    let mut index = fs::read(rig.path("index")).unwrap();
    let (mut out, mut err) = (fs::read(rig.path("out.0")).unwrap(), fs::read(rig.path("err.0")).unwrap());
    if flags & HOLE != 0 {
        // Records after the hole continue with later numbers and offsets.
        out.splice(..0, [b'.'; 128]);
        for record in index.chunks_exact_mut(32) {
            record[17] = 1;
            record[24] += if record[4] == 2 { 128 } else { 0 };
        }
    }
    // The input is split into halves.
    err.resize(out.len(), b'e');
    let mut input = vec![flags];
    input.extend_from_slice(&(index.len() as u16).to_le_bytes());
    input.extend(index);
    input.extend(out);
    input.extend(err);
    input
}

/// Changes a field of a record to something that is likely to matter.
fn mutate(input: &mut Vec<u8>, random: &mut Random) {
    const PLACES: [usize; 6] = [4, 12, 16, 16, 24, 24];
    let index_len = usize::from(u16::from_le_bytes([input[1], input[2]])).min(input.len() - 3);
    match random.below(6) {
        0 => {
            let at = random.below(input.len());
            input[at] = random.next() as u8;
        }
        1 if index_len >= 64 => {
            // A record twice, or two in the wrong order.
            let (from, to) = (random.below(index_len / 32), random.below(index_len / 32));
            input.copy_within(3 + from * 32..3 + from * 32 + 32, 3 + to * 32);
        }
        2 => input.truncate(3 + random.below(input.len() - 2)),
        3 if index_len >= 32 => {
            let at = 3 + random.below(index_len / 32) * 32 + 4;
            if let Some(kind) = input.get_mut(at) {
                *kind = random.below(12) as u8;
            }
        }
        _ if index_len >= 32 => {
            let place = PLACES[random.below(PLACES.len())];
            let at = 3 + random.below(index_len / 32) * 32 + place;
            let values = [
                0,
                1,
                2,
                11,
                128,
                129,
                300,
                4 << 20,
                (4 << 20) - 1,
                u64::MAX,
                u64::MAX - 1,
                1 << 62,
                1 << 63,
            ];
            let value = values[random.below(values.len())].to_le_bytes();
            let width = if place == 4 {
                1
            } else if place == 12 {
                4
            } else {
                8
            };
            if let Some(field) = input.get_mut(at..at + width) {
                field.copy_from_slice(&value[..width]);
            }
        }
        _ => {}
    }
}

#[test]
fn no_bytes_on_disk_make_an_open_panic() {
    open_any_bytes(&[]);
    open_any_bytes(&[HOLE, 0, 0]);
    for flags in 0..16 {
        assert!(flags <= REPAIR | HOLE | SECOND_IS_NEXT | FIRST_IS_GONE);
        for finished in [false, true] {
            let real = real_input(flags, finished);
            open_any_bytes(&real);
            let mut random = Random::new(u64::from(flags) * 2 + u64::from(finished) + 1);
            // A full segment takes long to read.
            let inputs = if flags & (SECOND_IS_NEXT | FIRST_IS_GONE) == SECOND_IS_NEXT { 8 } else { 40 };
            for _ in 0..inputs {
                let mut input = real.clone();
                for _ in 0..=random.below(4) {
                    mutate(&mut input, &mut random);
                }
                open_any_bytes(&input);
            }
        }
    }
}
