//! Deadlines on a clock that nobody can set, written down so that they hold in another process and are void after a reboot.

use outpost_sys::{clock, procfs};
use std::time::Duration;

/// A point in time of one boot of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    pub boot_id: String,
    pub boot_ns: u64,
}

impl Moment {
    pub fn now() -> Moment {
        Moment { boot_id: procfs::boot_id(), boot_ns: clock::boot_ns() }
    }

    pub fn after(self, wait: Duration) -> Moment {
        let ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        Moment { boot_ns: self.boot_ns.saturating_add(ns), ..self }
    }

    /// How long until then; nothing when it has passed, or was of another boot.
    pub fn left(&self, now: &Moment) -> Duration {
        match self.boot_id == now.boot_id {
            true => Duration::from_nanos(self.boot_ns.saturating_sub(now.boot_ns)),
            false => Duration::ZERO,
        }
    }
}

/// Milliseconds of Unix time, for people.
pub fn unix_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map(|now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_of_another_boot_has_passed() {
        let now = Moment { boot_id: "a".into(), boot_ns: 5_000_000_000 };
        let later = now.clone().after(Duration::from_secs(3));
        assert_eq!(later.left(&now), Duration::from_secs(3));
        let other = Moment { boot_id: "b".into(), boot_ns: 1 };
        assert_eq!(later.left(&other), Duration::ZERO);
        assert_eq!(now.left(&later), Duration::ZERO);
    }
}
