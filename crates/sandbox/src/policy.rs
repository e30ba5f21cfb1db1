//! What a request may ask for: entries of paths and accesses, and the named policies as such entries.

use std::path::{Path, PathBuf};

/// Where claude, gemini and opencode look for settings in a project. Those of codex are protected in every policy.
const AGENT_NAMES: &[&str] = &[".claude", ".gemini", ".opencode", ".mcp.json"];

/// The same, where they are there: opencode does not start beside a directory of such a name.
pub const AGENT_FILES: &[&str] = &["opencode.json", "opencode.jsonc"];

/// What may be done with a path and everything below it.
///
/// In the order of what wins where two entries name the same path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    Read,
    Write,
    None,
}

/// A path that means something else on each host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Special {
    Root,
    /// What programs need to run: `/usr`, `/etc` and the like. Can only be read.
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
    /// See [`crate::plan`] for what it means. Can only deny.
    Glob(String),
    Special(Special),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub path: EntryPath,
    pub access: Access,
}

impl Entry {
    pub fn path(path: impl Into<PathBuf>, access: Access) -> Entry {
        Entry { path: EntryPath::Path(path.into()), access }
    }

    pub fn special(special: Special, access: Access) -> Entry {
        Entry { path: EntryPath::Special(special), access }
    }

    pub fn deny_glob(pattern: impl Into<String>) -> Entry {
        Entry { path: EntryPath::Glob(pattern.into()), access: Access::None }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Files {
    Unrestricted,
    /// The deepest entry that is a prefix of a path decides; for equal paths none, then write, then read. Without one
    /// there is no access. Globs deny on top of everything.
    Restricted {
        entries: Vec<Entry>,
        /// How deep below a glob's fixed part matches are looked for; 1 means its direct children.
        glob_scan_max_depth: Option<usize>,
        /// Whether a glob is refused that could match what appears in a writable directory later: that no mount can
        /// deny. Otherwise the plan names it ([`crate::Plan::late`]).
        refuse_late_matches: bool,
    },
}

/// Which files a named policy lets be read.
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
    /// Of these entries, with nothing else.
    pub fn restricted(entries: Vec<Entry>, network: bool) -> Policy {
        let files = Files::Restricted { entries, glob_scan_max_depth: None, refuse_late_matches: false };
        Policy { files, network }
    }

    /// No confinement at all.
    pub fn full_access() -> Policy {
        Policy { files: Files::Unrestricted, network: true }
    }

    /// Somebody else confines: "no enforcement", whatever it says about the network.
    pub fn external() -> Policy {
        Policy::full_access()
    }

    /// "fullAccess: `/` read. restricted: cwd read + (includePlatformDefaults=true: minimal read) + readableRoots read".
    pub fn read_only(reads: &Reads, network: bool) -> Policy {
        let mut entries = reads_of(reads);
        if matches!(reads, Reads::Restricted { .. }) {
            entries.push(Entry::special(Special::CurrentWorkingDirectory, Access::Read));
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
        entries.push(Entry::special(Special::CurrentWorkingDirectory, Access::Write));
        if !exclude_slash_tmp {
            entries.push(Entry::special(Special::SlashTmp, Access::Write));
        }
        if !exclude_tmpdir {
            entries.push(Entry::special(Special::Tmpdir, Access::Write));
        }
        entries.extend(writable_roots.iter().map(|root| Entry::path(root, Access::Write)));
        Policy::restricted(entries, network)
    }

    /// Keeps what agents read their settings from in these directories from being written: hooks, plugins and servers that it
    /// names run outside of any sandbox later. Of [`AGENT_FILES`] those that are there, of the others all. An entry that lets
    /// exactly such a path be written stands. Looks at the disk.
    pub fn protect_agents<'a>(&mut self, roots: impl IntoIterator<Item = &'a Path>) {
        if let Files::Restricted { entries, .. } = &mut self.files {
            let below = |root: &'a Path| {
                let names = AGENT_NAMES.iter().map(|name| root.join(name));
                let files = AGENT_FILES.iter().map(|name| root.join(name));
                names.chain(files.filter(|path| path.symlink_metadata().is_ok()))
            };
            let protected = roots.into_iter().flat_map(below);
            entries.extend(protected.map(|path| Entry::path(path, Access::Read)));
        }
    }

    /// Whether there is nothing to confine: the command is then spawned as it is.
    pub fn is_unconfined(&self) -> bool {
        self.files == Files::Unrestricted && self.network
    }
}

fn reads_of(reads: &Reads) -> Vec<Entry> {
    match reads {
        Reads::Everything => vec![Entry::special(Special::Root, Access::Read)],
        Reads::Restricted { include_platform_defaults, roots } => {
            let minimal = include_platform_defaults.then(|| Entry::special(Special::Minimal, Access::Read));
            minimal.into_iter().chain(roots.iter().map(|root| Entry::path(root, Access::Read))).collect()
        }
    }
}
