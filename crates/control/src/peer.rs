//! The per-connection state that the methods of the control socket share.

use outpost_wire::Outbox;
use std::sync::atomic::{AtomicBool, Ordering};

/// Identifies a connection for the lifetime of the worker.
pub(crate) type ConnectionId = u64;

pub(crate) struct Peer {
    pub(crate) id: ConnectionId,
    pub(crate) outbox: Outbox,
    /// Input was dropped because the client disconnected.
    input_dropped: AtomicBool,
}

impl Peer {
    pub(crate) fn new(id: ConnectionId, outbox: Outbox) -> Peer {
        Peer { id, outbox, input_dropped: AtomicBool::new(false) }
    }

    /// Records that one input chunk was dropped because the client disconnected. Later chunks without an offset must be
    /// dropped too, or the child would read a stream with a gap.
    pub(crate) fn drop_input(&self) {
        self.input_dropped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_dropped_input(&self) -> bool {
        self.input_dropped.load(Ordering::Relaxed)
    }
}
