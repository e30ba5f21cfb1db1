//! Policies: entries of paths and accesses, and the named policies as such entries.

use std::path::{Path, PathBuf};

/// Where claude, gemini and opencode look for settings in a project. Those of codex are protected in every
/// policy.
const AGENT_NAMES: &[&str] = &[".claude", ".gemini", ".opencode", ".mcp.json"];

/// The same, but only if they exist: opencode does not start if one of them is a directory.
pub const AGENT_FILES: &[&str] = &["opencode.json", "opencode.jsonc"];

/// The access to a path and everything below it.
///
/// Ordered by precedence where two entries name the same path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    Read,
    Write,
    None,
}

/// A path that depends on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Special {
    Root,
    /// What programs need to run: `/usr`, `/etc` and the like. Read-only.
    Minimal,
    CurrentWorkingDirectory,
    ProjectRoots {
        subpath: Option<String>,
    },
    Tmpdir,
    SlashTmp,
    /// "ignored".
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryPath {
    /// Absolute.
    Path(PathBuf),
    /// See [`crate::plan`] for its meaning. Can only deny.
    Glob(String),
    Special(Special),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyEntry {
    pub path: EntryPath,
    pub access: Access,
}

impl PolicyEntry {
    pub fn path(path: impl Into<PathBuf>, access: Access) -> PolicyEntry {
        PolicyEntry { path: EntryPath::Path(path.into()), access }
    }

    pub fn special(special: Special, access: Access) -> PolicyEntry {
        PolicyEntry { path: EntryPath::Special(special), access }
    }

    pub fn deny_glob(pattern: impl Into<String>) -> PolicyEntry {
        PolicyEntry { path: EntryPath::Glob(pattern.into()), access: Access::None }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Files {
    Unrestricted,
    /// The deepest entry that is a prefix of a path decides. For equal paths the order is none, write, read.
    /// Without an entry there is no access. Globs deny on top of everything.
    Restricted {
        entries: Vec<PolicyEntry>,
        /// How deep below a glob's fixed part matches are searched; 1 means its direct children.
        glob_scan_max_depth: Option<usize>,
        /// Whether to refuse a glob that could match a file created later in a writable directory, which no
        /// mount can deny. Otherwise the plan lists it ([`crate::Plan::unenforceable`]).
        refuse_unenforceable: bool,
    },
}

/// Which files a named policy lets the command read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Reads {
    #[default]
    Everything,
    Restricted {
        include_platform_defaults: bool,
        roots: Vec<PathBuf>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub files: Files,
    pub network: bool,
}

impl Policy {
    /// Only these entries.
    pub fn restricted(entries: Vec<PolicyEntry>, network: bool) -> Policy {
        let files = Files::Restricted { entries, glob_scan_max_depth: None, refuse_unenforceable: false };
        Policy { files, network }
    }

    /// No sandbox.
    pub fn full_access() -> Policy {
        Policy { files: Files::Unrestricted, network: true }
    }

    /// An external sandbox is in place: "no enforcement", whatever the policy states about the network.
    pub fn external() -> Policy {
        Policy::full_access()
    }

    /// "fullAccess: `/` read. restricted: cwd read + (includePlatformDefaults=true: minimal read) + readableRoots read".
    pub fn read_only(reads: &Reads, network: bool) -> Policy {
        let mut entries = reads_of(reads);
        if matches!(reads, Reads::Restricted { .. }) {
            entries.push(PolicyEntry::special(Special::CurrentWorkingDirectory, Access::Read));
        }
        Policy::restricted(entries, network)
    }

    /// "`/` read (or the restricted set, without cwd) + cwd write + `/tmp` write + `$TMPDIR` (server's) write +
    /// writableRoots write + protected subpaths read".
    pub fn workspace_write(
        writable_roots: &[PathBuf],
        reads: &Reads,
        network: bool,
        exclude_slash_tmp: bool,
        exclude_tmpdir: bool,
    ) -> Policy {
        let mut entries = reads_of(reads);
        entries.push(PolicyEntry::special(Special::CurrentWorkingDirectory, Access::Write));
        if !exclude_slash_tmp {
            entries.push(PolicyEntry::special(Special::SlashTmp, Access::Write));
        }
        if !exclude_tmpdir {
            entries.push(PolicyEntry::special(Special::Tmpdir, Access::Write));
        }
        entries.extend(writable_roots.iter().map(|root| PolicyEntry::path(root, Access::Write)));
        Policy::restricted(entries, network)
    }

    /// Reads everything. Writes nothing, or with roots also them, `cwd`, `/tmp` and `$TMPDIR`, except the settings of
    /// agents there. Blocking.
    pub fn for_agent(writable_roots: Option<&[PathBuf]>, cwd: &Path, network: bool) -> Policy {
        let Some(roots) = writable_roots else { return Policy::read_only(&Reads::Everything, network) };
        let mut policy = Policy::workspace_write(roots, &Reads::Everything, network, false, false);
        policy.protect_agents(roots.iter().map(PathBuf::as_path).chain([cwd]));
        policy
    }

    /// Makes the settings of agents in these directories read-only, because hooks, plugins and servers in
    /// them later run outside of any sandbox. [`AGENT_FILES`] are protected if they exist, the others always.
    /// An entry that makes exactly such a path writable has precedence. Blocking.
    pub fn protect_agents<'a>(&mut self, roots: impl IntoIterator<Item = &'a Path>) {
        if let Files::Restricted { entries, .. } = &mut self.files {
            let below = |root: &'a Path| {
                let names = AGENT_NAMES.iter().map(|name| root.join(name));
                let files = AGENT_FILES.iter().map(|name| root.join(name));
                names.chain(files.filter(|path| path.symlink_metadata().is_ok()))
            };
            let protected = roots.into_iter().flat_map(below);
            entries.extend(protected.map(|path| PolicyEntry::path(path, Access::Read)));
        }
    }

    /// Whether there is nothing to enforce, so that the command is spawned without a sandbox.
    pub fn is_unconfined(&self) -> bool {
        self.files == Files::Unrestricted && self.network
    }
}

fn reads_of(reads: &Reads) -> Vec<PolicyEntry> {
    match reads {
        Reads::Everything => vec![PolicyEntry::special(Special::Root, Access::Read)],
        Reads::Restricted { include_platform_defaults, roots } => {
            let minimal =
                include_platform_defaults.then(|| PolicyEntry::special(Special::Minimal, Access::Read));
            minimal
                .into_iter()
                .chain(roots.iter().map(|root| PolicyEntry::path(root, Access::Read)))
                .collect()
        }
    }
}
