//! Control groups (version 2): one per process, so that a kill of the tree reaches every descendant.

use crate::file::{self, Open};
use crate::pidfd::{self, Pidfd};
use crate::{Errno, Result, fault, is_exhaustion};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

mod locate;

pub use locate::{Location, is_ambiguous_id};

/// A directory of the cgroup file system below which this process may create groups.
#[derive(Clone, Debug)]
pub struct Parent {
    path: PathBuf,
}

/// The cgroup of one process.
#[derive(Clone, Debug)]
pub struct Group {
    path: PathBuf,
}

impl Parent {
    /// Creates `name` below this process's own cgroup. `None` where version 2 is not mounted, not writable,
    /// or lacks `cgroup.kill`. An error means only that a resource has run out ([`is_exhaustion`]), so the
    /// caller retries.
    pub fn detect(name: &str) -> Result<Option<Parent>> {
        match Parent::make(name) {
            Ok(parent) => Ok(Some(parent)),
            Err(errno) if is_exhaustion(errno) => Err(errno),
            Err(_) => Ok(None),
        }
    }

    fn make(name: &str) -> Result<Parent> {
        let Group { path } = below_own(name)?;
        fault::failpoint()?;
        match rustix::fs::mkdir(&path, rustix::fs::Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        // `cgroup.kill` exists since Linux 5.14. Killing needs write access to it.
        fault::failpoint()?;
        fs::OpenOptions::new().write(true).open(path.join("cgroup.kill")).map_err(errno_of)?;
        Ok(Parent { path })
    }

    /// The group of this name, whether it exists or not.
    pub fn group(&self, name: &str) -> Group {
        Group { path: self.path.join(name) }
    }

    /// Opens its directory, so that another process can remove it later.
    pub fn open(&self) -> Result<OwnedFd> {
        file::open(&self.path, Open::Directory)
    }

    /// Names of the existing groups.
    pub fn names(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(&self.path) else { return Vec::new() };
        entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    }

    /// Removes the parent itself once it is empty.
    pub fn remove(&self) -> Result<()> {
        rmdir(&self.path)
    }
}

impl Group {
    /// Creates the group and opens its directory, for CLONE_INTO_CGROUP.
    pub fn create(&self) -> Result<OwnedFd> {
        match rustix::fs::mkdir(&self.path, rustix::fs::Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        file::open(&self.path, Open::Directory)
    }

    /// Kills every process in the group atomically, including concurrent forks.
    pub fn kill(&self) -> Result<()> {
        match fs::write(self.path.join("cgroup.kill"), "1") {
            Ok(()) => Ok(()),
            Err(error) => Err(errno_of(error)),
        }
    }

    /// The pids in the group and in its descendants.
    pub fn members(&self) -> Vec<i32> {
        let mut pids = Vec::new();
        collect(&self.path, &mut pids);
        pids
    }

    /// Opens a process of the group; `ESRCH` when the pid is not in it. The check follows the open, so a
    /// recycled pid is refused.
    pub fn open_member(&self, pid: i32) -> Result<Pidfd> {
        let opened = pidfd::open(pid)?;
        match self.contains(pid) {
            true => Ok(opened.verified(pid)),
            false => Err(Errno::SRCH),
        }
    }

    fn contains(&self, pid: i32) -> bool {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let Some(path) = groups.lines().find_map(|line| line.strip_prefix("0::")) else { return false };
        // The path begins at the root of this process's cgroup namespace, not at the mount point.
        let names = self.path.components().rev().take(2).collect::<Vec<_>>();
        let mut own = Path::new(path).ancestors();
        own.any(|group| group.components().rev().take(2).collect::<Vec<_>>() == names)
    }

    /// CPU time of its processes, including those that have exited.
    pub fn cpu_ms(&self) -> Option<u64> {
        let text = fs::read_to_string(self.path.join("cpu.stat")).ok()?;
        let used = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
        used.parse::<u64>().ok().map(|microseconds| microseconds / 1000)
    }

    /// Removes the group and its descendants; `EBUSY` while it contains a process.
    pub fn remove(&self) -> Result<()> {
        remove_tree(&self.path)
    }

    /// Kills all processes of the group and removes it, within `timeout`.
    pub fn destroy(&self, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.remove() {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                Err(errno) if Instant::now() >= deadline => return Err(errno),
                Err(_) => {}
            }
            match self.kill() {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Kills and removes a group that an earlier daemon left below this process's own cgroup.
pub fn destroy_abandoned(name: &str, timeout: Duration) {
    if let Some(group) = below_own(name).ok().filter(|group| group.path.exists()) {
        let _in_use = group.destroy(timeout);
    }
}

/// The cgroup id of a process as sock_diag(7) reports it; `None` where version 2 is not mounted or the mount
/// does not show that cgroup.
pub fn id_of(pid: i32) -> Option<u64> {
    let mounts = read("/proc/self/mountinfo").ok()?;
    let groups = read(&format!("/proc/{pid}/cgroup")).ok()?;
    Some(fs::metadata(own_directory(&mounts, &groups)?).ok()?.ino())
}

/// `ENOENT` where version 2 is not mounted.
fn below_own(name: &str) -> Result<Group> {
    let mounts = read("/proc/self/mountinfo")?;
    let own = read("/proc/self/cgroup")?;
    Ok(Group { path: own_directory(&mounts, &own).ok_or(Errno::NOENT)?.join(name) })
}

fn read(path: &str) -> Result<String> {
    fault::failpoint()?;
    fs::read_to_string(path).map_err(errno_of)
}

fn errno_of(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Removes a directory of empty groups.
pub fn remove_all(directory: impl AsFd) {
    let link = format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd());
    if let Ok(path) = fs::read_link(link) {
        let _in_use = remove_tree(&path);
    }
}

fn rmdir(path: &Path) -> Result<()> {
    rustix::fs::rmdir(path)
}

/// Removes nested groups first: descendants may have created some.
fn remove_tree(path: &Path) -> Result<()> {
    match rmdir(path) {
        Err(Errno::BUSY | Errno::NOTEMPTY) => {}
        removed => return removed,
    }
    if let Ok(entries) = fs::read_dir(path) {
        for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            remove_tree(&entry.path())?;
        }
    }
    rmdir(path)
}

fn collect(path: &Path, pids: &mut Vec<i32>) {
    if let Ok(text) = fs::read_to_string(path.join("cgroup.procs")) {
        pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    }
    if let Ok(entries) = fs::read_dir(path) {
        for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            collect(&entry.path(), pids);
        }
    }
}

/// The directory of a process's version-2 cgroup. `own` is the text of `/proc/PID/cgroup`.
fn own_directory(mountinfo: &str, own: &str) -> Option<PathBuf> {
    mount_of_own(mountinfo, own).map(|(mount, below)| mount.join(below))
}

/// The mount that shows a process's version-2 cgroup, and the path below it. Version 2 may be mounted
/// anywhere, also next to version 1.
fn mount_of_own(mountinfo: &str, own: &str) -> Option<(PathBuf, PathBuf)> {
    let own = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    mountinfo.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        if !after.starts_with("cgroup2 ") {
            return None;
        }
        let mut fields = before.split(' ').skip(3);
        let (root, mount) = (fields.next()?, fields.next()?);
        let below = Path::new(own).strip_prefix(root).ok()?;
        Some((mount.into(), below.into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_two_is_found_beside_version_one() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      36 23 0:33 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
        let own = "4:cpu:/x\n0::/user.slice/me\n";
        assert_eq!(own_directory(mounts, own), Some("/sys/fs/cgroup/unified/user.slice/me".into()));
    }

    #[test]
    fn a_mount_of_a_subtree_is_taken_off_the_path() {
        let mounts = "36 23 0:33 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(own_directory(mounts, "0::/docker/abc/x\n"), Some("/sys/fs/cgroup/x".into()));
        assert_eq!(own_directory(mounts, "0::/elsewhere\n"), None);
        assert_eq!(own_directory("", "0::/\n"), None);
    }
}
