//! A cgroup whose memory is limited.

use crate::lack::Lack;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Removed when dropped. It is in the hierarchy in which the host limits memory.
pub struct MemoryCgroup {
    path: PathBuf,
    hierarchy: &'static Hierarchy,
    /// The group that each process was in before.
    former: Mutex<BTreeMap<i32, PathBuf>>,
}

struct Hierarchy {
    root: &'static str,
    limit: &'static str,
    /// Precedes the path of a group in `/proc/PID/cgroup`, after the number.
    name: &'static str,
}

const HIERARCHIES: [Hierarchy; 2] = [
    Hierarchy { root: "/sys/fs/cgroup/memory", limit: "memory.limit_in_bytes", name: ":memory:/" },
    Hierarchy { root: "/sys/fs/cgroup", limit: "memory.max", name: "0::/" },
];

impl MemoryCgroup {
    pub fn new(name: &str, bytes_max: u64) -> Result<MemoryCgroup, Lack> {
        for hierarchy in &HIERARCHIES {
            let path = Path::new(hierarchy.root).join(format!("outpost-{name}-{}", std::process::id()));
            if std::fs::create_dir(&path).is_err() {
                continue;
            }
            let group = MemoryCgroup { path, hierarchy, former: Mutex::default() };
            let limit = group.path.join(hierarchy.limit);
            if limit.exists() && std::fs::write(&limit, bytes_max.to_string()).is_ok() {
                return Ok(group);
            }
        }
        Err(Lack::of_host("no cgroup can be made here that limits memory"))
    }

    /// The file that a process is added by.
    pub fn processes(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// Limits a process from now on. What it has already is charged to its former group.
    pub(crate) fn add(&self, pid: i32) {
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let group = groups.lines().find_map(|line| line.split_once(self.hierarchy.name));
        let Some((_, group)) = group else { return };
        let former = Path::new(self.hierarchy.root).join(group);
        self.former.lock().unwrap_or_else(PoisonError::into_inner).insert(pid, former);
        move_to(&self.path, pid);
    }

    /// Lifts the limit for every process that was added.
    pub(crate) fn release(&self) {
        let former = std::mem::take(&mut *self.former.lock().unwrap_or_else(PoisonError::into_inner));
        former.into_iter().for_each(|(pid, group)| move_to(&group, pid));
    }
}

/// A process that has ended meanwhile is in no group.
fn move_to(group: &Path, pid: i32) {
    let _gone = std::fs::write(group.join("cgroup.procs"), pid.to_string());
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        self.release();
        let _in_use = std::fs::remove_dir(&self.path);
    }
}
