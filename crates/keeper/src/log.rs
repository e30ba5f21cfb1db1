//! The keeper's log: lines on standard error, few of each kind, and a log file that is begun anew when it has grown.

use std::collections::BTreeMap;
use std::fmt::Arguments;
use std::fs::File;
use std::io::Write;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// This many lines of one kind are written at once. Later ones are counted, and one of them is written per interval.
const BURST: u32 = 5;
const INTERVAL: Duration = Duration::from_secs(30);

/// The size at which the keeper begins its log file anew. The worker does so at the size that is configured.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The file that standard error is, where it is one of the daemon's.
static FILE: OnceLock<PathBuf> = OnceLock::new();

/// By the place in the code that logs them: lines of one place are of one kind.
static KINDS: Mutex<BTreeMap<(&str, u32), Kind>> = Mutex::new(BTreeMap::new());

/// The lines of one kind.
#[derive(Clone, Copy)]
struct Kind {
    written: u32,
    withheld: u64,
    last: Instant,
}

impl Kind {
    fn new(now: Instant) -> Kind {
        Kind { written: 0, withheld: 0, last: now }
    }

    /// Whether a line is written now, and how many were withheld before it.
    fn next(&mut self, now: Instant) -> Option<u64> {
        let is_over = now.saturating_duration_since(self.last) >= INTERVAL;
        if is_over && self.withheld == 0 {
            self.written = 0;
        }
        if self.written >= BURST && !is_over {
            self.withheld = self.withheld.saturating_add(1);
            return None;
        }
        self.written = self.written.saturating_add(1);
        self.last = now;
        Some(std::mem::take(&mut self.withheld))
    }
}

/// The keeper's standard error is this file.
pub(crate) fn is_file(path: PathBuf) {
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
    let Some(withheld) = next else { return };
    if let Some(file) = FILE.get() {
        begin_anew_if_large(file, FILE_BYTES_MAX);
    }
    let mut stderr = std::io::stderr();
    let _dropped = match withheld {
        0 => writeln!(stderr, "outpost keeper: {line}"),
        withheld => {
            writeln!(stderr, "outpost keeper: {line} ({withheld} more of this kind since the last line)")
        }
    };
}

/// Begins a log file anew when it is larger than this; the lines so far are in `….log.1`. Keeper and worker append to one
/// open file, so it is copied and emptied, not replaced. A line that is written meanwhile may be lost.
pub fn begin_anew_if_large(file: &Path, bytes_max: u64) {
    if file.metadata().is_ok_and(|found| found.len() > bytes_max) {
        let _no_room = std::fs::copy(file, file.with_extension("log.1"));
        let _gone = File::options().write(true).open(file).and_then(|file| file.set_len(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_repeats_is_written_a_few_times_and_then_once_per_interval_with_a_count() {
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
        // After an interval without any line of the kind it may repeat a few times again.
        for _ in 0..BURST {
            assert_eq!(kind.next(begun + 3 * INTERVAL), Some(0));
        }
        assert_eq!(kind.next(begun + 3 * INTERVAL), None);
    }

    #[test]
    fn a_log_file_that_has_grown_is_begun_anew_and_the_one_before_is_kept() {
        let file = std::env::temp_dir().join(format!("outpost-keeper-{}.log", std::process::id()));
        std::fs::write(&file, "0123456789").unwrap();
        begin_anew_if_large(&file, 10);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "0123456789", "not larger than allowed");
        begin_anew_if_large(&file, 9);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "");
        let before = file.with_extension("log.1");
        assert_eq!(std::fs::read_to_string(&before).unwrap(), "0123456789");
        std::fs::remove_file(file).unwrap();
        std::fs::remove_file(before).unwrap();
    }
}
