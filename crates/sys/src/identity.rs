//! The identity of a process, which distinguishes it from a later process with the same pid.
//!
//! A pid names a process only until it is reaped. An [`Identity`] adds the start time and is valid for this
//! boot only. It is a plain value that can be recorded. [`Identity::open`] turns it into a [`Pidfd`], the
//! only type that can be signalled.

use crate::pidfd::{self, Pidfd};
use crate::procfs::{self, Stat};
use crate::{Errno, Result};
use std::collections::HashMap;
use std::sync::LazyLock;

/// A process of this boot, by pid and start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pid: i32,
    start_ticks: u64,
}

/// The id of this boot. Read once: it cannot change while this process lives.
pub fn this_boot() -> &'static str {
    static BOOT_ID: LazyLock<String> = LazyLock::new(procfs::boot_id);
    &BOOT_ID
}

impl Identity {
    /// The identity of a process as /proc showed it.
    pub fn of(stat: &Stat) -> Identity {
        Identity { pid: stat.pid, start_ticks: stat.start_ticks }
    }

    /// An identity from a record on disk. `ESRCH` when the record is of another boot, or lacks the boot id or
    /// the start time: any process could have its pid then.
    pub fn recorded(boot_id: &str, pid: i32, start_ticks: u64) -> Result<Identity> {
        match pid > 0 && start_ticks > 0 && !boot_id.is_empty() && boot_id == this_boot() {
            true => Ok(Identity { pid, start_ticks }),
            false => Err(Errno::SRCH),
        }
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    pub fn start_ticks(&self) -> u64 {
        self.start_ticks
    }

    /// Whether /proc showed this process.
    pub fn is(&self, stat: &Stat) -> bool {
        *self == Identity::of(stat)
    }

    /// Whether the pid still belongs to this process.
    pub fn is_current(&self) -> bool {
        procfs::stat(self.pid).is_some_and(|now| self.is(&now))
    }

    /// Opens the process; `ESRCH` when it is gone. The start time is compared after the open, so a recycled
    /// pid is detected.
    pub fn open(&self) -> Result<Pidfd> {
        let opened = pidfd::open(self.pid)?;
        match self.is_current() {
            true => Ok(opened.verified(self.pid)),
            false => Err(Errno::SRCH),
        }
    }
}

/// The live processes among `all` that descend from one of `roots`, without the roots.
///
/// `all` is not an atomic snapshot, so a parent pid in it may have been recycled. Each step is therefore
/// verified: the child still has that parent, and afterwards the parent's pid still belongs to the parent.
pub fn descendants(all: &[Stat], roots: &[Identity]) -> Vec<Stat> {
    let mut family: HashMap<i32, Identity> = roots.iter().map(|root| (root.pid, *root)).collect();
    let mut found = Vec::new();
    loop {
        let before = family.len();
        for stat in all.iter().filter(|stat| !family.contains_key(&stat.pid)).collect::<Vec<_>>() {
            let Some(parent) = family.get(&stat.parent) else { continue };
            let now = procfs::stat(stat.pid).filter(|now| Identity::of(stat).is(now));
            if now.is_some_and(|now| now.parent == parent.pid) && parent.is_current() {
                family.insert(stat.pid, Identity::of(stat));
                found.push(*stat);
            }
        }
        if family.len() == before {
            break;
        }
    }
    found.retain(Stat::is_alive);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Stat {
        procfs::stat(std::process::id().cast_signed()).unwrap()
    }

    #[test]
    fn a_process_with_another_start_time_is_refused() {
        assert_eq!(Identity::of(&own()).open().unwrap().pid(), own().pid);
        for start_ticks in [0, own().start_ticks - 1, own().start_ticks + 1, u64::MAX] {
            let other = Identity::of(&Stat { start_ticks, ..own() });
            assert_eq!(other.open().err(), Some(Errno::SRCH), "{start_ticks}");
        }
    }

    #[test]
    fn a_record_of_another_boot_is_refused() {
        let Stat { pid, start_ticks, .. } = own();
        let same = Identity::recorded(this_boot(), pid, start_ticks).unwrap();
        assert!(same.open().is_ok());
        for boot in ["", "00000000-0000-0000-0000-000000000000", &this_boot()[1..]] {
            assert_eq!(Identity::recorded(boot, pid, start_ticks), Err(Errno::SRCH), "{boot:?}");
        }
    }

    #[test]
    fn a_record_without_a_pid_or_a_start_time_is_refused() {
        for (pid, start_ticks) in [(0, 5), (-1, 5), (own().pid, 0)] {
            assert_eq!(Identity::recorded(this_boot(), pid, start_ticks), Err(Errno::SRCH), "{pid}");
        }
    }
}
