//! What a server alone has for its processes, `app-server` and `sudo-proxy` alike: a directory of its own, gone when it is,
//! and the engine in it.

use outpost_engine::{Config, Engine, ResourceLimit};
use outpost_sys::file::{self, Open};
use outpost_sys::limits;
use outpost_sys::spawn::DESCRIPTOR_LIMIT;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Held by the owner of a directory as long as it lives.
const LOCK: &str = "lock";

pub(crate) struct Place {
    dir: PathBuf,
    _lock: OwnedFd,
}

impl Place {
    /// Makes a directory below `parent`, and removes those whose owners were killed.
    pub(crate) fn make(parent: &Path) -> Result<Place, String> {
        let make = |dir: &Path| fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
        make(parent).map_err(|error| {
            format!("{}: {error}; choose another place with --state-dir", parent.display())
        })?;
        remove_abandoned(parent);
        let dir = parent.join(std::process::id().to_string());
        let fail = |error: &dyn std::fmt::Display| format!("{}: {error}", dir.display());
        // What is there is of an earlier process with our number, which is not there any more.
        let _nothing_there = fs::remove_dir_all(&dir);
        make(&dir).map_err(|error| fail(&error))?;
        let lock = file::open(dir.join(LOCK), Open::Create).map_err(|errno| fail(&errno))?;
        match file::try_lock(&lock).map_err(|errno| fail(&errno))? {
            true => Ok(Place { dir, _lock: lock }),
            false => Err(fail(&"is in use")),
        }
    }

    /// An engine whose processes end with this one.
    pub(crate) fn engine(&self) -> Result<Engine, String> {
        let binary = file::open("/proc/self/exe", Open::Program)
            .map_err(|errno| format!("cannot open this program: {errno}"))?;
        let mut config = Config::new(&self.dir);
        // Each command takes some; commands themselves get what we were given.
        if let Ok(before) = limits::raise_descriptors() {
            let number = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
            let (soft, hard) = (number(before.soft), number(before.hard));
            config.limits = vec![ResourceLimit { resource: DESCRIPTOR_LIMIT, soft, hard }];
        }
        Engine::alone(config, binary).map_err(|error| error.to_string())
    }

    pub(crate) fn erase(self) {
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            tracing::warn!(dir = %self.dir.display(), %error, "cannot be removed");
        }
    }
}

/// One without a lock is being made or unmade by its owner.
fn remove_abandoned(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for dir in entries.flatten().map(|entry| entry.path()) {
        let Ok(lock) = file::open(dir.join(LOCK), Open::ReadWrite) else { continue };
        if file::try_lock(&lock).unwrap_or(false) {
            Engine::clear_up_after(&dir);
            let _somebody_else_did = fs::remove_dir_all(&dir);
        }
    }
}
