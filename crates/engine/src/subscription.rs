//! A reader of one process: a cursor over its journal, and the notification about more output.

use crate::process::{Process, Progress};
use crate::readers::ReaderPosition;
use crate::{Error, Result};
use outpost_journal::{Batch, Cursor, ReadMode};
use std::sync::Arc;
use tokio::sync::watch;

/// Maximum output of one read: large enough to be cheap, small enough to be fair.
const BATCH_BYTES: usize = 256 * 1024;

/// A reader of one process. A slow reader does not affect others.
pub struct Subscription {
    process: Process,
    progress: watch::Receiver<Progress>,
    /// `None` only while a blocking thread reads from the disk.
    cursor: Option<Cursor>,
    last_seen: u64,
    position: Arc<ReaderPosition>,
    stalled: bool,
}

impl Subscription {
    pub(crate) fn new(process: Process, after: u64, is_observer: bool) -> Subscription {
        let position = process.inner.readers.join(after.saturating_add(1), is_observer);
        let progress = process.inner.progress.subscribe();
        let cursor = Cursor::after(process.inner.journal.clone(), after);
        Subscription { process, progress, cursor: Some(cursor), last_seen: after, position, stalled: false }
    }

    pub fn process(&self) -> &Process {
        &self.process
    }

    /// The sequence number that was read last.
    pub fn last_seen(&self) -> u64 {
        self.last_seen
    }

    /// Whether the process waited for disk space when `next` last returned.
    pub fn is_stalled(&self) -> bool {
        self.stalled
    }

    /// Waits for output and fills `batch` with it. Returns an empty batch when the process begins or ceases to wait for
    /// disk space. Cancel-safe: output that was not returned is read again.
    pub async fn next(&mut self, batch: &mut Batch) -> Result<()> {
        loop {
            // No frame after the process was dropped from the table.
            if self.progress.borrow_and_update().gone {
                return Err(Error::Gone);
            }
            self.read(batch).await?;
            let stalled = self.progress.borrow().stalled;
            if !batch.is_empty() || stalled != self.stalled {
                self.stalled = stalled;
                return Ok(());
            }
            self.progress.changed().await.map_err(|_| Error::Gone)?;
        }
    }

    /// Fills `batch` with the output that is there now.
    pub async fn read(&mut self, batch: &mut Batch) -> Result<()> {
        let mut cursor = match self.cursor.take() {
            Some(cursor) => cursor,
            // A cancelled read has lost its cursor.
            None => Cursor::after(self.process.inner.journal.clone(), self.last_seen),
        };
        let outcome = match cursor.read(batch, BATCH_BYTES, ReadMode::CachedOnly) {
            Err(outpost_journal::Error::NotCached) => {
                let mut taken = std::mem::take(batch);
                let read = tokio::task::spawn_blocking(move || {
                    let outcome = cursor.read(&mut taken, BATCH_BYTES, ReadMode::MayBlock);
                    (cursor, taken, outcome)
                });
                let (back, filled, outcome) = read.await.map_err(|_| Error::Stopped)?;
                cursor = back;
                *batch = filled;
                outcome
            }
            outcome => outcome,
        };
        self.last_seen = cursor.next_seq() - 1;
        self.process.inner.readers.advance(&self.position, cursor.next_seq(), batch.bytes() as u64);
        self.cursor = Some(cursor);
        Ok(outcome?)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.process.inner.readers.leave(&self.position);
    }
}
