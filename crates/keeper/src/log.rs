//! The keeper's log: rate-limited lines on standard error, which rotates its file.

use outpost_sys::file;
use std::collections::BTreeMap;
use std::fmt::Arguments;
use std::io::Write;
use std::panic::Location;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// This many lines of one kind are written at once. Later ones are counted, and one per interval is written.
const BURST: u32 = 5;
const INTERVAL: Duration = Duration::from_secs(30);

/// The size at which the keeper rotates the log file. The worker rotates it at the configured size.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The log file of a daemon in the background, which is its standard error.
static FILE: OnceLock<PathBuf> = OnceLock::new();

/// Kinds of lines, by the source line that logs them.
static KINDS: Mutex<BTreeMap<(&str, u32), Kind>> = Mutex::new(BTreeMap::new());

/// The lines of one kind.
#[derive(Clone, Copy)]
struct Kind {
    written: u32,
    suppressed: u64,
    last: Instant,
}

impl Kind {
    fn new(now: Instant) -> Kind {
        Kind { written: 0, suppressed: 0, last: now }
    }

    /// The number of lines suppressed before this one; `None` when this one is suppressed.
    fn next(&mut self, now: Instant) -> Option<u64> {
        let is_over = now.saturating_duration_since(self.last) >= INTERVAL;
        if is_over && self.suppressed == 0 {
            self.written = 0;
        }
        if self.written >= BURST && !is_over {
            self.suppressed = self.suppressed.saturating_add(1);
            return None;
        }
        self.written = self.written.saturating_add(1);
        self.last = now;
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// Rotates this file, which is the keeper's standard error.
pub(crate) fn set_file(path: PathBuf) {
    let _set_once = FILE.set(path);
}

/// Writes a line to standard error. A line that cannot be written is dropped.
#[track_caller]
pub(crate) fn log(line: Arguments<'_>) {
    let (place, now) = (Location::caller(), Instant::now());
    let next = {
        let mut kinds = KINDS.lock().unwrap_or_else(PoisonError::into_inner);
        kinds.entry((place.file(), place.line())).or_insert_with(|| Kind::new(now)).next(now)
    };
    let Some(suppressed) = next else { return };
    if let Some(file) = FILE.get() {
        file::rotate_if_large(file, FILE_BYTES_MAX);
    }
    let mut stderr = std::io::stderr();
    let _dropped = match suppressed {
        0 => writeln!(stderr, "outpost keeper: {line}"),
        suppressed => {
            writeln!(stderr, "outpost keeper: {line} ({suppressed} more of this kind since the last line)")
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_line_is_written_a_few_times_and_then_once_per_interval_with_a_count() {
        let begun = Instant::now();
        let mut kind = Kind::new(begun);
        for _ in 0..BURST {
            assert_eq!(kind.next(begun), Some(0));
        }
        for _ in 0..1000 {
            assert_eq!(kind.next(begun + INTERVAL / 2), None);
        }
        assert_eq!(kind.next(begun + INTERVAL), Some(1000));
        assert_eq!(kind.next(begun + INTERVAL), None);
        assert_eq!(kind.next(begun + 2 * INTERVAL), Some(1));
        // After an interval without a line of the kind, a few are written at once again.
        for _ in 0..BURST {
            assert_eq!(kind.next(begun + 3 * INTERVAL), Some(0));
        }
        assert_eq!(kind.next(begun + 3 * INTERVAL), None);
    }
}
