//! Who reads a process, how far, and whether it pays to wait for somebody before the head of the journal is dropped.
//!
//! Unless its process was started to wait for all of them, a reader never slows a child, with one exception: at the cap, when dropping the head would take output from a reader
//! that is keeping up. Such a one reads at least [`KEEPS_UP_BYTES`] in each [`WINDOW`]; one that is slower, or stuck, is told
//! what it has lost, as everybody was promised.

use crate::spec::AtCap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a reader must take in a window to be waited for: 4 MB a second. A child is never slowed below that for anybody.
const KEEPS_UP_BYTES: u64 = 1000 * 1000;
const WINDOW: Duration = Duration::from_millis(250);
/// One that took nothing for so many windows is stuck.
const STUCK_AFTER_WINDOWS: u32 = 4;

/// The readers of one process.
pub(crate) struct Readers {
    begun: Instant,
    positions: Mutex<Vec<Arc<Position>>>,
    /// There has been one.
    joined: AtomicBool,
}

/// How far one reader is.
pub(crate) struct Position {
    next_seq: AtomicU64,
    window_began_ms: AtomicU64,
    window_bytes: AtomicU64,
    keeps_up: AtomicBool,
    /// Nobody waits for it.
    looks_on: bool,
}

impl Readers {
    pub(crate) fn new() -> Readers {
        Readers { begun: Instant::now(), positions: Mutex::default(), joined: AtomicBool::new(false) }
    }

    /// A new reader, which has one window to show its pace, or one that nothing ever waits for.
    pub(crate) fn join(&self, next_seq: u64, looks_on: bool) -> Arc<Position> {
        let position = Arc::new(Position {
            next_seq: AtomicU64::new(next_seq),
            window_began_ms: AtomicU64::new(self.now_ms()),
            window_bytes: AtomicU64::new(0),
            keeps_up: AtomicBool::new(true),
            looks_on,
        });
        self.lock().push(position.clone());
        self.joined.fetch_or(!looks_on, Ordering::Relaxed);
        position
    }

    pub(crate) fn leave(&self, position: &Arc<Position>) {
        self.lock().retain(|other| !Arc::ptr_eq(other, position));
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Notes that a reader has taken `bytes` and goes on with `next_seq`.
    pub(crate) fn moved(&self, position: &Position, next_seq: u64, bytes: u64) {
        position.next_seq.store(next_seq, Ordering::Relaxed);
        let taken = position.window_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let now_ms = self.now_ms();
        if now_ms.saturating_sub(position.window_began_ms.load(Ordering::Relaxed))
            >= WINDOW.as_millis() as u64
        {
            position.keeps_up.store(taken >= KEEPS_UP_BYTES, Ordering::Relaxed);
            position.window_began_ms.store(now_ms, Ordering::Relaxed);
            position.window_bytes.store(0, Ordering::Relaxed);
        }
    }

    /// Whether somebody who is to be waited for still needs the frames up to `last_seq`.
    pub(crate) fn need(&self, last_seq: u64, at_cap: AtCap) -> bool {
        match at_cap {
            AtCap::DropHead => self.need_of_those_who_keep_up(last_seq),
            AtCap::WaitForReaders => {
                let behind = |position: &Arc<Position>| {
                    !position.looks_on && position.next_seq.load(Ordering::Relaxed) <= last_seq
                };
                !self.joined.load(Ordering::Relaxed) || self.lock().iter().any(behind)
            }
        }
    }

    fn need_of_those_who_keep_up(&self, last_seq: u64) -> bool {
        let stuck_ms = u64::from(STUCK_AFTER_WINDOWS) * WINDOW.as_millis() as u64;
        let now_ms = self.now_ms();
        self.lock().iter().any(|position| {
            let silent_ms = now_ms.saturating_sub(position.window_began_ms.load(Ordering::Relaxed));
            !position.looks_on
                && position.next_seq.load(Ordering::Relaxed) <= last_seq
                && position.keeps_up.load(Ordering::Relaxed)
                && silent_ms < stuck_ms
        })
    }

    fn now_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Position>>> {
        self.positions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn later(readers: &mut Readers, by: Duration) {
        readers.begun = readers.begun.checked_sub(by).unwrap();
    }

    #[test]
    fn a_reader_that_keeps_up_is_waited_for_and_a_slow_or_stuck_one_is_not() {
        let mut readers = Readers::new();
        assert!(!readers.need(10, AtCap::DropHead), "nobody reads");
        let position = readers.join(5, false);
        assert!(readers.need(10, AtCap::DropHead) && !readers.need(4, AtCap::DropHead));
        later(&mut readers, WINDOW);
        readers.moved(&position, 7, KEEPS_UP_BYTES);
        assert!(readers.need(10, AtCap::DropHead), "fast");
        later(&mut readers, WINDOW);
        readers.moved(&position, 8, KEEPS_UP_BYTES - 1);
        assert!(!readers.need(10, AtCap::DropHead), "slow");
        later(&mut readers, WINDOW);
        readers.moved(&position, 9, KEEPS_UP_BYTES);
        assert!(readers.need(10, AtCap::DropHead), "fast again");
        later(&mut readers, STUCK_AFTER_WINDOWS * WINDOW);
        assert!(!readers.need(10, AtCap::DropHead), "stuck");
        readers.leave(&position);
        assert_eq!(readers.count(), 0);
    }

    #[test]
    fn a_process_that_waits_for_its_readers_waits_for_the_first_the_slow_and_the_stuck() {
        let mut readers = Readers::new();
        assert!(readers.need(10, AtCap::WaitForReaders), "nobody has come yet");
        let onlooker = readers.join(1, true);
        assert!(readers.need(10, AtCap::WaitForReaders), "only somebody who looks on");
        let position = readers.join(5, false);
        later(&mut readers, 100 * WINDOW);
        assert!(readers.need(5, AtCap::WaitForReaders) && !readers.need(4, AtCap::WaitForReaders));
        readers.leave(&position);
        assert!(!readers.need(10, AtCap::WaitForReaders), "all have left but the one who looks on");
        assert!(!readers.need(10, AtCap::DropHead) && readers.count() == 1);
        readers.leave(&onlooker);
    }
}
