//! Readers on their own threads while the writer writes and drops the head.

use crate::rig::{EXIT, MIB, Random, Rig, Seen, drain};
use outpost_journal::{Batch, Cursor, Error, Journal, ReadMode, Stream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Reads to the end in small steps; now and then reattaches at an earlier position.
fn read_along(journal: Arc<Journal>, seed: u64) -> Vec<Seen> {
    let mut random = Random::new(seed);
    let mut visits = vec![Seen::default()];
    let (mut cursor, mut batch) = (Cursor::after(journal.clone(), 0), Batch::default());
    loop {
        match cursor.read(&mut batch, random.below(200_000), ReadMode::CachedOnly) {
            Ok(()) => {}
            Err(Error::NotCached) => cursor.read(&mut batch, MIB, ReadMode::MayBlock).unwrap(),
            Err(error) => panic!("{error}"),
        }
        if batch.is_empty() {
            thread::park_timeout(Duration::from_millis(1));
        }
        let visit = visits.last_mut().unwrap();
        visit.add(&batch);
        if visit.ended.is_some() {
            return visits;
        }
        if random.below(100) == 0 {
            let back = random.below(2000) as u64;
            cursor = Cursor::after(journal.clone(), cursor.next_seq().saturating_sub(back));
            visits.push(Seen::default());
        }
    }
}

#[test]
fn a_head_dropped_during_a_read_is_reported_and_never_an_error() {
    let mut rig = Rig::new(9 * MIB as u64);
    let mut random = Random::new(1);
    let readers: Vec<_> = (2..5).map(|seed| (rig.journal(), seed)).collect();
    let readers: Vec<_> =
        readers.into_iter().map(|(journal, seed)| thread::spawn(move || read_along(journal, seed))).collect();
    let (mut live, mut model) = (Cursor::after(rig.journal(), 0), Seen::default());
    for _ in 0..24 {
        for _ in 0..150 {
            rig.feed(Stream::Stderr, b"tiny");
            rig.feed(Stream::Stdout, b"too");
        }
        for _ in 0..8 {
            let bytes = random.bytes(256 * 1024);
            rig.feed(Stream::Stdout, &bytes);
        }
        drain(&mut live, &mut model);
    }
    rig.writer.finish(&EXIT).unwrap();
    drain(&mut live, &mut model);
    model.assert_in_order(1);
    assert_eq!(model.stream(Stream::Stdout), rig.written[0]);
    for reader in readers {
        for visit in reader.join().unwrap() {
            assert!(visit.first_kept.is_sorted());
            let mut next = None;
            for piece in &visit.pieces {
                assert_eq!(piece, &model.pieces[piece.seq as usize - 1]);
                let told = visit.first_kept.contains(&piece.seq);
                assert!(
                    next.is_none_or(|next| next == piece.seq) || told,
                    "{} was skipped in silence",
                    piece.seq
                );
                next = Some(piece.seq + 1);
            }
            assert!(visit.ended.is_none() || visit.ended == model.ended);
        }
    }
}
