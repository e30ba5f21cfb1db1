//! From wanted accesses to mounts: what is granted, what is restricted below that, and in which order.

use super::expand::{Named, Wanted};
use super::{Mount, Plan, Root, What};
use crate::look::{Kind, Look, MOUNTS};
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
    /// Its ancestors must stay where they are.
    pinned: bool,
}

/// Rules by real path, the deepest of which decides.
#[derive(Default)]
pub(super) struct Gathered {
    rules: BTreeMap<PathBuf, Rule>,
    held: BTreeSet<PathBuf>,
    links: Vec<(PathBuf, PathBuf)>,
}

impl Gathered {
    /// Everything can be written to, but what belongs to the kernel.
    pub(super) fn unrestricted(look: &dyn Look) -> Result<Gathered> {
        let mut gathered = Gathered::default();
        gathered.rules.insert("/".into(), Rule { access: Access::Write, directory: true, pinned: false });
        gathered.protect_kernel(look)?;
        Ok(gathered)
    }

    fn protect_kernel(&mut self, look: &dyn Look) -> Result<()> {
        if self.access(Path::new("/")) == Some(Access::Write) {
            self.restrict_path(look, Path::new("/sys"), Access::Read, true)?;
        }
        if !self.rules.values().any(|rule| rule.access == Access::Write && rule.directory) {
            return Ok(());
        }
        // "/proc/sys and /sys read-only for root too", also where somebody has mounted them a second time.
        let mounts = look.kernel_mounts().map_err(|reason| Error::Look { path: MOUNTS.into(), reason })?;
        let own = |path: &PathBuf| path.starts_with("/proc") || path.starts_with("/dev");
        for mount in mounts.into_iter().filter(|mount| !own(mount)) {
            let asked =
                |(path, rule): &(&PathBuf, &Rule)| rule.access == Access::Write && path.starts_with(&mount);
            if let Some((path, _)) = self.rules.iter().find(asked) {
                return Err(Error::Reserved { path: path.clone() });
            }
            // One that lies under another mount, or that we cannot get at, the command cannot either.
            let found = resolve(look, &mount)?;
            if found.path == mount && found.missing.is_none() && found.unseen.is_none() {
                self.restrict_path(look, &mount, Access::Read, true)?;
            }
        }
        Ok(())
    }

    /// Reads and writes of what exists: "Missing writable roots are skipped".
    pub(super) fn grants(look: &dyn Look, wanted: &Wanted) -> Result<Gathered> {
        let mut gathered = Gathered::default();
        let mut linked = Vec::new();
        for (path, access) in wanted.paths.iter().filter(|(_, access)| *access != Access::None) {
            let found = resolve(look, path)?;
            match found.kind {
                Kind::Missing => continue,
                // A placeholder of another command may be removed before this command's mounts are made.
                Kind::Directory if look.is_lease(&found.path) => continue,
                _ if found.links.is_empty() => {
                    gathered.insert(found.path, *access, found.kind == Kind::Directory, true);
                }
                _ => linked.push((path, *access, found)),
            }
        }
        // What is opened without any link needs none to be opened.
        let opened =
            |(_, access, found): &(_, Access, Resolved)| gathered.access(&found.path) >= Some(*access);
        let (certain, doubtful): (Vec<_>, Vec<_>) = linked.into_iter().partition(opened);
        for (_, access, found) in certain.iter().chain(&doubtful) {
            gathered.insert(found.path.clone(), *access, found.kind == Kind::Directory, true);
            gathered.links.extend(found.links.clone());
        }
        for (path, _, found) in doubtful {
            gathered.refuse_planted(path, &found)?;
        }
        Ok(gathered)
    }

    /// A command writes where a link lies: one before it may have made the link, and chosen what is opened now.
    fn refuse_planted(&self, path: &Path, found: &Resolved) -> Result<()> {
        let planted = |link: &&PathBuf| self.access_above(link) == Some(Access::Write);
        match found.links.iter().map(|(link, _)| link).find(planted) {
            Some(link) => Err(Error::PlantedLink { path: path.into(), link: link.clone() }),
            None => Ok(()),
        }
    }

