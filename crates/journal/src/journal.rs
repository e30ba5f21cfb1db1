//! The state of a journal that the writer publishes to its readers.

use crate::cursor::Index;
use crate::sync::Synced;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, Weak};

/// What cursors see of a journal. The writer publishes here after each record.
pub struct Journal {
    pub(crate) dir: PathBuf,
    /// The writer's open index, while there is a writer.
    pub(crate) index: Weak<Index>,
    pub(crate) published_records: AtomicU64,
    pub(crate) last_seq: AtomicU64,
    pub(crate) first_seq: AtomicU64,
    pub(crate) bytes_kept: AtomicU64,
    pub(crate) bytes_total: AtomicU64,
    /// Per stream, the offset after the last recorded byte.
    pub(crate) ends: [AtomicU64; 2],
    pub(crate) finished: AtomicBool,
    pub(crate) synced: Mutex<Option<Synced>>,
}

impl Journal {
    /// The sequence number of the newest frame or exit; 0 when there is none yet.
    pub fn last_seq(&self) -> u64 {
        self.last_seq.load(Ordering::Acquire)
    }

    /// The lowest sequence number that can still be read; 0 when there is none yet.
    pub fn first_seq(&self) -> u64 {
        self.first_seq.load(Ordering::Acquire).min(self.last_seq())
    }

    /// Bytes on disk: output and index.
    pub fn bytes_kept(&self) -> u64 {
        self.bytes_kept.load(Ordering::Relaxed)
    }

    /// Bytes that the process has written, kept or dropped.
    pub fn bytes_total(&self) -> u64 {
        self.bytes_total.load(Ordering::Relaxed)
    }

    /// Whether the exit has been recorded. Nothing follows it.
    pub fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    pub(crate) fn index_path(&self) -> PathBuf {
        index_path(&self.dir)
    }
}

pub(crate) fn index_path(dir: &Path) -> PathBuf {
    dir.join("index")
}
