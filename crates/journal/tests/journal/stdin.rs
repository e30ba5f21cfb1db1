//! The stdin log: every accepted byte reaches the child once, although worker or keeper dies in between.

use crate::rig::{LogNow, MIB, Random, blocks_bytes};
use outpost_journal::{Accepted, Delivered, StdinLog};
use outpost_sys::Errno;
use outpost_sys::fault::{self, Fault};
use outpost_sys::file;
use outpost_sys::pipe::{self, Pipe};
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
    /// The file description that the keeper holds.
    kept: OwnedFd,
}

impl Child {
    fn new() -> Child {
        let dir = tempfile::tempdir().unwrap();
        let log = StdinLog::create_now(&dir.path().join("stdin")).unwrap();
        let Pipe { read, write } = pipe::pipe().unwrap();
        file::set_nonblocking(&read).unwrap();
        let kept = file::duplicate(log.reader()).unwrap();
        Child { dir, log, to: write, from: File::from(read), kept }
    }

    fn accept(&mut self, offset: Option<u64>, data: &[u8]) -> Accepted {
        self.log.accept_now(offset, data, WAITING_MAX).unwrap()
    }

    /// One delivery. The keeper holds a new part at once.
    fn deliver_some(&mut self) -> Delivered {
        let delivered = self.log.deliver_now(&self.to).unwrap();
        if delivered == Delivered::NextPart {
            self.kept = file::duplicate(self.log.reader()).unwrap();
            self.log.set_reader_held();
        }
        delivered
    }

    fn deliver(&mut self) -> Delivered {
        loop {
            match self.deliver_some() {
                Delivered::Bytes(_) | Delivered::NextPart => {}
                other => return other,
            }
        }
    }

    /// Everything in the pipe.
    fn read(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let _empty = self.from.read_to_end(&mut bytes);
        bytes
    }

    /// Disk blocks of all parts, in bytes.
    fn blocks_bytes(&self) -> u64 {
        let parts = std::fs::read_dir(self.dir.path()).unwrap();
        parts.map(|part| blocks_bytes(&part.unwrap().path())).sum()
    }

