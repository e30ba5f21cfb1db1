//! Turns expanded entries into mounts: grants, restrictions below them, and their order.

use super::expand::{ExpandedEntries, NamedPattern};
use super::{Mount, MountKind, Plan, Root};
use crate::host_fs::{FileKind, HostFs, MOUNTS};
use crate::resolve::{Resolved, resolve};
use crate::{Access, Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// "Protected by default under writable roots".
const PROTECTED: &[&str] = &[".git", ".codex", ".agents"];

#[derive(Clone, Copy, PartialEq, Eq)]
struct Rule {
    access: Access,
    directory: bool,
    /// Its ancestors must not be renamed.
    pinned: bool,
}

/// Rules by real path. The deepest one decides.
#[derive(Default)]
pub(super) struct RuleSet {
    rules: BTreeMap<PathBuf, Rule>,
    placeholders: BTreeSet<PathBuf>,
    links: Vec<(PathBuf, PathBuf)>,
}

impl RuleSet {
    /// Everything is writable except kernel file systems.
    pub(super) fn unrestricted(fs: &dyn HostFs) -> Result<RuleSet> {
        let mut rules = RuleSet::default();
        rules.rules.insert("/".into(), Rule { access: Access::Write, directory: true, pinned: false });
        rules.protect_kernel(fs)?;
        Ok(rules)
    }

    fn protect_kernel(&mut self, fs: &dyn HostFs) -> Result<()> {
        if self.access(Path::new("/")) == Some(Access::Write) {
            self.restrict_path(fs, Path::new("/sys"), Access::Read, true)?;
        }
        if !self.rules.values().any(|rule| rule.access == Access::Write && rule.directory) {
            return Ok(());
        }
        // "/proc/sys and /sys read-only for root too", also at a second mount point.
        let inspect =
            |error: std::io::Error| Error::Inspect { path: MOUNTS.into(), reason: error.to_string() };
        let mounts = fs.kernel_mounts().map_err(inspect)?;
        let own = |path: &PathBuf| path.starts_with("/proc") || path.starts_with("/dev");
        for mount in mounts.into_iter().filter(|mount| !own(mount)) {
            let asked =
                |(path, rule): &(&PathBuf, &Rule)| rule.access == Access::Write && path.starts_with(&mount);
            if let Some((path, _)) = self.rules.iter().find(asked) {
                return Err(Error::Reserved { path: path.clone() });
            }
            // The command cannot reach a mount that is covered by another or inaccessible to us.
            let found = resolve(fs, &mount)?;
            if found.path == mount && found.missing.is_none() && found.unseen.is_none() {
                self.restrict_path(fs, &mount, Access::Read, true)?;
            }
        }
        Ok(())
    }

    /// Reads and writes of existing paths: "Missing writable roots are skipped".
    pub(super) fn grants(fs: &dyn HostFs, wanted: &ExpandedEntries) -> Result<RuleSet> {
        let mut rules = RuleSet::default();
        let mut linked = Vec::new();
        for (path, access) in wanted.paths.iter().filter(|(_, access)| *access != Access::None) {
            let found = resolve(fs, path)?;
            match found.kind {
                FileKind::Missing => continue,
                // A placeholder of another command may be removed before this command's mounts are made.
                FileKind::Directory if fs.is_placeholder(&found.path) => continue,
                _ if found.links.is_empty() => {
                    rules.insert(found.path, *access, found.kind == FileKind::Directory, true);
                }
                _ => linked.push((path, *access, found)),
            }
        }
        // A path that is granted without a link needs no check of links.
        let opened = |(_, access, found): &(_, Access, Resolved)| rules.access(&found.path) >= Some(*access);
        let (certain, doubtful): (Vec<_>, Vec<_>) = linked.into_iter().partition(opened);
        for (_, access, found) in certain.iter().chain(&doubtful) {
            rules.insert(found.path.clone(), *access, found.kind == FileKind::Directory, true);
            rules.links.extend(found.links.clone());
        }
        for (path, _, found) in doubtful {
            rules.refuse_planted(path, &found)?;
        }
        Ok(rules)
    }

    /// Refuses links in writable directories: an earlier command may have created the link and chosen its
    /// target.
    fn refuse_planted(&self, path: &Path, found: &Resolved) -> Result<()> {
        let planted = |link: &&PathBuf| self.access_above(link) == Some(Access::Write);
        match found.links.iter().map(|(link, _)| link).find(planted) {
            Some(link) => Err(Error::PlantedLink { path: path.into(), link: link.clone() }),
            None => Ok(()),
        }
    }

    /// Denials, reads of missing paths in writable directories, and default protections.
    pub(super) fn restrict(&mut self, fs: &dyn HostFs, wanted: &ExpandedEntries) -> Result<()> {
        for (path, access) in wanted.paths.iter().filter(|(_, access)| *access != Access::Write) {
            self.restrict_path(fs, path, *access, true)?;
        }
        let roots = |rules: &RuleSet| -> Vec<PathBuf> {
            let writable = |rule: &Rule| rule.access == Access::Write && rule.directory;
            let rules = rules.rules.iter().filter(|(_, rule)| writable(rule));
            rules.map(|(path, _)| path.clone()).collect()
        };
        let explicit: BTreeSet<PathBuf> = wanted.paths.iter().map(|(path, _)| path.clone()).collect();
        for root in roots(self) {
            for name in PROTECTED {
                let path = root.join(name);
                // "An explicit entry for exactly that path replaces the default."
                if explicit.contains(&path) || self.rules.contains_key(&path) {
                    continue;
                }
                self.restrict_path(fs, &path, Access::Read, true)?;
                if *name == ".git" {
                    self.protect_git_target(fs, &root, &path)?;
                }
            }
        }
        self.protect_kernel(fs)
    }

    /// Protects the target of a `.git` file, and the common directory that it shares with other worktrees.
    fn protect_git_target(&mut self, fs: &dyn HostFs, root: &Path, file: &Path) -> Result<()> {
        if fs.kind(file).ok() != Some(FileKind::File) {
            return Ok(());
        }
        let line =
            |path: &Path| fs.head(path).map(|text| text.lines().next().unwrap_or("").trim().to_owned());
        let first_line = line(file).unwrap_or_default();
        let Some(target) =
            first_line.strip_prefix("gitdir:").map(str::trim).filter(|target| !target.is_empty())
        else {
            return Ok(());
        };
        let target = root.join(target);
        self.restrict_path(fs, &target, Access::Read, true)?;
        if let Some(common) = line(&target.join("commondir")).filter(|common| !common.is_empty()) {
            self.restrict_path(fs, &target.join(common), Access::Read, true)?;
        }
        Ok(())
    }

    /// Denies all current matches of the pattern, whatever entries there are below a match.
    pub(super) fn deny_pattern(
        &mut self,
        fs: &dyn HostFs,
        named: &NamedPattern,
        depth_max: Option<usize>,
    ) -> Result<()> {
        for (path, _) in named.pattern.matches(fs, depth_max)? {
            let found = resolve(fs, &path)?;
            // A dangling link shows nothing. The target of a writable link is masked at its own path.
            if found.kind == FileKind::Missing || found.path == Path::new("/") {
                continue;
            }
            self.rules.retain(|rule, _| !rule.starts_with(&found.path));
            self.placeholders.retain(|path| !path.starts_with(&found.path));
            self.insert(found.path, Access::None, found.kind == FileKind::Directory, false);
        }
        Ok(())
    }

    /// Writable directories in which the pattern could match later.
    pub(super) fn unenforceable(
        &self,
        fs: &dyn HostFs,
        named: &NamedPattern,
        refuse: bool,
    ) -> Result<Vec<(String, PathBuf)>> {
        let mut found = Vec::new();
        for (path, rule) in &self.rules {
            if rule.access == Access::Write && rule.directory && named.pattern.reaches(fs, path)? {
                found.push((named.text.clone(), path.clone()));
            }
        }
        match found.first() {
            Some((pattern, writable)) if refuse => {
                Err(Error::GlobUnenforceable { pattern: pattern.clone(), writable: writable.clone() })
            }
            _ => Ok(found),
        }
    }

    fn insert(&mut self, path: PathBuf, access: Access, directory: bool, pinned: bool) {
        let rule = self.rules.entry(path).or_insert(Rule { access, directory, pinned });
        rule.access = rule.access.max(access);
    }

    /// The access that the deepest rule at or above a path gives.
    fn access(&self, path: &Path) -> Option<Access> {
        path.ancestors().find_map(|path| self.rules.get(path)).map(|rule| rule.access)
    }

    fn access_above(&self, path: &Path) -> Option<Access> {
        path.parent().and_then(|parent| self.access(parent))
    }

    /// Restricts the access to a path, which may be missing.
    fn restrict_path(&mut self, fs: &dyn HostFs, path: &Path, access: Access, pinned: bool) -> Result<()> {
        let found = resolve(fs, path)?;
        if let Some((link, _)) =
            found.links.iter().find(|(link, _)| self.access_above(link) == Some(Access::Write))
        {
            return Err(Error::WritableLink { path: path.into(), link: link.clone() });
        }
        if access == Access::Read && self.access(&found.path) != Some(Access::Write) {
            return Ok(());
        }
        let Resolved { path: real, kind, missing, unseen, .. } = found;
        if let Some(reason) = unseen {
            return Err(Error::Inspect { path: path.into(), reason });
        }
        match missing
            .or_else(|| fs.is_placeholder(&real).then(|| real.clone()))
            .map(|first| above_placeholder(fs, first))
        {
            None => self.insert(real, access, kind == FileKind::Directory, pinned),
            Some(first) => {
                let parent = first.parent().unwrap_or(Path::new("/"));
                if self.access(parent) == Some(Access::Write) && fs.can_create_in(parent) {
                    self.placeholders.insert(first);
                }
            }
        }
        Ok(())
    }

    /// The mounts, from shallow to deep.
    pub(super) fn into_mounts(self, plan: &mut Plan) {
        plan.root = match self.access(Path::new("/")) {
            Some(Access::Read) => Root::ReadOnly,
            Some(Access::Write) => Root::Writable,
            Some(Access::None) | None => Root::Empty,
        };
        let mut mounts: BTreeMap<PathBuf, (MountKind, bool)> = BTreeMap::new();
        for (path, rule) in &self.rules {
            let above = self.access_above(path).unwrap_or(Access::None);
            if path.parent().is_none() || rule.access == above {
                continue;
            }
            let kind = match (rule.access, rule.directory) {
                (Access::Write, _) => MountKind::Write,
                (Access::Read, _) => MountKind::Read,
                (Access::None, true) => MountKind::DeniedDirectory { inside: Vec::new() },
                (Access::None, false) => MountKind::DeniedFile,
            };
            mounts.insert(path.clone(), (kind, rule.directory));
        }
        for path in &self.placeholders {
            mounts.entry(path.clone()).or_insert((MountKind::Placeholder, true));
        }
        self.pin(&mut mounts);
        plan.links = self.needed_links(plan.root);
        plan.mounts = mounts
            .into_iter()
            .map(|(path, (kind, directory))| Mount { path, directory, kind, on_empty_root: false })
            .collect();
        plan.mounts.sort_by_key(|mount| mount.path.components().count());
        mark_on_empty_root(plan);
    }

    fn pin(&self, mounts: &mut BTreeMap<PathBuf, (MountKind, bool)>) {
        let protects = |(path, (kind, _)): &(&PathBuf, &(MountKind, bool))| {
            *kind != MountKind::Write && self.rules.get(*path).is_none_or(|rule| rule.pinned)
        };
        let protected: Vec<PathBuf> = mounts.iter().filter(protects).map(|(path, _)| path.clone()).collect();
        for path in protected {
            for above in path.ancestors().skip(1).filter(|above| above.parent().is_some()) {
                // Also a directory that is a writable root itself.
                if self.access(above) == Some(Access::Write) {
                    mounts.entry(above.into()).or_insert((MountKind::Pin, true));
                }
            }
        }
    }

    /// Links are created only in an empty root, where the host's are not visible.
    fn needed_links(&self, root: Root) -> Vec<(PathBuf, PathBuf)> {
        let seen = |at: &Path| !matches!(self.access_above(at), Some(Access::None) | None);
        let links: BTreeSet<_> = self.links.iter().filter(|(at, _)| !seen(at)).cloned().collect();
        if root == Root::Empty { links.into_iter().collect() } else { Vec::new() }
    }
}

/// The name that gets the placeholder. The parent of a missing name may be a placeholder of another command,
/// which removes it at its exit. Then the parent counts as missing. A directory below it would also prevent
/// its removal.
fn above_placeholder(fs: &dyn HostFs, first: PathBuf) -> PathBuf {
    match first.parent() {
        Some(parent) if fs.is_placeholder(parent) => parent.to_owned(),
        _ => first,
    }
}

/// Marks mounts in a denied directory or an empty root, and adds them to the directory's list.
fn mark_on_empty_root(plan: &mut Plan) {
    let indices: BTreeMap<PathBuf, usize> =
        plan.mounts.iter().enumerate().map(|(index, mount)| (mount.path.clone(), index)).collect();
    for (path, index) in &indices {
        let around = path.ancestors().skip(1).find_map(|above| indices.get(above));
        let directory = plan.mounts.get(*index).is_some_and(|mount| mount.directory);
        let on_empty_root = match around.and_then(|around| plan.mounts.get_mut(*around)) {
            Some(Mount { kind: MountKind::DeniedDirectory { inside }, .. }) => {
                inside.push((path.clone(), directory));
                true
            }
            Some(_) => false,
            None => plan.root == Root::Empty,
        };
        if let Some(mount) = plan.mounts.get_mut(*index) {
            mount.on_empty_root = on_empty_root;
        }
    }
}
