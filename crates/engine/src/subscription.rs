//! A reader of one process: a cursor over its journal, and the wait for more.

use crate::process::{Process, Progress};
use crate::readers::Position;
use crate::{Error, Result};
use outpost_journal::{Batch, Cursor, Patience};
use std::sync::Arc;
use tokio::sync::watch;

/// Output taken at a time: large enough to be cheap, small enough to be fair.
const BATCH_BYTES: usize = 256 * 1024;

/// A reader of one process, at its own pace. Slowness costs nobody but itself.
pub struct Subscription {
    process: Process,
    progress: watch::Receiver<Progress>,
    /// None only while a read of the disk is under way elsewhere.
    cursor: Option<Cursor>,
    last_seen: u64,
    position: Arc<Position>,
    stalled: bool,
}

impl Subscription {
    pub(crate) fn new(process: Process, after: u64, looks_on: bool) -> Subscription {
        let position = process.inner.readers.join(after.saturating_add(1), looks_on);
        let progress = process.inner.progress.subscribe();
        let cursor = Cursor::after(process.inner.journal.clone(), after);
        Subscription { process, progress, cursor: Some(cursor), last_seen: after, position, stalled: false }
    }

    pub fn process(&self) -> &Process {
        &self.process
    }

    /// The last sequence number that was read.
    pub fn last_seen(&self) -> u64 {
        self.last_seen
    }

    /// Whether the process waited for room on the disk when `next` last returned.
    pub fn is_stalled(&self) -> bool {
        self.stalled
    }

    /// Fills `batch` with what comes next, waiting for it. Returns with an empty one when the process begins to wait for
    /// room on the disk, and when it goes on. Safe to cancel: what was not returned is read again.
    pub async fn next(&mut self, batch: &mut Batch) -> Result<()> {
        loop {
            // Not a frame more once the process has lost its name to another.
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

    /// Fills `batch` with what is there now; empty when that is nothing.
    pub async fn read(&mut self, batch: &mut Batch) -> Result<()> {
        let mut cursor = match self.cursor.take() {
            Some(cursor) => cursor,
            // A read that was cancelled: its cursor is gone with it, its position is not.
            None => Cursor::after(self.process.inner.journal.clone(), self.last_seen),
        };
        let outcome = match cursor.read(batch, BATCH_BYTES, Patience::None) {
            Err(outpost_journal::Error::NotCached) => {
                let mut taken = std::mem::take(batch);
                let read = tokio::task::spawn_blocking(move || {
                    let outcome = cursor.read(&mut taken, BATCH_BYTES, Patience::Disk);
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
        self.process.inner.readers.moved(&self.position, cursor.next_seq(), batch.bytes() as u64);
        self.cursor = Some(cursor);
        Ok(outcome?)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.process.inner.readers.leave(&self.position);
    }
}