    /// The worker is killed; the keeper has the file description.
    fn resume(&mut self) {
        let kept = file::duplicate(&self.kept).unwrap();
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
    assert_eq!(child.deliver(), Delivered::End);
    assert_eq!(child.read(), b"abcdefghi");
    assert_eq!(child.log.delivered().unwrap(), 9);
}

#[test]
fn undelivered_bytes_of_a_child_that_does_not_read_are_bounded() {
    let mut child = Child::new();
    assert_eq!(child.accept(None, &[b'a'; 900]), Accepted::Applied { applied: 900 });
    assert_eq!(child.accept(Some(900), &[b'b'; 101]), Accepted::Full { applied: 900, beyond: false });
    assert_eq!(child.accept(Some(800), &[b'b'; 201]), Accepted::Full { applied: 900, beyond: false });
    assert_eq!(child.accept(Some(900), &[b'b'; 100]), Accepted::Applied { applied: 1000 });
    assert_eq!(child.accept(None, b"c"), Accepted::Full { applied: 1000, beyond: false });
    assert_eq!(child.accept(Some(0), &[b'a'; 900]), Accepted::Duplicate { applied: 1000 });
    assert_eq!(child.deliver(), Delivered::End);
    assert_eq!(child.accept(None, b"c"), Accepted::Applied { applied: 1001 });
    assert_eq!(child.deliver(), Delivered::End);
    assert_eq!(child.read(), [vec![b'a'; 900], vec![b'b'; 100], vec![b'c']].concat());
}

#[test]
fn a_message_larger_than_the_limit_is_accepted_eventually() {
    let mut child = Child::new();
    let large = Random::new(1).bytes(WAITING_MAX as usize * 300);
    assert_eq!(child.accept(None, b"x"), Accepted::Applied { applied: 1 });
    assert_eq!(child.accept(None, &large), Accepted::Full { applied: 1, beyond: false });
    assert_eq!(child.deliver(), Delivered::End);
    assert_eq!(child.accept(None, &large), Accepted::Applied { applied: large.len() as u64 + 1 });
    assert_eq!(child.accept(None, b"y"), Accepted::Full { applied: large.len() as u64 + 1, beyond: true });
    let mut got = child.read();
    while child.deliver() == Delivered::WouldBlock {
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
                    // Without a reply (the worker was killed), a sender repeats its bytes and may add some.
                    let back = random.below(sent.len().min(500) + 1);
                    let offset = sent.len() - back;
                    let data = [&sent[offset..], &data].concat();
                    match child.log.accept_now(Some(offset as u64), &data, 100_000).unwrap() {
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
                    child.deliver_some();
                }
            }
            assert_eq!(child.log.accepted() as usize, sent.len());
        }
        while child.deliver() == Delivered::WouldBlock {
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
    assert_eq!(child.deliver(), Delivered::End);
    assert!(child.log.discards());
    assert_eq!(child.log.delivered().unwrap(), 6);
    let large = vec![b'x'; 10 * MIB];
    assert_eq!(child.accept(Some(6), &large), Accepted::Applied { applied: 6 + 10 * MIB as u64 });
    assert_eq!(child.accept(Some(5), b"dx"), Accepted::Duplicate { applied: 6 + 10 * MIB as u64 });
    assert_eq!(child.accept(None, b"y"), Accepted::Applied { applied: 7 + 10 * MIB as u64 });
    assert_eq!(child.accept(Some(1 << 40), b"y"), Accepted::Gap { applied: 7 + 10 * MIB as u64 });
    assert_eq!(child.deliver(), Delivered::End);
    assert!(child.blocks_bytes() < MIB as u64, "discarded bytes take no space");
    child.resume();
    assert_eq!(
        (child.log.accepted(), child.log.delivered().unwrap()),
        (7 + 10 * MIB as u64, 7 + 10 * MIB as u64)
    );
    assert_eq!(child.accept(None, b"z"), Accepted::Applied { applied: 8 + 10 * MIB as u64 });
    assert_eq!(child.deliver(), Delivered::End);
    assert!(child.log.discards());
}

#[test]
fn a_failure_while_discarding_leaves_nothing_undelivered() {
    for nth in 1.. {
        let mut child = Child::new();
        child.accept(None, b"unread");
        child.from = File::from(pipe::pipe().unwrap().read);
        fault::arm(nth, Fault::Errno(Errno::IO));
        let failed = child.log.deliver_now(&child.to).is_err();
        if fault::disarm() {
            assert!(nth > 2);
            break;
        }
        assert!(failed, "call {nth}");
        assert_eq!(child.deliver(), Delivered::End);
        assert_eq!((child.log.accepted(), child.log.delivered().unwrap()), (6, 6), "call {nth}");
    }
}

/// Pushes `total` bytes through a pipe. The child reads, but stays `lag` bytes behind. Returns the maximum
/// disk usage.
fn push(child: &mut Child, total: usize, lag: usize) -> u64 {
    let bytes = Random::new(2).bytes(total);
    let (mut got, mut most, mut accepted) = (Vec::new(), 0, 0);
    while accepted < total {
        let piece = &bytes[accepted..total.min(accepted + 300_000)];
        child.log.accept_now(Some(accepted as u64), piece, u64::MAX).unwrap();
        accepted += piece.len();
        while child.log.delivered().unwrap() + (lag as u64) < accepted as u64 {
            child.deliver_some();
            got.extend(child.read());
        }
        if lag == 0 {
            assert_eq!(child.deliver(), Delivered::End);
        }
        most = most.max(child.blocks_bytes());
    }
    while child.deliver() == Delivered::WouldBlock {
        got.extend(child.read());
    }
    got.extend(child.read());
    assert!(got == bytes, "{} of {total} bytes", got.len());
    most
}

#[test]
fn a_long_log_frees_delivered_bytes_and_still_delivers_exactly() {
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

/// A descendant of the child can splice its input to other pipes and read it much later.
#[test]
fn delivered_pages_that_a_pipe_still_holds_never_change() {
    let mut child = Child::new();
    pipe::set_capacity(&child.to, MIB).unwrap();
    let bytes = Random::new(5).bytes(20 * MIB);
    let mut holders = Vec::new();
    for piece in bytes.chunks(MIB / 2) {
        child.log.accept_now(None, piece, u64::MAX).unwrap();
        assert_eq!(child.deliver(), Delivered::End);
        let holder = pipe::pipe().unwrap();
        pipe::set_capacity(&holder.write, MIB).unwrap();
        let mut held = 0;
        while held < piece.len() {
            match pipe::splice(&child.from, &holder.write, MIB).unwrap() {
                pipe::Moved::Bytes(count) => held += count,
                other => panic!("{other:?} after {held} bytes"),
            }
        }
        holders.push(File::from(holder.read));
    }
    StdinLog::retire(&child.dir.path().join("stdin")).unwrap();
    for (number, (piece, mut holder)) in bytes.chunks(MIB / 2).zip(holders).enumerate() {
        let mut read = vec![0; piece.len()];
        holder.read_exact(&mut read).unwrap();
        let changed = read.iter().zip(piece).filter(|(read, sent)| read != sent).count();
        assert_eq!(changed, 0, "bytes of piece {number}");
    }
}

#[test]
fn a_retired_log_takes_no_space_and_keeps_the_accepted_count() {
    let mut child = Child::new();
    let path = child.dir.path().join("stdin");
    assert_eq!(StdinLog::accepted_by(&path).unwrap(), 0);
    for accepted in [700, 5 * MIB as u64, 11 * MIB as u64] {
        let more = vec![b'x'; (accepted - child.log.accepted()) as usize];
        child.log.accept_now(None, &more, u64::MAX).unwrap();
        assert_eq!(StdinLog::accepted_by(&path).unwrap(), accepted);
        // A part that a killed worker or a full disk left.
        for _ in 0..2 {
            StdinLog::retire(&path).unwrap();
            assert_eq!(StdinLog::accepted_by(&path).unwrap(), accepted);
            assert_eq!(child.blocks_bytes(), 0);
        }
        child = Child { log: StdinLog::from_start(&path).unwrap().unwrap(), ..child };
    }
}

/// The worker dies between any two steps of a change of parts. The keeper then has the file description it
/// got last.
#[test]
fn killed_between_two_parts_each_byte_is_delivered_once() {
    for seed in 1..=4 {
        let mut random = Random::new(seed);
        let mut child = Child::new();
        pipe::set_capacity(&child.to, MIB).unwrap();
        let sent = random.bytes(18 * MIB);
        let mut got = Vec::new();
        while got.len() < sent.len() {
            let applied = child.log.accepted() as usize;
            let next = (applied + 1 + random.below(3 * MIB)).min(sent.len());
            child.log.accept_now(Some(applied as u64), &sent[applied..next], 9 * MIB as u64).unwrap();
            for _ in 0..random.below(6) {
                // Without `set_reader_held`: the keeper does not hold the part yet.
                child.log.deliver_now(&child.to).unwrap();
                if random.below(3) == 0 {
                    child.resume();
                }
                child.deliver_some();
                got.extend(child.read());
            }
        }
        assert!(got == sent, "seed {seed}");
        assert_eq!(child.log.delivered().unwrap(), child.log.accepted());
    }
}

#[test]
fn a_child_that_closes_its_stdin_behind_several_parts_costs_no_disk() {
    let mut child = Child::new();
    child.log.accept_now(None, &vec![b'x'; 5 * MIB], u64::MAX).unwrap();
    child.log.accept_now(None, &vec![b'y'; 5 * MIB], u64::MAX).unwrap();
    child.log.accept_now(None, b"z", u64::MAX).unwrap();
    child.from = File::from(pipe::pipe().unwrap().read);
    assert_eq!(child.deliver(), Delivered::End);
    assert!(child.log.discards());
    let accepted = 10 * MIB as u64 + 1;
    assert_eq!((child.log.accepted(), child.log.delivered().unwrap()), (accepted, accepted));
    assert!(child.blocks_bytes() < MIB as u64);
    child.resume();
    assert_eq!(child.accept(None, b"z"), Accepted::Applied { applied: accepted + 1 });
    assert_eq!(child.deliver(), Delivered::End);
    assert!(child.log.discards());
}

/// A full disk accepts part of a message. The reply is that none was accepted, and the sender repeats all of
/// it.
#[test]
fn bytes_that_were_refused_are_neither_counted_nor_delivered() {
    let mut child = Child::new();
    child.accept(None, b"before ");
    for nth in 1.. {
        fault::arm(nth, Fault::ShortThen(Errno::NOSPC));
        let refused = child.log.accept_now(None, b"refused and sent again ", WAITING_MAX);
        if fault::disarm() {
            assert!(nth > 1 && refused.is_ok(), "call {nth}: {refused:?}");
            break;
        }
        if refused.is_ok() {
            continue;
        }
        assert_eq!(child.log.accepted(), 7, "call {nth}");
        child.resume();
        assert_eq!(child.log.accepted(), 7, "the next worker counts refused bytes");
        assert_eq!(child.deliver(), Delivered::End);
        assert_eq!(child.read(), if nth == 1 { &b"before "[..] } else { b"" });
    }
    assert_eq!(child.deliver(), Delivered::End);
    let read = child.read();
    assert!(
        read.ends_with(b"refused and sent again ") && read.len() <= 30,
        "{}",
        String::from_utf8_lossy(&read)
    );
}
