//! Plans: what a policy means on this host, as an ordered list of mounts. Planning changes nothing.
//!
//! # What is protected, and how
//!
//! - The deepest entry decides for a path. Entries become mounts from shallow to deep, so that later ones
//!   cover earlier ones.
//! - `.git`, `.codex` and `.agents` directly in a writable root are read-only. So is the target of a `.git`
//!   file. An entry for exactly that path overrides this.
//! - A missing name that must not be created (one of these, or a denied path) gets a *placeholder*: an empty
//!   directory on the host while the command runs, with a read-only one mounted upon it. See
//!   [`crate::placeholder`] for its removal. Of several missing components the first gets the placeholder.
//! - Directories between a writable root and a protected path in it are *pinned*: bind-mounted onto
//!   themselves. A mount point cannot be renamed, so the command cannot move the protected path away and
//!   create another.
//! - A link that the command could replace on the path to a protected file is refused.
//! - Where the command cannot create files, a missing denied path needs no protection. If another process
//!   creates it meanwhile, the command can see it.

mod expand;
mod rule_set;
#[cfg(test)]
mod tests;

use crate::host_fs::{HostFs, RealFs};
use crate::{Files, Policy, Result};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The directories that a policy refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// The policy's directory: the server's for a sandbox policy, the command's for a permission profile.
    pub cwd: PathBuf,
    /// The server's `TMPDIR`, never the request's.
    pub tmpdir: Option<PathBuf>,
}

impl Context {
    /// An empty `TMPDIR` is none.
    pub fn new(cwd: &Path, tmpdir: Option<&OsStr>) -> Context {
        Context { cwd: cwd.into(), tmpdir: tmpdir.filter(|dir| !dir.is_empty()).map(PathBuf::from) }
    }

    /// With the `TMPDIR` of this process.
    pub fn of_this_process(cwd: &Path) -> Context {
        Context::new(cwd, std::env::var_os("TMPDIR").as_deref())
    }
}

/// The root file system of the command before the mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// The host's, read-only.
    ReadOnly,
    /// The host's, writable.
    Writable,
    /// An empty tmpfs.
    Empty,
}

/// What is mounted at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountKind {
    Write,
    Read,
    /// The directory itself, so that it cannot be renamed.
    Pin,
    /// An inaccessible directory, except for paths granted below it: path, and whether it is a directory.
    DeniedDirectory {
        inside: Vec<(PathBuf, bool)>,
    },
    /// An inaccessible empty file.
    DeniedFile,
    /// A read-only empty directory on a placeholder.
    Placeholder,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Absolute and without links.
    pub path: PathBuf,
    pub directory: bool,
    pub kind: MountKind,
    /// Its parent mount shows nothing of the host, so its mount point must be created there.
    pub(crate) on_empty_root: bool,
}

/// A private writable directory or file that the command sees in place of the host's.
///
/// The command's writes stay in it. Some names in it still show the host's files ([`Shown`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shadow {
    /// What it replaces: absolute, without links, existing, and of the same file type.
    pub at: PathBuf,
    pub from: PathBuf,
    pub directory: bool,
    pub shown: Vec<Shown>,
}

/// A name in a shadow that shows a file of the host. A mount point of the same file type exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub name: OsString,
    /// Absolute and without links.
    pub source: PathBuf,
    pub writable: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub root: Root,
    /// From shallow to deep: later ones cover earlier ones.
    pub mounts: Vec<Mount>,
    /// Cover all mounts. A policy has none; the sessions face adds them for files in an agent's home.
    pub shadows: Vec<Shadow>,
    /// Links of the host to create in an empty root: path and target.
    pub links: Vec<(PathBuf, PathBuf)>,
    pub network: bool,
    /// Deny patterns that cannot be enforced for files created later in a writable directory.
    pub unenforceable: Vec<(String, PathBuf)>,
    /// The maximum number of processes of the command.
    pub processes_max: u32,
}

/// Enough for a parallel build, and low enough to contain a fork bomb.
const PROCESSES_MAX: u32 = 4096;

/// Resolves the policy on this host.
pub fn plan(policy: &Policy, context: &Context) -> Result<Plan> {
    plan_with(&RealFs, policy, context)
}

pub(crate) fn plan_with(fs: &dyn HostFs, policy: &Policy, context: &Context) -> Result<Plan> {
    let mut plan = Plan {
        root: Root::Writable,
        mounts: Vec::new(),
        shadows: Vec::new(),
        links: Vec::new(),
        network: policy.network,
        unenforceable: Vec::new(),
        processes_max: PROCESSES_MAX,
    };
    match &policy.files {
        Files::Unrestricted => rule_set::RuleSet::unrestricted(fs)?.into_mounts(&mut plan),
        Files::Restricted { entries, glob_scan_max_depth, refuse_unenforceable } => {
            let wanted = expand::expand(entries, context)?;
            let mut rules = rule_set::RuleSet::grants(fs, &wanted)?;
            rules.restrict(fs, &wanted)?;
            for pattern in &wanted.patterns {
                rules.deny_pattern(fs, pattern, *glob_scan_max_depth)?;
                plan.unenforceable.extend(rules.unenforceable(fs, pattern, *refuse_unenforceable)?);
            }
            rules.into_mounts(&mut plan);
        }
    }
    Ok(plan)
}

impl Plan {
    /// The placeholders that have to be created.
    pub fn placeholders(&self) -> impl Iterator<Item = &Mount> {
        self.mounts.iter().filter(|mount| mount.kind == MountKind::Placeholder)
    }
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let root = match self.root {
            Root::ReadOnly => "the host's, read-only",
            Root::Writable => "the host's, writable",
            Root::Empty => "empty",
        };
        writeln!(f, "root     {root}")?;
        for (at, target) in &self.links {
            writeln!(f, "link     {} -> {}", at.display(), target.display())?;
        }
        for mount in &self.mounts {
            let what = match mount.kind {
                MountKind::Write => "write",
                MountKind::Read => "read",
                MountKind::Pin => "pin",
                MountKind::DeniedDirectory { .. } | MountKind::DeniedFile => "deny",
                MountKind::Placeholder => "hold",
            };
            writeln!(f, "{what:8} {}", mount.path.display())?;
        }
        for shadow in &self.shadows {
            writeln!(f, "shadow   {}", shadow.at.display())?;
        }
        for (pattern, below) in &self.unenforceable {
            writeln!(f, "unenforceable {pattern} below {}", below.display())?;
        }
        writeln!(f, "network  {}", if self.network { "the host's" } else { "none" })?;
        writeln!(f, "limit    {} processes", self.processes_max)
    }
}
