//! The daemon's resident memory for `health.check`, measured at most once a second.

use outpost_sys::procfs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a measured value is reused.
const MAX_AGE: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct RssCache {
    measured: Mutex<Option<Instant>>,
    rss_mb: AtomicU64,
}

impl RssCache {
    /// Resident memory of this process, in MB.
    pub(crate) fn mb(&self) -> u64 {
        let mut measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        if measured.is_none_or(|at| at.elapsed() > MAX_AGE) {
            *measured = Some(Instant::now());
            let own = i32::try_from(std::process::id()).unwrap_or_default();
            let bytes = procfs::stat(own).map_or(0, |stat| stat.rss_pages * procfs::page_size());
            self.rss_mb.store((bytes / (1024 * 1024)).max(1), Ordering::Relaxed);
        }
        self.rss_mb.load(Ordering::Relaxed)
    }
}
