//! The background sync of journals, so that a power failure loses at most the output of a few seconds.

use crate::process::Process;
use crate::shared::Shared;
use crate::{Error, Result};
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Syncing a journal waits for the disk several times. For more journals than this, the whole file system is synced
/// once.
const ONE_BY_ONE_MAX: usize = 16;

/// The signal to the sync thread.
pub(crate) struct Syncing {
    is_pending: AtomicBool,
    requests: SyncSender<()>,
}

impl Syncing {
    /// A signal, and the receiver for [`run`].
    pub(crate) fn new() -> (Syncing, Receiver<()>) {
        let (requests, receiver) = sync_channel(1);
        (Syncing { is_pending: AtomicBool::new(false), requests }, receiver)
    }

    /// Something was recorded. Costs one load while a sync is pending.
    pub(crate) fn note(&self) {
        if !self.is_pending.load(Ordering::Relaxed) && !self.is_pending.swap(true, Ordering::Relaxed) {
            self.look_again();
        }
    }

    /// The interval has changed.
    pub(crate) fn look_again(&self) {
        let _pending_already = self.requests.try_send(());
    }
}

/// Syncs one interval after the first unsynced record, until the engine ends. An idle engine is not woken.
pub(crate) fn run(engine: &Weak<Shared>, requests: &Receiver<()>) {
    while requests.recv().is_ok() {
        let Some(interval) = engine.upgrade().map(|shared| shared.config().sync_interval) else { return };
        // Syncing is off. The sync stays pending until the interval changes.
        if interval.is_zero() {
            continue;
        }
        std::thread::sleep(interval);
        let Some(shared) = engine.upgrade() else { return };
        shared.syncing.is_pending.store(false, Ordering::Relaxed);
        sync_all(&shared);
    }
}

/// Syncs all records.
pub(crate) fn sync_all(shared: &Shared) {
    let unsynced = |process: &Process| Some((process.clone(), process.inner.journal.unsynced()?));
    let unsynced: Vec<_> = shared.table().all().filter_map(unsynced).collect();
    let together = unsynced.len() > ONE_BY_ONE_MAX;
    if together && let Err(error) = shared.process_dirs.sync_file_system() {
        return tracing::warn!(%error, "cannot sync journals");
    }
    for (process, now) in unsynced {
        let outcome = match together {
            true => process.inner.journal.note_synced(now).map_err(Error::from),
            false => sync_one(shared, &process),
        };
        // A process that was dropped meanwhile has no files.
        if let Err(error) = outcome
            && !process.inner.progress.borrow().gone
        {
            tracing::warn!(process = %process.slot(), %error, "cannot sync a journal");
        }
    }
}

fn sync_one(shared: &Shared, process: &Process) -> Result<()> {
    let is_described = &process.inner.is_description_synced;
    if !is_described.load(Ordering::Relaxed) {
        shared.process_dirs.sync_description(process.slot())?;
        is_described.store(true, Ordering::Relaxed);
    }
    Ok(process.inner.journal.sync()?)
}
