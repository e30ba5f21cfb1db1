//! Placeholders: empty directories for missing names that a command must not create. A mask is mounted upon
//! them.
//!
//! A mount needs a mount point, and only a mount prevents the creation of one name in a writable directory.
//! So the directory is real, on the host, and must be removed again in every case:
//! - The daemon and the outer process of each command hold a shared lock on it. A process removes it only if
//!   it gets an exclusive lock, so never while another command uses it. Removal would remove their mounts.
//! - The daemon removes it when the command has exited. If the daemon is gone, the outer process of the
//!   command removes it.
//! - A record is written before the directory is created. [`sweep`] removes what is left after a crash of all
//!   processes.
//! - It is recognised by its mode, so only an empty directory that an Outpost process created is removed. If
//!   another process puts a file into it, the directory stays.

use crate::{Error, Result};
use outpost_sys::confine::{self, PLACEHOLDER_MODE};
use outpost_sys::file::{self, Open};
use outpost_sys::{Errno, directory};
use std::ffi::{CString, OsStr};
use std::fs::DirBuilder;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const DIRECTORY: &str = "mountpoints";

/// Attempts to lock a placeholder that other processes remove or are about to remove.
const ATTEMPTS_MAX: usize = 100;

/// The pause between attempts. A command that can read the directory may hold a lock for longer; then the
/// attempts fail.
const PAUSE: Duration = Duration::from_millis(1);

static RECORDS: AtomicU64 = AtomicU64::new(0);

/// Whether a placeholder outlived its command because another command used it too.
static LEFT: AtomicBool = AtomicBool::new(false);

/// One locked placeholder.
#[derive(Debug)]
struct Placeholder {
    parent: OwnedFd,
    name: CString,
    directory: OwnedFd,
}

/// The placeholders of one command. Dropping this removes them.
#[derive(Debug, Default)]
pub(crate) struct Placeholders {
    placeholders: Vec<Placeholder>,
    record: Option<PathBuf>,
}

/// Whether a path is a placeholder of any user. Users share `/tmp`. Lock placeholders of other users too, or
/// their removal would remove our mounts.
pub(crate) fn is_placeholder(path: &Path) -> bool {
    let found = std::fs::symlink_metadata(path);
    found.is_ok_and(|found| found.is_dir() && confine::is_placeholder_mode(found.mode()))
        && std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

impl Placeholders {
    pub(crate) fn len(&self) -> usize {
        self.placeholders.len()
    }

    /// Locks all of these, and creates missing ones. The record is written below `state`.
    pub(crate) fn acquire<'a>(state: &Path, paths: impl Iterator<Item = &'a Path>) -> Result<Placeholders> {
        let paths: Vec<&Path> = paths.collect();
        let mut placeholders = Placeholders::default();
        if paths.iter().any(|path| !path.exists()) {
            let fail = |error: std::io::Error| Error::Placeholder {
                path: paths.first().map(|path| path.into()).unwrap_or_default(),
                reason: format!("writing a record in {}: {error}", state.display()),
            };
            placeholders.record = Some(write_record(&state.join(DIRECTORY), &paths).map_err(fail)?);
        }
        for path in paths {
            let placeholder = lock_placeholder(path)
                .map_err(|errno| Error::Placeholder { path: path.into(), reason: errno.to_string() });
            placeholders.placeholders.push(placeholder?);
        }
        Ok(placeholders)
    }
}

impl Drop for Placeholders {
    fn drop(&mut self) {
        let removed = self.placeholders.drain(..).map(remove).collect::<Vec<bool>>();
        let Some(record) = &self.record else { return };
        if removed.into_iter().all(|gone| gone) {
            let _removed = std::fs::remove_file(record);
            if let Some(directory) = record.parent()
                && LEFT.swap(false, Ordering::Relaxed)
            {
                sweep_records(directory);
            }
        } else {
            LEFT.store(true, Ordering::Relaxed);
        }
    }
}

/// Removes placeholders that crashed processes left on the host. Call it at start, and after the exit of a
/// command that an earlier worker had started.
pub fn sweep(state: &Path) {
    sweep_records(&state.join(DIRECTORY));
}

fn sweep_records(directory: &Path) {
    let Ok(records) = std::fs::read_dir(directory) else { return };
    for record in records.flatten() {
        let Ok(bytes) = std::fs::read(record.path()) else { continue };
        let paths = bytes.split(|byte| *byte == 0).filter(|path| !path.is_empty());
        let gone = |path: &[u8]| {
            let path = Path::new(OsStr::from_bytes(path));
            !is_placeholder(path) || open(path).is_ok_and(remove)
        };
        if paths.map(gone).collect::<Vec<bool>>().into_iter().all(|gone| gone) {
            let _removed = std::fs::remove_file(record.path());
        }
    }
}

fn write_record(directory: &Path, paths: &[&Path]) -> std::io::Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let bytes = paths.iter().map(|path| path.as_os_str().as_bytes()).collect::<Vec<_>>().join(&0u8);
    let number = RECORDS.fetch_add(1, Ordering::Relaxed);
    let record = directory.join(format!("{}-{number}", std::process::id()));
    std::fs::write(&record, bytes)?;
    Ok(record)
}

fn lock_placeholder(path: &Path) -> outpost_sys::Result<Placeholder> {
    for _ in 0..ATTEMPTS_MAX {
        let (parent, name) = open_parent(path)?;
        match directory::create(&parent, &name, PLACEHOLDER_MODE) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        let placeholder = match open_in(parent, name) {
            Err(Errno::NOENT) => continue,
            placeholder => placeholder?,
        };
        match directory::try_lock(&placeholder.directory, false) {
            Err(Errno::AGAIN) => {
                std::thread::sleep(PAUSE);
                continue;
            }
            locked => locked?,
        }
        if directory::is_same(&placeholder.parent, &placeholder.name, &placeholder.directory) == Ok(true) {
            return Ok(placeholder);
        }
    }
    Err(Errno::AGAIN)
}

/// The parent directory of a name. No component may be a link, because its target is not ours to change.
fn open_parent(path: &Path) -> outpost_sys::Result<(OwnedFd, CString)> {
    let (parent, name) = path.parent().zip(path.file_name()).ok_or(Errno::INVAL)?;
    let name = CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)?;
    Ok((directory::open(parent)?, name))
}

fn open(path: &Path) -> outpost_sys::Result<Placeholder> {
    let (parent, name) = open_parent(path)?;
    open_in(parent, name)
}

fn open_in(parent: OwnedFd, name: CString) -> outpost_sys::Result<Placeholder> {
    let directory = file::open_at(&parent, OsStr::from_bytes(name.as_bytes()), Open::Directory)?;
    Ok(Placeholder { parent, name, directory })
}

/// Removes a placeholder. Returns whether nothing is left to clean up.
fn remove(placeholder: Placeholder) -> bool {
    if directory::try_lock(&placeholder.directory, true).is_err() {
        return false;
    }
    // A directory that is no placeholder any more, or is not empty, stays.
    let _removed = confine::remove_placeholder(
        placeholder.parent.as_fd(),
        &placeholder.name,
        placeholder.directory.as_fd(),
    );
    true
}
