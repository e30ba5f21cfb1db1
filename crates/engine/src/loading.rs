//! Entering the processes of earlier lives of the daemon: their records, in whatever state a kill or a power failure left
//! them.

use crate::adoption::handle;
use crate::kill;
use crate::process::{Os, Process, Status, WhileAlive};
use crate::reactor::Command;
use crate::shared::Shared;
use crate::spec::Slot;
use crate::store::{Description, Recalled};
use crate::{Exit, Result};
use outpost_journal::{Boot, Writer};
use outpost_sys::limits;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long to wait before records that could not be read for want of a resource are tried again. Lookups of processes that
/// are not in the table wait for that.
const RETRY: Duration = Duration::from_secs(1);

/// What the loader begins with.
pub(crate) struct Found {
    /// All slots on disk, or why they could not be listed.
    pub(crate) slots: Result<Vec<Slot>>,
    /// Slots that the keeper holds.
    pub(crate) held: HashSet<u64>,
    /// No slot of an earlier life is greater.
    pub(crate) last: Slot,
}

/// Enters ended processes of earlier lives, and ends what a life that was cut off with its keeper left behind.
pub(crate) fn load(shared: Arc<Shared>, found: Found) {
    let Found { slots, held, last } = found;
    let is_earlier = |slot: &Slot| *slot <= last && !held.contains(&slot.0);
    if let Some(cgroups) = &shared.cgroups {
        let groups = cgroups.names().into_iter().filter_map(|name| name.parse::<Slot>().ok());
        for slot in groups.filter(is_earlier) {
            // Empty ones only. What is left in another was left there by a process that ended in order; a process
            // that was cut off has a record, and is ended with it below.
            shared.remove_cgroup(slot);
        }
    }
    let mut missing = slots.is_err();
    let mut slots: Vec<Slot> = slots.unwrap_or_default().into_iter().filter(is_earlier).collect();
    let mut waiting = load_all(&shared, &mut slots);
    shared.loaded.send_replace(true);
    shared.recalled.send_replace(!missing && waiting.is_empty());
    limits::lower_priority();
    shared.store.erase_leftovers();
    let engine = Arc::downgrade(&shared);
    drop(shared);
    while missing || !waiting.is_empty() {
        std::thread::park_timeout(RETRY);
        let Some(shared) = engine.upgrade() else { return };
        if missing && let Ok(slots) = shared.store.slots() {
            missing = false;
            waiting = slots.into_iter().filter(is_earlier).collect();
        }
        waiting = load_all(&shared, &mut waiting);
        shared.recalled.send_replace(!missing && waiting.is_empty());
    }
}

/// Enters the processes of these slots; returns those whose records could not be read for want of a resource.
fn load_all(shared: &Arc<Shared>, slots: &mut [Slot]) -> Vec<Slot> {
    slots.sort();
    let mut again = Vec::new();
    for slot in slots.iter().copied() {
        match load_one(shared, slot) {
            Ok(Some(process)) => {
                // Before `recalled` is set: a client that waits for that finds the process.
                kill::finish_kill_tree(&process);
                let loser = shared.table().insert(process);
                if let Some(loser) = loser {
                    shared.command_blocking(Command::Forget { slot: loser.slot() });
                }
            }
            Ok(None) => {
                shared.destroy_unknown(slot);
                shared.store.remove(slot);
            }
            Err(error) if error.is_exhaustion() => again.push(slot),
            Err(error) if shared.store.is_older_than(slot, shared.config().exited_kept) => {
                tracing::warn!(process = %slot, %error, "the record of an ended process cannot be read; its time is up, it is removed");
                shared.store.remove(slot);
            }
            Err(error) => {
                tracing::warn!(process = %slot, %error, "the record of an ended process cannot be read; it is kept until its time is up");
            }
        }
    }
    again
}

/// `None` when no process was ever started there.
fn load_one(shared: &Arc<Shared>, slot: Slot) -> Result<Option<Process>> {
    let (description, boot) = match shared.store.recall(slot)? {
        Recalled::Unused => return Ok(None),
        Recalled::Described(found) if found.is_of_another_boot() => (*found, Boot::Another),
        Recalled::Described(found) => (*found, Boot::Same),
        // Only a power failure or a damaged disk takes a description away.
        Recalled::Lost => (Description::lost(slot), Boot::Another),
    };
    let dir = shared.store.dir(slot);
    let mut writer = Writer::salvage(&dir, shared.journal_bytes_max(&description), boot)?;
    if writer.exit().is_none() {
        // Keeper and worker died together, or the host did: the process is gone, and its status with it.
        tracing::warn!(process = %slot, "no keeper has this process; it is taken to have ended with the daemon's last life");
        shared.destroy_unknown(slot);
        writer.finish(&Exit::UNKNOWN)?;
    }
    let exit = writer.exit().unwrap_or(Exit::UNKNOWN);
    let start = writer.start();
    let journal = writer.journal().clone();
    let process = handle(shared, slot, description, journal, None, Status::Finished(exit));
    if let Some((pid, start_ticks)) = start {
        let _set_once = process.inner.os.set(Os { pid, pidfd: WhileAlive::new(None), start_ticks });
    }
    process.inner.stdin_accepted.store(shared.store.stdin_accepted(slot), Ordering::Release);
    process.set_ended_ms(shared.store.last_recorded_ms(slot));
    Ok(Some(process))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{Config, Engine, Error, Key, Spawn};
    use outpost_sys::Errno;

    /// `make chaos --exhaustion` found it: a client that came back for a process got the answer that there is none.
    #[tokio::test]
    async fn a_lookup_waits_for_records_that_cannot_be_read_for_want_of_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::embedded(Config::new(dir.path())).unwrap();
        let spawn = Spawn { program: "/bin/true".into(), ..Spawn::new(Key::new("test", "", "p"), ["true"]) };
        let process = engine.spawn(spawn).await.unwrap();
        process.finished().await.unwrap();
        let (shared, slot) = (engine.shared.clone(), process.slot());
        until_recalled(&shared).await;
        // As a worker begins that finds this record and has no descriptor to read it.
        shared.recalled.send_replace(false);
        assert!(shared.table().remove(slot).is_some());
        let slots = Err(Error::io("list", "the directory of processes", Errno::MFILE));
        let found = Found { slots, held: HashSet::new(), last: slot };
        let loader = std::thread::spawn(move || load(shared, found));
        assert_eq!(engine.get(slot).await.map(|process| process.slot()), Some(slot));
        loader.join().unwrap();
        engine.shut_down(Duration::from_secs(20)).await.unwrap();
    }

    async fn until_recalled(shared: &Shared) {
        shared.recalled.subscribe().wait_for(|recalled| *recalled).await.unwrap();
    }
}
