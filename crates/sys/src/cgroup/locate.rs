//! Locates a cgroup by its id: in one of the daemon's groups, elsewhere on the host, or missing.

use super::{Parent, mount_of_own, read};
use crate::{Errno, Result};
use std::fs;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The id of the host's root cgroup.
const ROOT_ID: u64 = 1;

/// The maximum number of directories that one search reads.
const DIRECTORIES_MAX: usize = 65_536;

/// Where a cgroup is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// In the daemon's group of this name, or below it.
    Below(String),
    /// Not below the daemon's directory. The kernel neither moves cgroups nor reuses ids, so this never
    /// changes.
    Elsewhere,
    /// Not visible: it was removed, or it is outside of this cgroup namespace.
    Missing,
}

impl Parent {
    /// Locates a cgroup by the id that sock_diag(7) reports. Blocking. Reads the whole tree unless the cgroup
    /// is one of the daemon's, so callers cache [`Location::Elsewhere`].
    pub fn locate(&self, id: u64) -> Result<Location> {
        let mounts = read("/proc/self/mountinfo")?;
        let own = read("/proc/self/cgroup")?;
        let (mount, _) = mount_of_own(&mounts, &own).ok_or(Errno::NOENT)?;
        let mut budget = DIRECTORIES_MAX;
        let groups = subgroups(&self.path, &mut budget)?;
        if let Some((_, path)) = groups.iter().find(|(found, _)| *found == id) {
            return Ok(below(path));
        }
        for (_, group) in groups {
            if search(group.clone(), id, None, &mut budget)? {
                return Ok(below(&group));
            }
        }
        let is_root = fs::metadata(&mount).is_ok_and(|found| found.ino() == id);
        match is_root || search(mount, id, Some(&self.path), &mut budget)? {
            true => Ok(Location::Elsewhere),
            false => Ok(Location::Missing),
        }
    }
}

fn below(group: &Path) -> Location {
    Location::Below(group.file_name().unwrap_or_default().to_string_lossy().into_owned())
}

/// Whether the cgroup is below `top` but not below `except`.
fn search(top: PathBuf, id: u64, except: Option<&Path>, budget: &mut usize) -> Result<bool> {
    let mut left = vec![top];
    while let Some(directory) = left.pop() {
        for (found, path) in subgroups(&directory, budget)? {
            if found == id {
                return Ok(true);
            }
            if Some(path.as_path()) != except {
                left.push(path);
            }
        }
    }
    Ok(false)
}

/// The groups directly in a directory. Empty for a removed directory; `E2BIG` when the budget is used up.
fn subgroups(directory: &Path, budget: &mut usize) -> Result<Vec<(u64, PathBuf)>> {
    *budget = budget.checked_sub(1).ok_or(Errno::TOOBIG)?;
    let Ok(entries) = fs::read_dir(directory) else { return Ok(Vec::new()) };
    let groups = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Ok(groups.map(|entry| (entry.ino(), entry.path())).collect())
}

/// Whether sock_diag(7) may report this id for sockets of any cgroup. Before Linux 5.15 it reports the root
/// cgroup for all sockets while version 1 of `net_cls` or `net_prio` is in use.
pub fn is_ambiguous_id(id: u64) -> bool {
    id == ROOT_ID && fs::read_to_string("/proc/cgroups").is_ok_and(|table| has_net_classes(&table))
}

/// A controller with a hierarchy other than 0 is mounted as version 1.
fn has_net_classes(table: &str) -> bool {
    table.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace();
        matches!(fields.next(), Some("net_cls" | "net_prio")) && fields.next().is_some_and(|id| id != "0")
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Directories of any file system stand in for cgroups.
    #[test]
    fn groups_are_found_at_any_depth_and_outside_of_what_is_excepted() {
        let top = tempfile::tempdir().unwrap();
        let deep = top.path().join("a/b/c");
        fs::create_dir_all(&deep).unwrap();
        fs::write(top.path().join("a/file"), "").unwrap();
        let id = |path: &Path| fs::metadata(path).unwrap().ino();
        let found =
            |id, except: Option<&Path>, budget: &mut usize| search(top.path().to_owned(), id, except, budget);
        assert_eq!(found(id(&deep), None, &mut 10), Ok(true));
        assert_eq!(found(id(&top.path().join("a/file")), None, &mut 10), Ok(false));
        assert_eq!(found(id(&deep), Some(&top.path().join("a")), &mut 10), Ok(false));
        assert_eq!(found(id(&deep), None, &mut 2), Err(Errno::TOOBIG), "more directories than are read");
    }

    #[test]
    fn version_one_classes_are_seen() {
        let head = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n";
        assert!(!has_net_classes(&format!("{head}cpu\t3\t1\t1\nnet_cls\t0\t90\t1\n")));
        assert!(has_net_classes(&format!("{head}net_cls\t4\t1\t1\n")));
        assert!(has_net_classes(&format!("{head}net_prio\t4\t1\t1\n")));
        assert!(!is_ambiguous_id(ROOT_ID + 1));
    }
}
