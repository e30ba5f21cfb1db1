//! The stdin log: every byte accepted reaches the child once, whoever dies in between.

use crate::rig::{MIB, Random, blocks_bytes};
use outpost_journal::{Accepted, StdinLog};
use outpost_sys::Errno;
use outpost_sys::fault::{self, Fault};
use outpost_sys::file;
use outpost_sys::pipe::{self, Moved, Pipe};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use tempfile::TempDir;

const WAITING_MAX: u64 = 1000;

struct Child {
    dir: TempDir,
    log: StdinLog,
    to: OwnedFd,
    from: File,
}

impl Child {
    fn new() -> Child {
        let dir = tempfile::tempdir().unwrap();
        let log = StdinLog::create(&dir.path().join("stdin")).unwrap();
        let Pipe { read, write } = pipe::pipe().unwrap();
        file::set_nonblocking(&read).unwrap();
        Child { dir, log, to: write, from: File::from(read) }
    }

    fn accept(&mut self, offset: Option<u64>, data: &[u8]) -> Accepted {
        self.log.accept(offset, data, WAITING_MAX).unwrap()
    }

    fn deliver(&mut self) -> Moved {
        loop {
            match self.log.deliver(&self.to).unwrap() {
                Moved::Bytes(_) => {}
                other => return other,
            }
        }
    }

    /// All that waits in the pipe.
    fn read(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let _empty = self.from.read_to_end(&mut bytes);
        bytes
    }

    /// The worker is killed; the keeper has the description.
    fn resume(&mut self) {
        let kept = file::duplicate(self.log.reader()).unwrap();
        self.log = StdinLog::resume(&self.dir.path().join("stdin"), kept).unwrap();
    }
}

#[test]
fn a_repeated_or_skipping_offset_neither_doubles_nor_loses_bytes() {
    let mut child = Child::new();
    assert_eq!(child.accept(None, b"abc"), Accepted::Applied { applied: 3 });
    assert_eq!(child.accept(Some(3), b"def"), Accepted::Applied { applied: 6 });
    assert_eq!(child.accept(Some(7), b"x"), Accepted::Gap { applied: 6 });
    assert_eq!(child.accept(Some(u64::MAX), b""), Accepted::Gap { applied: 6 });
    assert_eq!(child.accept(Some(0), b"abc"), Accepted::Duplicate { applied: 6 });
    assert_eq!(child.accept(Some(3), b"def"), Accepted::Duplicate { applied: 6 });
    assert_eq!(child.accept(Some(4), b"efgh"), Accepted::Applied { applied: 8 });
    assert_eq!(child.accept(Some(0), b"abcdefghi"), Accepted::Applied { applied: 9 });
    assert_eq!(child.accept(None, b""), Accepted::Applied { applied: 9 });
    assert_eq!(child.accept(Some(9), b""), Accepted::Applied { applied: 9 });
    assert_eq!(child.accept(Some(8), b""), Accepted::Duplicate { applied: 9 });
    assert_eq!((child.log.accepted(), child.log.delivered().unwrap()), (9, 0));
    assert_eq!(child.deliver(), Moved::End);
    assert_eq!(child.read(), b"abcdefghi");
    assert_eq!(child.log.delivered().unwrap(), 9);
}

#[test]
fn a_child_that_does_not_read_bounds_what_waits() {
    let mut child = Child::new();
    assert_eq!(child.accept(None, &[b'a'; 900]), Accepted::Applied { applied: 900 });
    assert_eq!(child.accept(Some(900), &[b'b'; 101]), Accepted::Full { applied: 900, beyond: false });
    assert_eq!(child.accept(Some(800), &[b'b'; 201]), Accepted::Full { applied: 900, beyond: false });
    assert_eq!(child.accept(Some(900), &[b'b'; 100]), Accepted::Applied { applied: 1000 });
    assert_eq!(child.accept(None, b"c"), Accepted::Full { applied: 1000, beyond: false });
    assert_eq!(child.accept(Some(0), &[b'a'; 900]), Accepted::Duplicate { applied: 1000 });
    assert_eq!(child.deliver(), Moved::End);
    assert_eq!(child.accept(None, b"c"), Accepted::Applied { applied: 1001 });
    assert_eq!(child.deliver(), Moved::End);
    assert_eq!(child.read(), [vec![b'a'; 900], vec![b'b'; 100], vec![b'c']].concat());
}

#[test]
fn one_message_larger_than_the_bound_is_not_refused_for_ever() {
    let mut child = Child::new();
    let large = Random::new(1).bytes(WAITING_MAX as usize * 300);
    assert_eq!(child.accept(None, b"x"), Accepted::Applied { applied: 1 });
    assert_eq!(child.accept(None, &large), Accepted::Full { applied: 1, beyond: false });
    assert_eq!(child.deliver(), Moved::End);
    assert_eq!(child.accept(None, &large), Accepted::Applied { applied: large.len() as u64 + 1 });
    assert_eq!(child.accept(None, b"y"), Accepted::Full { applied: large.len() as u64 + 1, beyond: true });
    let mut got = child.read();
    while child.deliver() == Moved::WouldBlock {
        got.extend(child.read());
    }
    got.extend(child.read());
    assert_eq!(got, [b"x", &large[..]].concat());
}

