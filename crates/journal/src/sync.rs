//! How much of a journal is safe from a power failure: fdatasync of its files, and a note of how far that went.
//!
//! The note is the file `synced`: a checksum and, per stream, the offset before which all bytes were on the disk when
//! the note was written. A note that is stale or lost claims less than is true, never more.

use crate::record::Stream;
use crate::segment::{self, SEGMENT_BYTES};
use crate::writer::Journal;
use crate::{Error, Result};
use outpost_sys::Errno;
use outpost_sys::file::{self, Open};
use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

const NOTE: &str = "synced";
const NOTE_BYTES: usize = 20;

/// Per stream the offset, and the number of records, up to which a journal was or is to be synced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Synced {
    ends: [u64; 2],
    records: u64,
}

impl Journal {
    fn to_sync(&self) -> Synced {
        let records = self.published_records.load(Ordering::Acquire);
        Synced { ends: self.ends.each_ref().map(|end| end.load(Ordering::Acquire)), records }
    }

    /// What is recorded now, if a power failure could take some of it.
    pub fn unsynced(&self) -> Option<Synced> {
        let (synced, now) = (*self.synced.lock().unwrap_or_else(PoisonError::into_inner), self.to_sync());
        (synced != Some(now)).then_some(now)
    }

    /// Notes that what [`Journal::unsynced`] returned is on the disk.
    pub fn note_synced(&self, now: Synced) -> Result<()> {
        if now.ends != [0; 2] {
            note(&self.dir, now.ends)?;
        }
        *self.synced.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        Ok(())
    }

    /// Counts what is recorded now as synced.
    pub(crate) fn assume_synced(&self) {
        *self.synced.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.to_sync());
    }

    /// Waits until all that is recorded now is on the disk. Blocking; never call it on a thread that serves others.
    pub fn sync(&self) -> Result<()> {
        let synced = *self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, now) = (synced.unwrap_or_default(), self.to_sync());
        let mut is_named = synced.is_some();
        for (stream, end) in Stream::ALL.into_iter().zip(now.ends) {
            let begin = before.ends[stream.index()];
            // A segment that begins since the last time is a new name.
            is_named &= begin > 0 || end == 0;
            is_named &= segment::number(begin) == segment::number(end.max(1) - 1);
            for number in segment::number(begin)..end.div_ceil(SEGMENT_BYTES) {
                let path = segment::path(&self.dir, stream, number);
                match file::open(&path, Open::Read).and_then(file::sync_data) {
                    // At the cap it was dropped.
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => return Err(Error::io("sync", &path, errno)),
                }
            }
        }
        let index = self.index_path();
        let outcome = file::open(&index, Open::Read).and_then(file::sync_data);
        outcome.map_err(|errno| Error::io("sync", &index, errno))?;
        if !is_named {
            let outcome = file::open(&self.dir, Open::Directory).and_then(file::sync_names);
            outcome.map_err(|errno| Error::io("sync", &self.dir, errno))?;
        }
        self.note_synced(now)
    }
}

/// Notes that these many bytes of each stream are on the disk.
pub(crate) fn note(dir: &Path, ends: [u64; 2]) -> Result<()> {
    let path = dir.join(NOTE);
    let mut bytes = [0; NOTE_BYTES];
    bytes[4..12].copy_from_slice(&ends[0].to_le_bytes());
    bytes[12..].copy_from_slice(&ends[1].to_le_bytes());
    let crc = crc32fast::hash(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    let outcome = file::open(&path, Open::Create).and_then(|file| file::write_all_at(file, &bytes, 0));
    outcome.map_err(|errno| Error::io("write", &path, errno))
}

/// How many bytes of each stream are known to have been on the disk; 0 where nothing is known.
pub(crate) fn noted(dir: &Path) -> [u64; 2] {
    let mut bytes = [0; NOTE_BYTES];
    let read =
        file::open(dir.join(NOTE), Open::Read).and_then(|file| file::read_full_at(file, &mut bytes, 0));
    let long = |at: usize| {
        let mut long = [0; 8];
        long.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(long)
    };
    match read == Ok(NOTE_BYTES) && bytes[..4] == crc32fast::hash(&bytes[4..]).to_le_bytes() {
        true => [long(4), long(12)],
        false => [0; 2],
    }
}
