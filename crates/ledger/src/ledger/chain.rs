//! The ledger's audit chain: reopens it after an I/O error, and sends its head to the system log.

use crate::audit::{self, Event};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Heads kept in memory. Older ones are looked up in the files.
const HEADS_MAX: usize = 16_384;

/// Minimum interval between two heads sent to the system log. One head authenticates all records before it.
pub(super) const SYSLOG_INTERVAL: Duration = Duration::from_secs(1);

/// The newest heads of the chain, oldest first. Shared with every [`Ledger`](super::Ledger).
#[derive(Clone, Default)]
pub(super) struct Heads(Arc<Mutex<VecDeque<audit::Head>>>);

impl Heads {
    fn lock(&self) -> MutexGuard<'_, VecDeque<audit::Head>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, head: audit::Head) {
        let mut heads = self.lock();
        if heads.len() >= HEADS_MAX {
            heads.pop_front();
        }
        heads.push_back(head);
    }

    pub(super) fn newest(&self) -> audit::Head {
        self.lock().back().copied().unwrap_or(audit::Head::NONE)
    }

    /// Whether the chain has this record; `None` if the record is older than the heads in memory.
    pub(super) fn contains(&self, head: audit::Head) -> Option<bool> {
        let heads = self.lock();
        let oldest = heads.front().map_or(u64::MAX, |oldest| oldest.seq);
        (head.seq >= oldest).then(|| heads.contains(&head))
    }
}

/// The audit chain of a ledger. A failed write closes the writer. The next write reopens the chain, which reads back what
/// the files contain.
pub(super) struct AuditChain {
    pub(super) dir: PathBuf,
    syslog_socket: PathBuf,
    writer: Option<audit::Writer>,
    last_sent: Option<SentHead>,
    pub(super) heads: Heads,
}

/// The last head that the system log received.
struct SentHead {
    seq: u64,
    at: Instant,
}

impl AuditChain {
    pub(super) fn new(writer: audit::Writer, dir: PathBuf, syslog_socket: PathBuf) -> AuditChain {
        let heads = Heads::default();
        heads.push(writer.head());
        AuditChain { dir, syslog_socket, writer: Some(writer), last_sent: None, heads }
    }

    fn writer(&mut self) -> audit::Result<&mut audit::Writer> {
        let writer = match self.writer.take() {
            Some(writer) => writer,
            None => audit::Writer::open(&self.dir)?,
        };
        Ok(self.writer.insert(writer))
    }

    /// The number of the newest record; 0 while the chain is closed after an error.
    pub(super) fn seq(&self) -> u64 {
        self.writer.as_ref().map_or(0, |writer| writer.head().seq)
    }

    /// Whether the system log lacks records: their truncation would go undetected.
    pub(super) fn has_unsent_head(&self) -> bool {
        let known = self.last_sent.as_ref().map_or(0, |sent| sent.seq);
        self.seq() > known
    }

    /// Records that the records after `seq` did not take effect.
    pub(super) fn void_after(&mut self, seq: u64, why: &str) {
        let last = self.seq();
        if seq == 0 || last <= seq {
            return;
        }
        let data = serde_json::json!({ "from": seq + 1, "to": last, "why": why });
        if let Err(error) = self.append(Event::Voided, &data) {
            tracing::error!(%error, from = seq + 1, to = last, "cannot mark audit records as void");
        }
    }

    pub(super) fn append(&mut self, event: Event, data: &impl serde::Serialize) -> audit::Result<()> {
        let done = self.writer()?.append(event, data).map(|head| self.heads.push(head));
        if let Err(audit::Error::Io { .. } | audit::Error::Failed { .. }) = done {
            self.writer = None;
        }
        done
    }

    pub(super) fn sync(&mut self) -> audit::Result<()> {
        let done = self.writer()?.sync();
        match (&done, &self.writer) {
            (Ok(()), Some(writer))
                if self.last_sent.as_ref().is_none_or(|sent| sent.at.elapsed() >= SYSLOG_INTERVAL) =>
            {
                let head = writer.head();
                audit::syslog::send_head(&self.syslog_socket, &head);
                self.last_sent = Some(SentHead { seq: head.seq, at: Instant::now() });
            }
            (Ok(()), _) => {}
            (Err(_), _) => self.writer = None,
        }
        done
    }
}
