//! Deadlines on the boot-time clock. They can be stored, are valid in other processes, and expire with a
//! reboot.

use outpost_sys::{clock, procfs};
use std::time::Duration;

/// A point in time within one boot. Setting the wall clock does not move it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootInstant {
    pub boot_id: String,
    pub boot_ns: u64,
}

impl BootInstant {
    pub fn now() -> BootInstant {
        BootInstant { boot_id: procfs::boot_id(), boot_ns: clock::boot_ns() }
    }

    pub fn after(self, wait: Duration) -> BootInstant {
        let ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        BootInstant { boot_ns: self.boot_ns.saturating_add(ns), ..self }
    }

    /// Time until this instant. Zero if it has passed or belongs to another boot.
    pub fn left(&self, now: &BootInstant) -> Duration {
        match self.boot_id == now.boot_id {
            true => Duration::from_nanos(self.boot_ns.saturating_sub(now.boot_ns)),
            false => Duration::ZERO,
        }
    }
}

/// Unix time in milliseconds. For display only: the wall clock can be set.
pub fn unix_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map(|now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_of_another_boot_has_expired() {
        let now = BootInstant { boot_id: "a".into(), boot_ns: 5_000_000_000 };
        let later = now.clone().after(Duration::from_secs(3));
        assert_eq!(later.left(&now), Duration::from_secs(3));
        let other = BootInstant { boot_id: "b".into(), boot_ns: 1 };
        assert_eq!(later.left(&other), Duration::ZERO);
        assert_eq!(now.left(&later), Duration::ZERO);
    }
}
