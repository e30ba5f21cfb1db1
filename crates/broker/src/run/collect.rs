//! What a stage writes, up to the contract's cap; beyond it everything is read and dropped, so that the stage goes on.

use crate::wire::OUTPUT_BYTES_MAX;
use outpost_approvals::{hex, unix_ms};
use outpost_engine::{Batch, Exit, Process, Stream};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How long what is in the journal already may take to be read.
const READ_PATIENCE: std::time::Duration = std::time::Duration::from_secs(1);

/// One stream.
#[derive(Default)]
pub(super) struct Taken {
    pub(super) bytes: Vec<u8>,
    pub(super) truncated: bool,
    /// All of it, also what was dropped.
    total: u64,
}

impl Taken {
    fn take(&mut self, bytes: &[u8], budget: &AtomicUsize) {
        self.total += bytes.len() as u64;
        let room = OUTPUT_BYTES_MAX.saturating_sub(self.bytes.len()).min(bytes.len());
        let spend = |left: usize| Some(left.saturating_sub(room));
        let left = budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).unwrap_or(0);
        let part = bytes.get(..room.min(left)).unwrap_or_default();
        self.truncated |= part.len() < bytes.len();
        self.bytes.extend_from_slice(part);
    }

    /// For the chain: how much, and the digest of what was kept.
    pub(super) fn summary(&self) -> serde_json::Value {
        serde_json::json!({ "bytes": self.total, "sha256": hex(&Sha256::digest(&self.bytes)) })
    }
}

/// Everything of a stage.
#[derive(Default)]
pub(super) struct Collected {
    pub(super) stdout: Taken,
    pub(super) stderr: Taken,
    pub(super) exit: Option<Exit>,
    ended_ms: u64,
}

impl Collected {
    fn take(&mut self, batch: &Batch, budget: &AtomicUsize) {
        for (frame, bytes) in batch.frames() {
            match frame.stream {
                Stream::Stdout => self.stdout.take(bytes, budget),
                Stream::Stderr => self.stderr.take(bytes, budget),
            }
        }
        if let Some(ended) = &batch.ended {
            self.exit = Some(ended.exit);
            self.ended_ms = unix_ms();
        }
    }

    pub(super) fn duration_ms(&self, process: &Process) -> Option<u64> {
        self.exit.map(|_| self.ended_ms.saturating_sub(process.started_ms()))
    }
}

/// Takes everything until the end.
pub(super) async fn collect(process: Process, budget: Arc<AtomicUsize>) -> Collected {
    let mut collected = Collected::default();
    let mut subscription = process.subscribe(0);
    let mut batch = Batch::default();
    loop {
        if let Err(error) = subscription.next(&mut batch).await {
            tracing::warn!(%error, process = %process.slot(), "the output of a command cannot be read to its end");
            collected.stdout.truncated = true;
            return collected;
        }
        collected.take(&batch, &budget);
        if collected.exit.is_some() {
            return collected;
        }
        // One that keeps up with a fast command must not keep the thread.
        tokio::task::yield_now().await;
    }
}

/// Takes what there is of a stage that does not end.
pub(super) async fn so_far(process: &Process, budget: &AtomicUsize) -> Collected {
    let mut collected = Collected::default();
    let mut subscription = process.subscribe(0);
    let mut batch = Batch::default();
    let (_, last) = process.sequence();
    let read = async {
        while subscription.last_seen() < last && subscription.next(&mut batch).await.is_ok() {
            collected.take(&batch, budget);
        }
    };
    let _late = tokio::time::timeout(READ_PATIENCE, read).await;
    collected
}
