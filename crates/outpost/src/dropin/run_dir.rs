//! The temporary run directory of a foreground server (`app-server`, `sudo-proxy`), and the engine in it.

use outpost_engine::{Config, Engine, ResourceLimit};
use outpost_sys::file::{self, Open};
use outpost_sys::limits;
use outpost_sys::spawn::DESCRIPTOR_LIMIT;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The lock file that the owner of a run directory holds until it exits.
const LOCK: &str = "lock";

pub(crate) struct RunDir {
    dir: PathBuf,
    _lock: OwnedFd,
}

impl RunDir {
    /// Creates a directory below `parent` and removes those of killed owners.
    pub(crate) fn create(parent: &Path) -> Result<RunDir, String> {
        let make = |dir: &Path| fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
        make(parent).map_err(|error| {
            format!("{}: {error}\nhint: choose another directory with --state-dir", parent.display())
        })?;
        remove_abandoned(parent);
        let dir = parent.join(std::process::id().to_string());
        let fail = |error: &dyn std::fmt::Display| format!("{}: {error}", dir.display());
        // An existing directory belongs to a dead process that had the same pid.
        let _nothing_there = fs::remove_dir_all(&dir);
        make(&dir).map_err(|error| fail(&error))?;
        let lock = file::open(dir.join(LOCK), Open::Create).map_err(|errno| fail(&errno))?;
        match file::try_lock(&lock).map_err(|errno| fail(&errno))? {
            true => Ok(RunDir { dir, _lock: lock }),
            false => Err(fail(&"is in use")),
        }
    }

    /// Starts an engine whose processes end with this process.
    pub(crate) fn start_engine(&self) -> Result<Engine, String> {
        let binary = file::open("/proc/self/exe", Open::Program)
            .map_err(|errno| format!("cannot open this program: {errno}"))?;
        let mut config = Config::new(&self.dir);
        // The engine needs several descriptors per command. Commands get the original limit.
        if let Ok(before) = limits::raise_descriptors() {
            let number = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
            let (soft, hard) = (number(before.soft), number(before.hard));
            config.limits = vec![ResourceLimit { resource: DESCRIPTOR_LIMIT, soft, hard }];
        }
        Engine::with_keeper_process(config, binary).map_err(|error| error.to_string())
    }

    pub(crate) fn remove(self) {
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            tracing::warn!(dir = %self.dir.display(), %error, "cannot remove the run directory");
        }
    }
}

/// Skips directories without a lock file: their owner is creating or removing them.
fn remove_abandoned(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for dir in entries.flatten().map(|entry| entry.path()) {
        let Ok(lock) = file::open(dir.join(LOCK), Open::ReadWrite) else { continue };
        if file::try_lock(&lock).unwrap_or(false) {
            Engine::remove_cgroups(&dir);
            let _removed_already = fs::remove_dir_all(&dir);
        }
    }
}
