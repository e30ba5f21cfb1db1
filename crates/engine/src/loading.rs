//! Loading the records of ended processes of earlier daemons, also after a kill or a power failure.

use crate::adoption::handle;
use crate::kill;
use crate::process::{Os, Process, Status, WhileAlive};
use crate::process_dir::{Description, Recalled};
use crate::reactor::Command;
use crate::shared::Shared;
use crate::spec::Slot;
use crate::{Exit, Result};
use outpost_journal::{Boot, Writer};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The pause before records are read again that could not be read for lack of a resource. Lookups of processes that are
/// not in the table wait for that.
const RETRY: Duration = Duration::from_secs(1);

/// The input of the loader.
pub(crate) struct Found {
    /// All slots on disk, or the error of the listing.
    pub(crate) slots: Result<Vec<Slot>>,
    /// Slots that the keeper holds.
    pub(crate) held: HashSet<u64>,
    /// The greatest slot of earlier workers.
    pub(crate) last: Slot,
}

/// Adds ended processes of earlier daemons to the table, and kills what a daemon has left that died with its keeper.
pub(crate) fn load(shared: Arc<Shared>, found: Found) {
    let Found { slots, held, last } = found;
    let is_earlier = |slot: &Slot| *slot <= last && !held.contains(&slot.0);
    if let Some(cgroups) = &shared.cgroups {
        let groups = cgroups.names().into_iter().filter_map(|name| name.parse::<Slot>().ok());
        for slot in groups.filter(is_earlier) {
            // Only empty ones. The members of another one are descendants of an ended process. A process without a
            // recorded exit is killed with its record below.
            shared.remove_cgroup(slot);
        }
    }
    let mut missing = slots.is_err();
    let mut slots: Vec<Slot> = slots.unwrap_or_default().into_iter().filter(is_earlier).collect();
    let mut waiting = load_all(&shared, &mut slots);
    shared.loaded.send_replace(true);
    shared.recalled.send_replace(!missing && waiting.is_empty());
    outpost_sys::process::lower_priority();
    shared.process_dirs.erase_leftovers();
    let engine = Arc::downgrade(&shared);
    drop(shared);
    while missing || !waiting.is_empty() {
        std::thread::park_timeout(RETRY);
        let Some(shared) = engine.upgrade() else { return };
        if missing && let Ok(slots) = shared.process_dirs.slots() {
            missing = false;
            waiting = slots.into_iter().filter(is_earlier).collect();
        }
        waiting = load_all(&shared, &mut waiting);
        shared.recalled.send_replace(!missing && waiting.is_empty());
    }
}

/// Adds the processes of these slots; returns those whose records could not be read for lack of a resource.
fn load_all(shared: &Arc<Shared>, slots: &mut [Slot]) -> Vec<Slot> {
    slots.sort();
    let mut again = Vec::new();
    for slot in slots.iter().copied() {
        match load_one(shared, slot) {
            Ok(Some(process)) => {
                // Before `recalled` is set, since lookups wait for that.
                kill::finish_kill_tree(&process);
                let replaced = shared.table().insert(process);
                if let Some(replaced) = replaced {
                    shared.command_blocking(Command::Forget { slot: replaced.slot() });
                }
            }
            Ok(None) => {
                shared.remove_slot(slot);
            }
            Err(error) if error.is_exhaustion() => again.push(slot),
            Err(error) if shared.process_dirs.is_older_than(slot, shared.config().exited_kept) => {
                tracing::warn!(process = %slot, %error, "cannot read the record of an ended process; removing it after its retention time");
                shared.process_dirs.remove(slot);
            }
            Err(error) => {
                tracing::warn!(process = %slot, %error, "cannot read the record of an ended process; keeping it for its retention time");
            }
        }
    }
    again
}

/// `None` when no process was ever started there.
fn load_one(shared: &Arc<Shared>, slot: Slot) -> Result<Option<Process>> {
    let (description, boot) = match shared.process_dirs.recall(slot)? {
        Recalled::Unused => return Ok(None),
        Recalled::Described(found) if found.is_of_another_boot() => (*found, Boot::Another),
        Recalled::Described(found) => (*found, Boot::Same),
        // Only a power failure or a damaged disk loses a description.
        Recalled::Lost => (Description::lost(slot), Boot::Another),
    };
    let dir = shared.process_dirs.dir(slot);
    let mut writer = Writer::salvage(&dir, shared.journal_bytes_max(&description), boot)?;
    if writer.exit().is_none() {
        // Keeper and worker died together, or the host restarted. The exit status is lost.
        tracing::warn!(process = %slot, "no keeper has this process; recording that it ended with the last daemon");
        shared.kill_unrecorded(slot);
        writer.finish(&Exit::UNKNOWN)?;
    }
    let exit = writer.exit().unwrap_or(Exit::UNKNOWN);
    let start = writer.start();
    let journal = writer.journal().clone();
    let process = handle(shared, slot, description, journal, None, Status::Finished(exit));
    if let Some((pid, start_ticks)) = start {
        let _set_once = process.inner.os.set(Os { pid, pidfd: WhileAlive::new(None), start_ticks });
    }
    process.inner.stdin_accepted.store(shared.process_dirs.stdin_accepted(slot), Ordering::Release);
    process.set_ended_ms(shared.process_dirs.last_recorded_ms(slot));
    Ok(Some(process))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{Config, Engine, Error, Key, Spawn};
    use outpost_sys::Errno;

    /// `make chaos --exhaustion` found it: a lookup returned no process.
    #[tokio::test]
    async fn a_lookup_waits_for_records_that_cannot_be_read_for_lack_of_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::with_keeper_thread(Config::new(dir.path())).unwrap();
        let spawn = Spawn { program: "/bin/true".into(), ..Spawn::new(Key::new("test", "", "p"), ["true"]) };
        let process = engine.spawn(spawn).await.unwrap();
        process.finished().await.unwrap();
        let (shared, slot) = (engine.shared.clone(), process.slot());
        until_recalled(&shared).await;
        // As a worker starts that finds this record and has no descriptor to read it.
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
