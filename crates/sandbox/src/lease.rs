//! Missing names that a command must not make: an empty directory is put there while it runs, to be mounted upon.
//!
//! A mount needs something to lie on, and nothing but a mount keeps one name in a writable directory from being made. So
//! the directory is real, on the host, and must go away again whatever happens:
//! - Whoever needs it holds a shared lock on it: we, and the outer process of the command. It is removed by the one that
//!   can make its lock exclusive, so never while another command relies on it (removing it would remove their mounts).
//! - We remove it when the command has ended; the command's outer process does if we are gone by then.
//! - What is to be made is written down before. [`sweep`] removes what a crash of everything has left.
//! - It is known by its mode, so only an empty directory that one of us made is ever removed. What somebody outside puts
//!   into it stays, and the directory with it.

use crate::{Error, Result};
use outpost_sys::confine::{self, LEASE_MODE};
use outpost_sys::file::{self, Open};
use outpost_sys::{Errno, namespace};
use std::ffi::{CString, OsStr};
use std::fs::DirBuilder;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const DIRECTORY: &str = "mountpoints";

/// As often as somebody else may remove it just before we lock it, or have it locked to do so.
const TRIES_MAX: usize = 100;

/// Until whoever removes it has done so. A command that can read it may lock it for longer: then it cannot be held.
const PAUSE: Duration = Duration::from_millis(1);

static RECORDS: AtomicU64 = AtomicU64::new(0);

/// Whether some lease outlived the command it was made for, because another one needed it too.
static LEFT: AtomicBool = AtomicBool::new(false);

/// One name that is held.
#[derive(Debug)]
struct Lease {
    parent: OwnedFd,
    name: CString,
    directory: OwnedFd,
}

/// All names that are held for one command. They are let go when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    leases: Vec<Lease>,
    record: Option<PathBuf>,
}

/// Whether it is a directory that only stands there because of a command, of any user: in `/tmp` they meet, and who does
/// not lock another's would lose what is mounted upon it when that one removes it.
pub(crate) fn is_lease(path: &Path) -> bool {
    let found = std::fs::symlink_metadata(path);
    found.is_ok_and(|found| found.is_dir() && confine::is_lease_mode(found.mode()))
        && std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

impl Leases {
    pub(crate) fn len(&self) -> usize {
        self.leases.len()
    }

    /// Holds all of these, making those that are missing. `state` is where this is written down.
    pub(crate) fn acquire<'a>(state: &Path, paths: impl Iterator<Item = &'a Path>) -> Result<Leases> {
        let paths: Vec<&Path> = paths.collect();
        let mut leases = Leases::default();
        if paths.iter().any(|path| !path.exists()) {
            let fail = |error: std::io::Error| Error::Lease {
                path: paths.first().map(|path| path.into()).unwrap_or_default(),
                reason: format!("writing it down in {}: {error}", state.display()),
            };
            leases.record = Some(write_down(&state.join(DIRECTORY), &paths).map_err(fail)?);
        }
        for path in paths {
            let held =
                hold(path).map_err(|errno| Error::Lease { path: path.into(), reason: errno.to_string() });
            leases.leases.push(held?);
        }
        Ok(leases)
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        let released = self.leases.drain(..).map(release).collect::<Vec<bool>>();
        let Some(record) = &self.record else { return };
        if released.into_iter().all(|gone| gone) {
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

/// Removes what was left on the host by commands that nobody lived to clean up after. To be called at start, and when a
/// command ended that an earlier process of ours had started.
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
            !is_lease(path) || open(path).is_ok_and(release)
        };
        if paths.map(gone).collect::<Vec<bool>>().into_iter().all(|gone| gone) {
            let _removed = std::fs::remove_file(record.path());
        }
    }
}

fn write_down(directory: &Path, paths: &[&Path]) -> std::io::Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let bytes = paths.iter().map(|path| path.as_os_str().as_bytes()).collect::<Vec<_>>().join(&0u8);
    let number = RECORDS.fetch_add(1, Ordering::Relaxed);
    let record = directory.join(format!("{}-{number}", std::process::id()));
    std::fs::write(&record, bytes)?;
    Ok(record)
}

fn hold(path: &Path) -> outpost_sys::Result<Lease> {
    for _ in 0..TRIES_MAX {
        let (parent, name) = place(path)?;
        match namespace::make_directory(&parent, &name, LEASE_MODE) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        let lease = match open_in(parent, name) {
            Err(Errno::NOENT) => continue,
            lease => lease?,
        };
        match namespace::lock(&lease.directory, false) {
            Err(Errno::AGAIN) => {
                std::thread::sleep(PAUSE);
                continue;
            }
            locked => locked?,
        }
        if namespace::is_at(&lease.parent, &lease.name, &lease.directory) == Ok(true) {
            return Ok(lease);
        }
    }
    Err(Errno::AGAIN)
}

/// The directory that a name is in, by a way without links: what lies at their ends is not ours to change.
fn place(path: &Path) -> outpost_sys::Result<(OwnedFd, CString)> {
    let (parent, name) = path.parent().zip(path.file_name()).ok_or(Errno::INVAL)?;
    let name = CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)?;
    Ok((namespace::open_directory(parent)?, name))
}

fn open(path: &Path) -> outpost_sys::Result<Lease> {
    let (parent, name) = place(path)?;
    open_in(parent, name)
}

fn open_in(parent: OwnedFd, name: CString) -> outpost_sys::Result<Lease> {
    let directory = file::open_at(&parent, OsStr::from_bytes(name.as_bytes()), Open::Directory)?;
    Ok(Lease { parent, name, directory })
}

/// Whether nothing of it is left to be cleaned up.
fn release(lease: Lease) -> bool {
    if namespace::lock(&lease.directory, true).is_err() {
        return false;
    }
    // Not ours (any more), or something was put into it: it stays.
    let _removed = confine::remove_lease(lease.parent.as_fd(), &lease.name, lease.directory.as_fd());
    true
}
