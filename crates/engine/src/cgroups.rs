//! The cgroups of an engine: their name, and whether the host has cgroups.

use crate::{Error, Result};
use outpost_sys::Errno;
use std::path::Path;
use std::time::Duration;

/// The attempts to detect cgroups while a resource is exhausted, and the pause between them.
const CGROUPS_ATTEMPTS: u32 = 20;
const CGROUPS_RETRY: Duration = Duration::from_millis(25);

/// The name of a daemon, by its state directory, so that two daemons do not use the same cgroups and markers.
pub(crate) fn name_of(state_dir: &Path) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    state_dir.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

pub(crate) fn cgroups_of(name: &str) -> String {
    format!("outpost-{name}")
}

/// Detects cgroups. If a resource is exhausted, this retries and then fails the start of the engine, which the keeper
/// repeats with back-off: a worker without the cgroups of earlier workers could not kill their trees. `EAGAIN` is a
/// limit of the hierarchy, which may stay. No tree is in a cgroup then.
pub(crate) fn find_cgroups<T>(
    mut detect: impl FnMut() -> outpost_sys::Result<Option<T>>,
) -> Result<Option<T>> {
    for _ in 1..CGROUPS_ATTEMPTS {
        if let Ok(found) = detect() {
            return Ok(found);
        }
        std::thread::sleep(CGROUPS_RETRY);
    }
    match detect() {
        Err(Errno::AGAIN) => {
            tracing::warn!(
                "the limit of the cgroup hierarchy is reached; process trees are killed without cgroups"
            );
            Ok(None)
        }
        found => found.map_err(|errno| Error::io("make", "the cgroup of this daemon", errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_that_runs_out_for_a_moment_does_not_disable_cgroups() {
        let mut answers = [Err(Errno::MFILE), Err(Errno::NOMEM), Ok(Some(7))].into_iter();
        assert_eq!(find_cgroups(|| answers.next().unwrap()), Ok(Some(7)));
        assert_eq!(find_cgroups::<i32>(|| Ok(None)), Ok(None), "a host without cgroups");
    }

    #[test]
    fn a_resource_that_stays_away_fails_the_start_and_a_limit_of_the_hierarchy_does_not() {
        let failed = find_cgroups::<i32>(|| Err(Errno::NFILE)).unwrap_err();
        assert!(failed.is_exhaustion(), "{failed}");
        assert_eq!(find_cgroups::<i32>(|| Err(Errno::AGAIN)), Ok(None));
    }
}
