//! Collects a stage's output up to the contract's cap. Output beyond it is read and dropped, so that the stage does not
//! block.

use crate::wire::OUTPUT_BYTES_MAX;
use outpost_engine::{Batch, Exit, Process, Stream};
use outpost_ledger::{hex, unix_ms};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Time limit for reading output that is already in the journal.
const READ_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(1);

/// The output of one stream.
#[derive(Default)]
pub(super) struct StreamOutput {
    pub(super) bytes: Vec<u8>,
    pub(super) truncated: bool,
    /// Bytes written, including dropped ones.
    total: u64,
}

impl StreamOutput {
    fn append(&mut self, bytes: &[u8], budget: &AtomicUsize) {
        self.total += bytes.len() as u64;
        let wanted = OUTPUT_BYTES_MAX.saturating_sub(self.bytes.len()).min(bytes.len());
        let spend = |left: usize| Some(left.saturating_sub(wanted));
        let left = budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).unwrap_or(0);
        let part = bytes.get(..wanted.min(left)).unwrap_or_default();
        self.truncated |= part.len() < bytes.len();
        self.bytes.extend_from_slice(part);
    }

    /// For the audit chain: the number of bytes written, and the hash of the collected ones.
    pub(super) fn summary(&self) -> serde_json::Value {
        serde_json::json!({ "bytes": self.total, "sha256": hex(&Sha256::digest(&self.bytes)) })
    }
}

/// The output and exit status of a stage.
#[derive(Default)]
pub(super) struct StageOutput {
    pub(super) stdout: StreamOutput,
    pub(super) stderr: StreamOutput,
    pub(super) exit: Option<Exit>,
    exited_ms: u64,
}

impl StageOutput {
    fn append(&mut self, batch: &Batch, budget: &AtomicUsize) {
        for (frame, bytes) in batch.frames() {
            match frame.stream {
                Stream::Stdout => self.stdout.append(bytes, budget),
                Stream::Stderr => self.stderr.append(bytes, budget),
            }
        }
        if let Some(ended) = &batch.ended {
            self.exit = Some(ended.exit);
            self.exited_ms = unix_ms();
        }
    }

    pub(super) fn duration_ms(&self, process: &Process) -> Option<u64> {
        self.exit.map(|_| self.exited_ms.saturating_sub(process.started_ms()))
    }
}

/// Collects until the stage exits. `budget` is shared by all stages.
pub(super) async fn collect(process: Process, budget: Arc<AtomicUsize>) -> StageOutput {
    let mut collected = StageOutput::default();
    let mut subscription = process.subscribe(0);
    let mut batch = Batch::default();
    loop {
        if let Err(error) = subscription.next(&mut batch).await {
            tracing::warn!(%error, process = %process.slot(), "cannot read all output of a command");
            collected.stdout.truncated = true;
            return collected;
        }
        collected.append(&batch, &budget);
        if collected.exit.is_some() {
            return collected;
        }
        // A fast command keeps the subscription ready. Yield so that other tasks run.
        tokio::task::yield_now().await;
    }
}

/// Collects the output so far of a stage that cannot be killed.
pub(super) async fn collect_available(process: &Process, budget: &AtomicUsize) -> StageOutput {
    let mut collected = StageOutput::default();
    let mut subscription = process.subscribe(0);
    let mut batch = Batch::default();
    let (_, last) = process.sequence();
    let read = async {
        while subscription.last_seen() < last && subscription.next(&mut batch).await.is_ok() {
            collected.append(&batch, budget);
        }
    };
    let _expired = tokio::time::timeout(READ_TIMEOUT, read).await;
    collected
}
