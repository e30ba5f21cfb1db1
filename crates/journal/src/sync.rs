//! Durability: fdatasync of a journal's files, and a watermark of the synced bytes.
//!
//! The watermark is the file `synced`: a checksum and, per stream, the offset before which all bytes are on
//! disk. A stale or lost watermark claims less than is true, never more.

use crate::journal::Journal;
use crate::record::Stream;
use crate::segment::{self, SEGMENT_BYTES};
use crate::{Error, Result};
use outpost_sys::Errno;
use outpost_sys::file::{self, Open};
use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

const WATERMARK_FILE: &str = "synced";
const WATERMARK_BYTES: usize = 20;

/// Per stream the offset, and the number of records, up to which a journal is or is to be synced.
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

    /// The current end, if a power failure could lose some of it.
    pub fn unsynced(&self) -> Option<Synced> {
        let (synced, now) = (*self.synced.lock().unwrap_or_else(PoisonError::into_inner), self.to_sync());
        (synced != Some(now)).then_some(now)
    }

    /// Stores a watermark for what [`Journal::unsynced`] returned, after the caller has synced it.
    pub fn note_synced(&self, now: Synced) -> Result<()> {
        if now.ends != [0; 2] {
            write_watermark(&self.dir, now.ends)?;
        }
        *self.synced.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        Ok(())
    }

    /// Counts everything recorded as synced.
    pub(crate) fn assume_synced(&self) {
        *self.synced.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.to_sync());
    }

    /// Waits until everything recorded now is on disk. Blocking; never call it on the reactor thread or an
    /// async runtime.
    pub fn sync(&self) -> Result<()> {
        let synced = *self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, now) = (synced.unwrap_or_default(), self.to_sync());
        let mut has_names = synced.is_some();
        for (stream, end) in Stream::ALL.into_iter().zip(now.ends) {
            let begin = before.ends[stream.index()];
            // A segment that began since the last sync is a new directory entry.
            has_names &= begin > 0 || end == 0;
            has_names &= segment::segment_of(begin) == segment::segment_of(end.max(1) - 1);
            for number in segment::segment_of(begin)..end.div_ceil(SEGMENT_BYTES) {
                let path = segment::path(&self.dir, stream, number);
                match file::open(&path, Open::Read).and_then(file::sync_data) {
                    // It was dropped at the cap.
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => return Err(Error::io("sync", &path, errno)),
                }
            }
        }
        let index = self.index_path();
        let outcome = file::open(&index, Open::Read).and_then(file::sync_data);
        outcome.map_err(|errno| Error::io("sync", &index, errno))?;
        if !has_names {
            let outcome = file::open(&self.dir, Open::Directory).and_then(file::sync_directory);
            outcome.map_err(|errno| Error::io("sync", &self.dir, errno))?;
        }
        self.note_synced(now)
    }
}

/// Stores the number of synced bytes of each stream.
pub(crate) fn write_watermark(dir: &Path, ends: [u64; 2]) -> Result<()> {
    let path = dir.join(WATERMARK_FILE);
    let mut bytes = [0; WATERMARK_BYTES];
    bytes[4..12].copy_from_slice(&ends[0].to_le_bytes());
    bytes[12..].copy_from_slice(&ends[1].to_le_bytes());
    let crc = crc32fast::hash(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    let outcome = file::open(&path, Open::Create).and_then(|file| file::write_all_at(file, &bytes, 0));
    outcome.map_err(|errno| Error::io("write", &path, errno))
}

/// The number of synced bytes of each stream; 0 where it is unknown.
pub(crate) fn read_watermark(dir: &Path) -> [u64; 2] {
    let mut bytes = [0; WATERMARK_BYTES];
    let read = file::open(dir.join(WATERMARK_FILE), Open::Read)
        .and_then(|file| file::read_full_at(file, &mut bytes, 0));
    let long = |at: usize| {
        let mut long = [0; 8];
        long.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(long)
    };
    match read == Ok(WATERMARK_BYTES) && bytes[..4] == crc32fast::hash(&bytes[4..]).to_le_bytes() {
        true => [long(4), long(12)],
        false => [0; 2],
    }
}
