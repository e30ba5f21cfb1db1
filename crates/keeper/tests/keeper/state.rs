//! The state a keeper begins with: whatever the bytes, an answer and no panic.

use crate::kit::random;
use outpost_keeper::state::{Running, STATE_BYTES_MAX, SerializedEntry, State};
use outpost_keeper::{ProcessState, check};
use outpost_sys::file;
use outpost_sys::pidfd::Exit;
use outpost_sys::pipe::pipe;

fn state() -> State {
    let entry = |slot| SerializedEntry {
        slot,
        pid: 1000,
        state: if slot % 2 == 0 { ProcessState::Running } else { ProcessState::Ended(Exit::UNKNOWN) },
        pidfd: 30,
        held: vec![(1, 31), (2, 32)],
        exec_status: -1,
    };
    State {
        binary: 5,
        arguments: vec![c"outpost".into(), c"worker".into()],
        worker: Some(Running { pid: 7, pidfd: 8, link: 9, served: true }),
        replaced: false,
        entries: (16..48).map(entry).collect(),
    }
}

#[test]
fn random_bytes_are_no_state() {
    let mut next = random(1);
    for _ in 0..20_000 {
        let len = (next() % 300) as usize;
        let bytes: Vec<u8> = (0..len).map(|_| next() as u8).collect();
        assert_eq!(State::decode(&bytes), None);
    }
}

#[test]
fn a_state_with_changed_bytes_is_another_or_none() {
    let good = state().encode();
    let mut next = random(2);
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..=next() % 4 {
            let at = next() as usize % bytes.len();
            bytes[at] = next() as u8;
        }
        bytes.truncate(next() as usize % (2 * good.len()));
        // Counts of four thousand million must not be believed.
        if let Some(read) = State::decode(&bytes) {
            assert!(read.entries.len() <= bytes.len() && read.arguments.len() <= bytes.len());
            assert_eq!(State::decode(&read.encode()), Some(read));
        }
    }
}

#[test]
fn a_state_is_checked_by_its_descriptor() {
    let checked =
        |bytes: &[u8]| check(file::into_inherited(file::sealed_memory("state", bytes).unwrap()).unwrap());
    let good = state().encode();
    assert!(checked(&good));
    assert!(!checked(&[]));
    assert!(!checked(&good[..good.len() - 1]));
    let mut other = good.clone();
    other[0] ^= 1;
    assert!(!checked(&other));
    let mut large = good;
    large.resize(STATE_BYTES_MAX as usize + 1, 0);
    assert!(!checked(&large));
    assert!(!check(-1));
    assert!(!check(1_000_000));
    assert!(!check(file::into_inherited(pipe().unwrap().read).unwrap()));
}
