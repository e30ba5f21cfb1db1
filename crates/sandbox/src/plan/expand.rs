//! Expands the entries of a policy to plain paths and patterns.

use super::Context;
use crate::globs::Pattern;
use crate::resolve::normal;
use crate::{Access, EntryPath, Error, PolicyEntry, Result, Special};
use std::path::{Path, PathBuf};

/// "Minimal/platform defaults".
const MINIMAL: &[&str] =
    &["/bin", "/sbin", "/usr", "/etc", "/lib", "/lib64", "/nix/store", "/run/current-system/sw"];

/// The expanded entries.
pub(super) struct ExpandedEntries {
    pub(super) paths: Vec<(PathBuf, Access)>,
    pub(super) patterns: Vec<NamedPattern>,
}

/// A pattern and its original text.
pub(super) struct NamedPattern {
    pub(super) text: String,
    pub(super) pattern: Pattern,
}

pub(super) fn expand(entries: &[PolicyEntry], context: &Context) -> Result<ExpandedEntries> {
    let cwd = normal(&context.cwd)?;
    let mut wanted = ExpandedEntries { paths: Vec::new(), patterns: Vec::new() };
    for PolicyEntry { path, access } in entries {
        match path {
            EntryPath::Path(path) => wanted.paths.push((normal(path)?, *access)),
            EntryPath::Glob(text) if *access == Access::None => {
                let pattern = Pattern::read(text, &cwd)?;
                if pattern.literal {
                    wanted.paths.push((pattern.base, Access::None));
                } else {
                    wanted.patterns.push(NamedPattern { text: text.clone(), pattern });
                }
            }
            EntryPath::Glob(pattern) => return Err(Error::GlobAccess { pattern: pattern.clone() }),
            EntryPath::Special(special) => {
                // "read only; no path of its own"
                let minimal = *special == Special::Minimal && *access == Access::Write;
                let access = if minimal { Access::Read } else { *access };
                let paths = special_paths(special, &cwd, context)?;
                wanted.paths.extend(paths.into_iter().map(|path| (path, access)));
            }
        }
    }
    for (path, access) in &wanted.paths {
        check_reserved(path, *access)?;
    }
    // Every command has its own /proc and /dev anyway.
    wanted.paths.retain(|(path, _)| !path.starts_with("/proc") && path != Path::new("/dev"));
    Ok(wanted)
}

fn special_paths(special: &Special, cwd: &Path, context: &Context) -> Result<Vec<PathBuf>> {
    Ok(match special {
        Special::Root => vec!["/".into()],
        Special::Minimal => MINIMAL.iter().map(PathBuf::from).collect(),
        Special::CurrentWorkingDirectory | Special::ProjectRoots { subpath: None } => vec![cwd.into()],
        Special::ProjectRoots { subpath: Some(subpath) } => {
            let path = normal(&cwd.join(subpath))?;
            if !path.starts_with(cwd) {
                return Err(Error::Outside { path: subpath.into() });
            }
            vec![path]
        }
        Special::Tmpdir => {
            // A relative TMPDIR is ignored, as by the original.
            let set = context.tmpdir.iter().filter(|tmpdir| tmpdir.is_absolute());
            set.map(|tmpdir| normal(tmpdir)).collect::<Result<_>>()?
        }
        Special::SlashTmp => vec!["/tmp".into()],
        Special::Unknown => Vec::new(),
    })
}

/// "/proc/sys and /sys read-only for root too". The command's own mounts can be neither requested nor denied.
fn check_reserved(path: &Path, access: Access) -> Result<()> {
    let refused = match access {
        Access::Read => false,
        Access::Write => path.starts_with("/proc") || path.starts_with("/sys") || path == Path::new("/dev"),
        Access::None => path.starts_with("/proc") || path == Path::new("/dev"),
    };
    if refused { Err(Error::Reserved { path: path.into() }) } else { Ok(()) }
}
