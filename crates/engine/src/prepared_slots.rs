//! Slots that are prepared before a start, so that the start waits for no disk and for no other thread.
//!
//! A prepared slot has a directory with an empty description and an empty index, pipes, and a cgroup. A slot that is
//! found with an empty description after a restart was never used, and is removed.

use crate::prepare::StandardPipes;
use crate::process_dir::{DESCRIPTION_RESERVED_BYTES, reserve};
use crate::shared::Shared;
use crate::spec::Slot;
use crate::{Result, descriptors};
use outpost_journal::Writer;
use outpost_sys::Errno;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The low watermark: with this many left more are prepared.
const LOW_WATERMARK: usize = 3;

/// A slot for one process.
pub(crate) struct PreparedSlot {
    pub(crate) slot: Slot,
    pub(crate) dir: PathBuf,
    pub(crate) writer: Writer,
    /// The file for the description.
    pub(crate) description: OwnedFd,
    pub(crate) stdio: StandardPipes,
    pub(crate) cgroup: Option<OwnedFd>,
}

/// The pool of prepared slots.
pub(crate) struct PreparedSlots {
    /// In the order of their slots.
    ready: Mutex<VecDeque<PreparedSlot>>,
    /// The greatest slot in use. Of two processes with one key the greater slot is the younger, so no smaller one is
    /// used.
    used: AtomicU64,
    refill: SyncSender<()>,
    /// No more are prepared. Locked while one is, so closing waits for that.
    closed: Mutex<bool>,
}

impl PreparedSlots {
    /// An empty pool, and the receiver for [`refill`].
    pub(crate) fn new() -> (PreparedSlots, Receiver<()>) {
        let (refill, requests) = sync_channel(1);
        (
            PreparedSlots {
                ready: Mutex::default(),
                used: AtomicU64::new(0),
                refill,
                closed: Mutex::default(),
            },
            requests,
        )
    }

    fn ready(&self) -> MutexGuard<'_, VecDeque<PreparedSlot>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn closed(&self) -> MutexGuard<'_, bool> {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one from the pool.
    pub(crate) fn take(&self) -> Option<PreparedSlot> {
        let mut ready = self.ready();
        let used = self.used.load(Ordering::Acquire);
        let skipped = ready.iter().take_while(|prepared| prepared.slot.0 <= used).count();
        let prepared = ready.remove(skipped);
        if let Some(prepared) = &prepared {
            self.used.fetch_max(prepared.slot.0, Ordering::AcqRel);
        }
        prepared
    }

    /// Requests a refill at the low watermark. Called after a start was sent, so that it does not delay that.
    pub(crate) fn request_refill(&self) {
        if self.ready().len() <= LOW_WATERMARK {
            let _requested_already = self.refill.try_send(());
        }
    }

    /// A process uses a slot that is not from the pool.
    pub(crate) fn skip_to(&self, slot: Slot) {
        self.used.fetch_max(slot.0, Ordering::AcqRel);
    }
}

/// Refills the pool on request, until the engine ends. Removes slots that were skipped.
pub(crate) fn refill(engine: &Weak<Shared>, requests: &Receiver<()>) {
    // A start that finds the pool empty prepares its own slot, so this has a low priority.
    outpost_sys::process::lower_priority();
    while requests.recv().is_ok() {
        let Some(shared) = engine.upgrade() else { return };
        while refill_one(&shared) {}
    }
}

/// Prepares at most one slot, so that closing does not wait longer than for that. False when the pool is full.
fn refill_one(shared: &Arc<Shared>) -> bool {
    let pool = &shared.prepared_slots;
    let closed = pool.closed();
    if *closed {
        return false;
    }
    let used = pool.used.load(Ordering::Acquire);
    let skipped: Vec<PreparedSlot> = {
        let mut ready = pool.ready();
        let count = ready.iter().take_while(|prepared| prepared.slot.0 <= used).count();
        ready.drain(..count).collect()
    };
    skipped.into_iter().for_each(|prepared| remove(shared, prepared.slot));
    if pool.ready().len() >= shared.config().prepared_slots_max {
        return false;
    }
    match prepare(shared) {
        Ok(prepared) => pool.ready().push_back(prepared),
        // The next start prepares its own slot and reports the error.
        Err(error) => {
            tracing::debug!(%error, "cannot prepare a slot");
            return false;
        }
    }
    true
}

/// Removes all prepared slots when the engine stops. No slot is prepared or removed here after that.
pub(crate) fn clear(shared: &Shared) {
    *shared.prepared_slots.closed() = true;
    let left: Vec<PreparedSlot> = shared.prepared_slots.ready().drain(..).collect();
    left.into_iter().for_each(|prepared| remove(shared, prepared.slot));
}

/// Removes a slot in which nothing was started.
fn remove(shared: &Shared, slot: Slot) {
    shared.remove_cgroup(slot);
    shared.process_dirs.remove(slot);
}

/// Prepares a slot.
pub(crate) fn prepare(shared: &Arc<Shared>) -> Result<PreparedSlot> {
    let slot = shared.next_slot();
    let prepared = prepare_in(shared, slot);
    if prepared.is_err() {
        remove(shared, slot);
    }
    prepared
}

fn prepare_in(shared: &Arc<Shared>, slot: Slot) -> Result<PreparedSlot> {
    let io = |errno| crate::Error::io("make", "descriptors for a child", errno);
    let (dir, description) = shared.process_dirs.create(slot)?;
    if !descriptors::are_left(&description) {
        return Err(io(Errno::MFILE));
    }
    // A start in this slot then needs no more space on the disk for its records.
    reserve(&description, DESCRIPTION_RESERVED_BYTES)?;
    let writer = Writer::create(&dir, shared.config().process_bytes_max)?;
    let cgroup = match &shared.cgroups {
        Some(cgroups) => {
            let created = cgroups.group(&slot.to_string()).create();
            Some(created.map_err(|errno| crate::Error::io("create", "a cgroup", errno))?)
        }
        None => None,
    };
    let stdio = StandardPipes::new().map_err(io)?;
    Ok(PreparedSlot { slot, dir, writer, description, stdio, cgroup })
}
