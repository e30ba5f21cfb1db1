//! How many events of a turn have been handed to a client: eight bytes beside its record, which outlive the worker.

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

/// One who notes it, again and again.
pub(crate) struct Note {
    file: Option<OwnedFd>,
}

impl Note {
    pub(crate) fn open(dir: &Path, turn: u64) -> Note {
        Note { file: file::open(path(dir, turn), Open::Create).ok() }
    }

    /// Where it cannot be noted, events are handed out once more rather than not at all.
    pub(crate) fn write(&self, events: u64) {
        if let Some(file) = &self.file
            && let Err(errno) = file::write_all_at(file, &events.to_le_bytes(), 0)
        {
            tracing::warn!(%errno, "what a client has been handed could not be noted");
        }
    }
}

pub(crate) fn remove(dir: &Path, turn: u64) {
    let _gone_already = std::fs::remove_file(path(dir, turn));
}
