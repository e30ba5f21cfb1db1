//! A plan: what a policy means on this host, as mounts in their order. A plain value, made without changing anything.
//!
//! # What is protected, and how
//!
//! - The deepest entry decides for a path. Entries become mounts from shallow to deep, so a later one lies on top.
//! - `.git`, `.codex` and `.agents` directly in a writable root are read-only, and so is what a `.git` file leads to,
//!   unless an entry names exactly that path.
//! - A name that is missing but must not be made (one of these, or a denied path) is *held*: an empty directory stands
//!   there on the host while the command runs, with a read-only one mounted upon it. See [`crate::lease`] for how it
//!   goes away again. Of several missing components the first is held.
//! - Directories between a writable root and what is protected in it are *pinned* (mounted upon themselves), since a
//!   mount point cannot be renamed: otherwise the command could move the protected path away and make another.
//! - A link that the command could replace on the way to a protected path is refused.
//! - Where nothing can be made by the command, a missing denied path is nothing to deny. If somebody outside makes it
//!   meanwhile, the command can see it.

mod expand;
mod gather;
#[cfg(test)]
mod tests;

use crate::look::{Look, Real};
use crate::{Files, Policy, Result};
use std::ffi::OsString;
use std::path::PathBuf;

/// What a policy refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// The policy's directory: the server's for a sandbox policy, the command's for a permission profile.
    pub cwd: PathBuf,
    /// The server's `TMPDIR`, never the request's.
    pub tmpdir: Option<PathBuf>,
}

/// What the command sees as `/` before anything is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// The host's, read-only.
    ReadOnly,
    /// The host's.
    Writable,
    /// Nothing.
    Empty,
}

/// What is mounted at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Write,
    Read,
    /// Itself, so that it cannot be renamed.
    Pin,
    /// A directory nobody can enter, but for what is opened again below it: path, and whether that is a directory.
    DeniedDirectory {
        inside: Vec<(PathBuf, bool)>,
    },
    /// An empty file nobody can read.
    DeniedFile,
    /// An empty directory in place of something missing.
    Held,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Absolute and without links.
    pub path: PathBuf,
    pub directory: bool,
    pub what: What,
    /// The mount that it lies in shows nothing of the host: its place has to be made there.
    pub(crate) in_the_void: bool,
}

/// A writable directory or file of ours that the command sees in place of the host's.
///
/// What the command writes stays there. Some names in it show the host's own files all the same ([`Shown`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shadow {
    /// What it stands in for: absolute, without links, there, and of the same kind.
    pub at: PathBuf,
    pub from: PathBuf,
    pub directory: bool,
    pub shown: Vec<Shown>,
}

/// A name in a shadow under which something of the host is seen. A place of the same kind is there.
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
    /// From shallow to deep: later ones lie on top of earlier ones.
    pub mounts: Vec<Mount>,
    /// Lie on top of all mounts. A policy has none: who knows what a command keeps in its home adds them.
    pub shadows: Vec<Shadow>,
    /// Links of the host that an empty root needs to have: where, and what they say.
    pub links: Vec<(PathBuf, PathBuf)>,
    pub network: bool,
    /// Deny patterns that could match what appears later in a writable directory, which is then not denied.
    pub late: Vec<(String, PathBuf)>,
    /// How many processes the command may have at one time.
    pub processes_max: u32,
}

/// Enough for a parallel build, not for a fork bomb to be felt.
const PROCESSES_MAX: u32 = 4096;

/// What the policy means here and now.
pub fn plan(policy: &Policy, context: &Context) -> Result<Plan> {
    plan_with(&Real, policy, context)
}

pub(crate) fn plan_with(look: &dyn Look, policy: &Policy, context: &Context) -> Result<Plan> {
    let mut plan = Plan {
        root: Root::Writable,
        mounts: Vec::new(),
        shadows: Vec::new(),
        links: Vec::new(),
        network: policy.network,
        late: Vec::new(),
        processes_max: PROCESSES_MAX,
    };
    match &policy.files {
        Files::Unrestricted => gather::Gathered::unrestricted(look)?.into_mounts(&mut plan),
        Files::Restricted { entries, glob_scan_max_depth, refuse_late_matches } => {
            let wanted = expand::expand(entries, context)?;
            let mut gathered = gather::Gathered::grants(look, &wanted)?;
            gathered.restrict(look, &wanted)?;
            for pattern in &wanted.patterns {
                gathered.deny_pattern(look, pattern, *glob_scan_max_depth)?;
                plan.late.extend(gathered.late(look, pattern, *refuse_late_matches)?);
            }
            gathered.into_mounts(&mut plan);
        }
    }
    Ok(plan)
}

impl Plan {
    /// The missing names that have to be held.
    pub fn held(&self) -> impl Iterator<Item = &Mount> {
        self.mounts.iter().filter(|mount| mount.what == What::Held)
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
            let what = match mount.what {
                What::Write => "write",
                What::Read => "read",
                What::Pin => "pin",
                What::DeniedDirectory { .. } | What::DeniedFile => "deny",
                What::Held => "hold",
            };
            writeln!(f, "{what:8} {}", mount.path.display())?;
        }
        for shadow in &self.shadows {
            writeln!(f, "shadow   {}", shadow.at.display())?;
        }
        for (pattern, below) in &self.late {
            writeln!(f, "late     {pattern} below {}", below.display())?;
        }
        writeln!(f, "network  {}", if self.network { "the host's" } else { "none" })?;
        writeln!(f, "limit    {} processes", self.processes_max)
    }
}