    /// Denials, reads of what is missing in writable directories, and what is protected by default.
    pub(super) fn restrict(&mut self, look: &dyn Look, wanted: &Wanted) -> Result<()> {
        for (path, access) in wanted.paths.iter().filter(|(_, access)| *access != Access::Write) {
            self.restrict_path(look, path, *access, true)?;
        }
        let roots = |gathered: &Gathered| -> Vec<PathBuf> {
            let writable = |rule: &Rule| rule.access == Access::Write && rule.directory;
            let rules = gathered.rules.iter().filter(|(_, rule)| writable(rule));
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
                self.restrict_path(look, &path, Access::Read, true)?;
                if *name == ".git" {
                    self.protect_git_target(look, &root, &path)?;
                }
            }
        }
        self.protect_kernel(look)
    }

    /// What a `.git` file leads to, and the directory that this shares with others.
    fn protect_git_target(&mut self, look: &dyn Look, root: &Path, file: &Path) -> Result<()> {
        if look.kind(file) != Ok(Kind::File) {
            return Ok(());
        }
        let line =
            |path: &Path| look.head(path).map(|text| text.lines().next().unwrap_or("").trim().to_owned());
        let said = line(file).unwrap_or_default();
        let Some(target) = said.strip_prefix("gitdir:").map(str::trim).filter(|target| !target.is_empty())
        else {
            return Ok(());
        };
        let target = root.join(target);
        self.restrict_path(look, &target, Access::Read, true)?;
        if let Some(common) = line(&target.join("commondir")).filter(|common| !common.is_empty()) {
            self.restrict_path(look, &target.join(common), Access::Read, true)?;
        }
        Ok(())
    }

    /// All that the pattern matches now is denied, whatever is said of what lies below a match.
    pub(super) fn deny_pattern(
        &mut self,
        look: &dyn Look,
        named: &Named,
        depth_max: Option<usize>,
    ) -> Result<()> {
        for (path, _) in named.pattern.matches(look, depth_max)? {
            let found = resolve(look, &path)?;
            // A dangling link shows nothing. What a writable one leads to is masked where it is.
            if found.kind == Kind::Missing || found.path == Path::new("/") {
                continue;
            }
            self.rules.retain(|rule, _| !rule.starts_with(&found.path));
            self.held.retain(|held| !held.starts_with(&found.path));
            self.insert(found.path, Access::None, found.kind == Kind::Directory, false);
        }
        Ok(())
    }

    /// Writable places where the pattern could match later.
    pub(super) fn late(
        &self,
        look: &dyn Look,
        named: &Named,
        refuse: bool,
    ) -> Result<Vec<(String, PathBuf)>> {
        let mut late = Vec::new();
        for (path, rule) in &self.rules {
            if rule.access == Access::Write && rule.directory && named.pattern.reaches(look, path)? {
                late.push((named.text.clone(), path.clone()));
            }
        }
        match late.first() {
            Some((pattern, writable)) if refuse => {
                Err(Error::GlobLate { pattern: pattern.clone(), writable: writable.clone() })
            }
            _ => Ok(late),
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

    /// Takes access away from a path, which may be missing.
    fn restrict_path(&mut self, look: &dyn Look, path: &Path, access: Access, pinned: bool) -> Result<()> {
        let found = resolve(look, path)?;
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
            return Err(Error::Look { path: path.into(), reason });
        }
        match missing
            .or_else(|| look.is_lease(&real).then(|| real.clone()))
            .map(|first| above_lease(look, first))
        {
            None => self.insert(real, access, kind == Kind::Directory, pinned),
            Some(first) => {
                let parent = first.parent().unwrap_or(Path::new("/"));
                if self.access(parent) == Some(Access::Write) && look.can_make_in(parent) {
                    self.held.insert(first);
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
        let mut mounts: BTreeMap<PathBuf, (What, bool)> = BTreeMap::new();
        for (path, rule) in &self.rules {
            let above = self.access_above(path).unwrap_or(Access::None);
            if path.parent().is_none() || rule.access == above {
                continue;
            }
            let what = match (rule.access, rule.directory) {
                (Access::Write, _) => What::Write,
                (Access::Read, _) => What::Read,
                (Access::None, true) => What::DeniedDirectory { inside: Vec::new() },
                (Access::None, false) => What::DeniedFile,
            };
            mounts.insert(path.clone(), (what, rule.directory));
        }
        for held in &self.held {
            mounts.entry(held.clone()).or_insert((What::Held, true));
        }
        self.pin(&mut mounts);
        plan.links = self.needed_links(plan.root);
        plan.mounts = mounts
            .into_iter()
            .map(|(path, (what, directory))| Mount { path, directory, what, in_the_void: false })
            .collect();
        plan.mounts.sort_by_key(|mount| mount.path.components().count());
        place_in_the_void(plan);
    }

    fn pin(&self, mounts: &mut BTreeMap<PathBuf, (What, bool)>) {
        let protects = |(path, (what, _)): &(&PathBuf, &(What, bool))| {
            *what != What::Write && self.rules.get(*path).is_none_or(|rule| rule.pinned)
        };
        let protected: Vec<PathBuf> = mounts.iter().filter(protects).map(|(path, _)| path.clone()).collect();
        for path in protected {
            for above in path.ancestors().skip(1).filter(|above| above.parent().is_some()) {
                // Also one that is a root of its own in a writable directory.
                if self.access(above) == Some(Access::Write) {
                    mounts.entry(above.into()).or_insert((What::Pin, true));
                }
            }
        }
    }

    /// Only where nothing of the host is seen do links have to be made.
    fn needed_links(&self, root: Root) -> Vec<(PathBuf, PathBuf)> {
        let seen = |at: &Path| !matches!(self.access_above(at), Some(Access::None) | None);
        let links: BTreeSet<_> = self.links.iter().filter(|(at, _)| !seen(at)).cloned().collect();
        if root == Root::Empty { links.into_iter().collect() } else { Vec::new() }
    }
}

/// The name to hold. The parent of a missing name may be a placeholder of another command, which removes it at its exit: then
/// the parent counts as missing. A directory below it would also keep the placeholder from being removed.
fn above_lease(look: &dyn Look, first: PathBuf) -> PathBuf {
    match first.parent() {
        Some(parent) if look.is_lease(parent) => parent.to_owned(),
        _ => first,
    }
}

/// Marks what lies in a denied directory or an empty root, and tells the directory.
fn place_in_the_void(plan: &mut Plan) {
    let indices: BTreeMap<PathBuf, usize> =
        plan.mounts.iter().enumerate().map(|(index, mount)| (mount.path.clone(), index)).collect();
    for (path, index) in &indices {
        let around = path.ancestors().skip(1).find_map(|above| indices.get(above));
        let directory = plan.mounts.get(*index).is_some_and(|mount| mount.directory);
        let in_the_void = match around.and_then(|around| plan.mounts.get_mut(*around)) {
            Some(Mount { what: What::DeniedDirectory { inside }, .. }) => {
                inside.push((path.clone(), directory));
                true
            }
            Some(_) => false,
            None => plan.root == Root::Empty,
        };
        if let Some(mount) = plan.mounts.get_mut(*index) {
            mount.in_the_void = in_the_void;
        }
    }
}
