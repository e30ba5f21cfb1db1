//! One client of the control socket, as its requests see it.

use outpost_wire::Outbox;
use std::sync::atomic::{AtomicBool, Ordering};

/// Numbers a connection.
pub(crate) type Connection = u64;

pub(crate) struct Peer {
    pub(crate) number: Connection,
    pub(crate) outbox: Outbox,
    /// Input was dropped because the client had left.
    input_dropped: AtomicBool,
}

impl Peer {
    pub(crate) fn new(number: Connection, outbox: Outbox) -> Peer {
        Peer { number, outbox, input_dropped: AtomicBool::new(false) }
    }

    /// Drops a piece of input: the client has left. Later pieces that have no offset follow it, or the child would read a
    /// stream with a hole.
    pub(crate) fn drop_input(&self) {
        self.input_dropped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_dropped_input(&self) -> bool {
        self.input_dropped.load(Ordering::Relaxed)
    }
}
