//! Syncing journals in the background, so that a power failure takes no more than the output of a few seconds.

use crate::process::Process;
use crate::shared::Shared;
use crate::{Error, Result};
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Each journal takes several waits for the disk. Of more than so many the whole file system is synced, in one wait.
const ONE_BY_ONE_MAX: usize = 16;

/// Tells the syncing thread that there is something to sync.
pub(crate) struct Syncing {
    is_pending: AtomicBool,
    wishes: SyncSender<()>,
}

impl Syncing {
    /// Nothing to sync yet, and what has to be given to [`keep`].
    pub(crate) fn new() -> (Syncing, Receiver<()>) {
        let (wishes, receiver) = sync_channel(1);
        (Syncing { is_pending: AtomicBool::new(false), wishes }, receiver)
    }

    /// Something was recorded. Costs the reactor one load while a sync is pending anyway.
    pub(crate) fn note(&self) {
        if !self.is_pending.load(Ordering::Relaxed) && !self.is_pending.swap(true, Ordering::Relaxed) {
            self.look_again();
        }
    }

    /// The interval has changed.
    pub(crate) fn look_again(&self) {
        let _pending_already = self.wishes.try_send(());
    }
}

/// Syncs what was recorded, one interval after the first of it, until the engine ends. An idle engine is not woken.
pub(crate) fn keep(engine: &Weak<Shared>, wishes: &Receiver<()>) {
    while wishes.recv().is_ok() {
        let Some(interval) = engine.upgrade().map(|shared| shared.config().sync_interval) else { return };
        // Off. What is pending stays so until the interval changes.
        if interval.is_zero() {
            continue;
        }
        std::thread::sleep(interval);
        let Some(shared) = engine.upgrade() else { return };
        shared.syncing.is_pending.store(false, Ordering::Relaxed);
        sync_all(&shared);
    }
}

/// Waits until everything that is recorded now is on the disk.
pub(crate) fn sync_all(shared: &Shared) {
    let unsynced = |process: &Process| Some((process.clone(), process.inner.journal.unsynced()?));
    let unsynced: Vec<_> = shared.table().all().filter_map(unsynced).collect();
    let together = unsynced.len() > ONE_BY_ONE_MAX;
    if together && let Err(error) = shared.store.sync_file_system() {
        return tracing::warn!(%error, "journals cannot be synced");
    }
    for (process, now) in unsynced {
        let outcome = match together {
            true => process.inner.journal.note_synced(now).map_err(Error::from),
            false => sync_one(shared, &process),
        };
        // One that was dropped meanwhile has no files.
        if let Err(error) = outcome
            && !process.inner.progress.borrow().gone
        {
            tracing::warn!(process = %process.slot(), %error, "the journal cannot be synced");
        }
    }
}

fn sync_one(shared: &Shared, process: &Process) -> Result<()> {
    let is_described = &process.inner.is_description_synced;
    if !is_described.load(Ordering::Relaxed) {
        shared.store.sync_description(process.slot())?;
        is_described.store(true, Ordering::Relaxed);
    }
    Ok(process.inner.journal.sync()?)
}
