//! How many events of a turn a client has received: eight bytes on disk beside the event log.

use outpost_sys::file::{self, Open};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

fn path(dir: &Path, turn: u64) -> PathBuf {
    dir.join(format!("{turn}.read"))
}

pub(crate) fn load(dir: &Path, turn: u64) -> u64 {
    let Ok(file) = file::open(path(dir, turn), Open::Read) else { return 0 };
    let mut bytes = [0; 8];
    match file::read_full_at(&file, &mut bytes, 0) {
        Ok(8) => u64::from_le_bytes(bytes),
        _ => 0,
    }
}

/// Writes the count of delivered events.
pub(crate) struct DeliveredCount {
    file: Option<OwnedFd>,
}

impl DeliveredCount {
    pub(crate) fn open(dir: &Path, turn: u64) -> DeliveredCount {
        DeliveredCount { file: file::open(path(dir, turn), Open::Create).ok() }
    }

    /// A failed write is only logged: the events are then delivered again, which is better than never.
    pub(crate) fn write(&self, events: u64) {
        if let Some(file) = &self.file
            && let Err(errno) = file::write_all_at(file, &events.to_le_bytes(), 0)
        {
            tracing::warn!(%errno, "cannot write the count of delivered events");
        }
    }
}

pub(crate) fn remove(dir: &Path, turn: u64) {
    let _gone_already = std::fs::remove_file(path(dir, turn));
}