#[test]
fn killed_at_any_point_each_byte_is_delivered_once() {
    for seed in 1..=10 {
        let mut random = Random::new(seed);
        let mut child = Child::new();
        let (mut sent, mut got) = (Vec::new(), Vec::new());
        for _ in 0..300 {
            match random.below(5) {
                0 => {
                    let data = {
                        let len = random.below(3000);
                        random.bytes(len)
                    };
                    // Without an answer (we were killed), a sender repeats itself, and may add something.
                    let back = random.below(sent.len().min(500) + 1);
                    let offset = sent.len() - back;
                    let data = [&sent[offset..], &data].concat();
                    match child.log.accept(Some(offset as u64), &data, 100_000).unwrap() {
                        Accepted::Applied { applied } => {
                            sent.extend_from_slice(&data[back..]);
                            assert_eq!(applied as usize, sent.len());
                        }
                        Accepted::Duplicate { applied } => assert_eq!(applied as usize, sent.len()),
                        Accepted::Full { .. } => {}
                        Accepted::Gap { applied } => panic!("gap at {applied}"),
                    }
                }
                1 => child.resume(),
                2 => got.extend(child.read()),
                _ => {
                    child.log.deliver(&child.to).unwrap();
                }
            }
            assert_eq!(child.log.accepted() as usize, sent.len());
        }
        while child.deliver() == Moved::WouldBlock {
            got.extend(child.read());
        }
        got.extend(child.read());
        assert!(got == sent, "seed {seed}: {} of {} bytes", got.len(), sent.len());
        assert_eq!(child.log.delivered().unwrap() as usize, sent.len());
    }
}

#[test]
fn a_child_that_closed_its_stdin_does_not_block_the_sender() {
    let mut child = Child::new();
    child.accept(None, b"unread");
    let Pipe { read, .. } = pipe::pipe().unwrap();
    child.from = File::from(read);
    assert_eq!(child.deliver(), Moved::End);
    assert!(child.log.discards());
    assert_eq!(child.log.delivered().unwrap(), 6);
    let large = vec![b'x'; 10 * MIB];
    assert_eq!(child.accept(Some(6), &large), Accepted::Applied { applied: 6 + 10 * MIB as u64 });
    assert_eq!(child.accept(Some(5), b"dx"), Accepted::Duplicate { applied: 6 + 10 * MIB as u64 });
    assert_eq!(child.accept(None, b"y"), Accepted::Applied { applied: 7 + 10 * MIB as u64 });
    assert_eq!(child.accept(Some(1 << 40), b"y"), Accepted::Gap { applied: 7 + 10 * MIB as u64 });
    assert_eq!(child.deliver(), Moved::End);
    assert!(
        blocks_bytes(&child.dir.path().join("stdin")) < MIB as u64,
        "nobody will read it, so it is not kept"
    );
    child.resume();
    assert_eq!(
        (child.log.accepted(), child.log.delivered().unwrap()),
        (7 + 10 * MIB as u64, 7 + 10 * MIB as u64)
    );
    assert_eq!(child.accept(None, b"z"), Accepted::Applied { applied: 8 + 10 * MIB as u64 });
    assert_eq!(child.deliver(), Moved::End);
    assert!(child.log.discards());
}

#[test]
fn a_failure_while_discarding_leaves_nothing_waiting() {
    for nth in 1.. {
        let mut child = Child::new();
        child.accept(None, b"unread");
        child.from = File::from(pipe::pipe().unwrap().read);
        fault::arm(nth, Fault::Errno(Errno::IO));
        let failed = child.log.deliver(&child.to).is_err();
        if fault::disarm() {
            assert!(nth > 3);
            break;
        }
        assert!(failed, "call {nth}");
        assert_eq!(child.deliver(), Moved::End);
        assert_eq!((child.log.accepted(), child.log.delivered().unwrap()), (6, 6), "call {nth}");
    }
}

/// Pushes `total` bytes through a pipe; the child reads, and leaves `lag` bytes waiting. Returns the most disk used.
fn push(child: &mut Child, total: usize, lag: usize) -> u64 {
    let bytes = Random::new(2).bytes(total);
    let path = child.dir.path().join("stdin");
    let (mut got, mut most, mut accepted) = (Vec::new(), 0, 0);
    while accepted < total {
        let piece = &bytes[accepted..total.min(accepted + 300_000)];
        child.log.accept(Some(accepted as u64), piece, u64::MAX).unwrap();
        accepted += piece.len();
        while child.log.delivered().unwrap() + (lag as u64) < accepted as u64 {
            child.log.deliver(&child.to).unwrap();
            got.extend(child.read());
        }
        if lag == 0 {
            assert_eq!(child.deliver(), Moved::End);
        }
        most = most.max(blocks_bytes(&path));
    }
    while child.deliver() == Moved::WouldBlock {
        got.extend(child.read());
    }
    got.extend(child.read());
    assert!(got == bytes, "{} of {total} bytes", got.len());
    most
}

#[test]
fn a_long_log_gives_delivered_bytes_back_and_still_delivers_exactly() {
    let mut child = Child::new();
    pipe::set_capacity(&child.to, MIB).unwrap();
    let most = push(&mut child, 20 * MIB, 0);
    assert!(most < 10 * MIB as u64, "{most} bytes of disk");
    assert_eq!(child.log.accepted(), 20 * MIB as u64);
}

#[test]
fn a_child_that_is_always_a_little_behind_does_not_fill_the_disk() {
    let mut child = Child::new();
    let most = push(&mut child, 24 * MIB, 100_000);
    assert!(most < 11 * MIB as u64, "{most} bytes of disk");
}
