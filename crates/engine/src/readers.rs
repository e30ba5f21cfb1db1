//! The readers of a process and their positions, which decide whether the process waits before the oldest output is
//! dropped.
//!
//! Unless its process waits for all readers ([`AtCap::WaitForReaders`]), a reader slows the process in one case only:
//! the journal is full, and the reader keeps up and has not read the oldest output. A reader keeps up if it reads at
//! least [`KEEPS_UP_BYTES`] in each [`WINDOW`]. A slower one gets a gap.

use crate::spec::AtCap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The least bytes of a reader in a window to be waited for: 4 MB a second. No child is slowed below that.
const KEEPS_UP_BYTES: u64 = 1000 * 1000;
const WINDOW: Duration = Duration::from_millis(250);
/// A reader without a read for this many windows is stuck.
const STUCK_AFTER_WINDOWS: u32 = 4;

/// The readers of one process.
pub(crate) struct Readers {
    begun: Instant,
    positions: Mutex<Vec<Arc<ReaderPosition>>>,
    /// There was a reader that the process waits for.
    has_had_reader: AtomicBool,
}

/// The position of one reader.
pub(crate) struct ReaderPosition {
    next_seq: AtomicU64,
    window_began_ms: AtomicU64,
    window_bytes: AtomicU64,
    keeps_up: AtomicBool,
    /// The process never waits for it.
    is_observer: bool,
}

impl Readers {
    pub(crate) fn new() -> Readers {
        Readers { begun: Instant::now(), positions: Mutex::default(), has_had_reader: AtomicBool::new(false) }
    }

    /// Adds a reader. It counts as keeping up for its first window.
    pub(crate) fn join(&self, next_seq: u64, is_observer: bool) -> Arc<ReaderPosition> {
        let position = Arc::new(ReaderPosition {
            next_seq: AtomicU64::new(next_seq),
            window_began_ms: AtomicU64::new(self.now_ms()),
            window_bytes: AtomicU64::new(0),
            keeps_up: AtomicBool::new(true),
            is_observer,
        });
        self.lock().push(position.clone());
        self.has_had_reader.fetch_or(!is_observer, Ordering::Relaxed);
        position
    }

    pub(crate) fn leave(&self, position: &Arc<ReaderPosition>) {
        self.lock().retain(|other| !Arc::ptr_eq(other, position));
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// A reader has read `bytes` and continues with `next_seq`.
    pub(crate) fn advance(&self, position: &ReaderPosition, next_seq: u64, bytes: u64) {
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

    /// Whether a reader that the process waits for has not read the frames up to `last_seq`.
    pub(crate) fn need(&self, last_seq: u64, at_cap: AtCap) -> bool {
        match at_cap {
            AtCap::DropHead => self.need_of_readers_that_keep_up(last_seq),
            AtCap::WaitForReaders => {
                let behind = |position: &Arc<ReaderPosition>| {
                    !position.is_observer && position.next_seq.load(Ordering::Relaxed) <= last_seq
                };
                !self.has_had_reader.load(Ordering::Relaxed) || self.lock().iter().any(behind)
            }
        }
    }

    fn need_of_readers_that_keep_up(&self, last_seq: u64) -> bool {
        let stuck_ms = u64::from(STUCK_AFTER_WINDOWS) * WINDOW.as_millis() as u64;
        let now_ms = self.now_ms();
        self.lock().iter().any(|position| {
            let silent_ms = now_ms.saturating_sub(position.window_began_ms.load(Ordering::Relaxed));
            !position.is_observer
                && position.next_seq.load(Ordering::Relaxed) <= last_seq
                && position.keeps_up.load(Ordering::Relaxed)
                && silent_ms < stuck_ms
        })
    }

    fn now_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<ReaderPosition>>> {
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
        assert!(!readers.need(10, AtCap::DropHead), "no reader");
        let position = readers.join(5, false);
        assert!(readers.need(10, AtCap::DropHead) && !readers.need(4, AtCap::DropHead));
        later(&mut readers, WINDOW);
        readers.advance(&position, 7, KEEPS_UP_BYTES);
        assert!(readers.need(10, AtCap::DropHead), "fast");
        later(&mut readers, WINDOW);
        readers.advance(&position, 8, KEEPS_UP_BYTES - 1);
        assert!(!readers.need(10, AtCap::DropHead), "slow");
        later(&mut readers, WINDOW);
        readers.advance(&position, 9, KEEPS_UP_BYTES);
        assert!(readers.need(10, AtCap::DropHead), "fast again");
        later(&mut readers, STUCK_AFTER_WINDOWS * WINDOW);
        assert!(!readers.need(10, AtCap::DropHead), "stuck");
        readers.leave(&position);
        assert_eq!(readers.count(), 0);
    }

    #[test]
    fn a_process_that_waits_for_its_readers_waits_for_the_first_the_slow_and_the_stuck() {
        let mut readers = Readers::new();
        assert!(readers.need(10, AtCap::WaitForReaders), "no reader yet");
        let observer = readers.join(1, true);
        assert!(readers.need(10, AtCap::WaitForReaders), "only an observer");
        let position = readers.join(5, false);
        later(&mut readers, 100 * WINDOW);
        assert!(readers.need(5, AtCap::WaitForReaders) && !readers.need(4, AtCap::WaitForReaders));
        readers.leave(&position);
        assert!(!readers.need(10, AtCap::WaitForReaders), "only the observer is left");
        assert!(!readers.need(10, AtCap::DropHead) && readers.count() == 1);
        readers.leave(&observer);
    }
}
