//! Filter programs that a repository configures, and the settings that keep git from running them.

use super::Git;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Repositories that are looked at for one status: the one that was asked for, and those nested in it.
const REPOSITORIES_MAX: usize = 256;
/// Settings that one status overrides.
const OVERRIDES_MAX: usize = 1024;
/// Scopes that belong to the user and the host. Every other one is the repository's.
const TRUSTED_SCOPES: [&[u8]; 3] = [b"system", b"global", b"command"];
/// The mode of a nested repository in the index.
const GITLINK: &[u8] = b"160000 ";

/// Settings, each for a `-c` of git, that put every filter of a repository and its submodules back to what the user has
/// configured. git passes them on to the submodules.
pub(super) fn off(git: &Git) -> Result<Vec<OsString>, String> {
    let mut overrides = BTreeMap::new();
    let mut pending = vec![git.dir.clone()];
    let mut seen = 0;
    while let Some(dir) = pending.pop() {
        seen += 1;
        if seen > REPOSITORIES_MAX {
            return Err(format!("it has more than {REPOSITORIES_MAX} nested repositories"));
        }
        let Some(root) = git.at(&dir).root() else { continue };
        let git = git.at(Path::new(OsStr::from_bytes(&root)));
        overrides.extend(of_repository(&git));
        if overrides.len() > OVERRIDES_MAX {
            return Err(format!("its filters have more than {OVERRIDES_MAX} settings"));
        }
        // git does not descend into a submodule that is not checked out.
        pending.extend(nested(&git)?.into_iter().filter(|at| at.join(".git").exists()));
    }
    overrides.into_iter().map(|(name, value)| setting(&name, &value)).collect()
}

/// Each setting of a filter that comes from the repository, with the value that the user's configuration has for it.
fn of_repository(git: &Git) -> BTreeMap<Vec<u8>, Vec<u8>> {
    const NAMES: &str = r"^filter\..*\.(clean|smudge|process|required)$";
    let scoped = git.run(&["config", "-z", "--show-scope", "--get-regexp", NAMES]);
    // Before 2.26 git does not know scopes. Then every filter counts as the repository's.
    let is_scoped = scoped.succeeded || scoped.stderr.is_empty();
    let text = match is_scoped {
        true => scoped.stdout,
        false => git.run(&["config", "-z", "--get-regexp", NAMES]).stdout,
    };
    let mut overrides = BTreeMap::new();
    let mut users = BTreeMap::new();
    let mut parts = text.split(|byte| *byte == 0);
    while let Some(part) = parts.next().filter(|part| !part.is_empty()) {
        let (scope, pair) = match is_scoped {
            true => (part, parts.next().unwrap_or_default()),
            false => (&b"unknown"[..], part),
        };
        let (name, value) = split_once(pair, b'\n').unwrap_or((pair, b"true"));
        match TRUSTED_SCOPES.contains(&scope) {
            true => users.insert(name.to_vec(), value.to_vec()),
            false => {
                let off: &[u8] = if name.ends_with(b".required") { b"false" } else { b"" };
                overrides.insert(name.to_vec(), off.to_vec())
            }
        };
    }
    for (name, value) in &mut overrides {
        if let Some(users) = users.remove(name) {
            *value = users;
        }
    }
    overrides
}

/// Where the index has a repository in place of a file.
fn nested(git: &Git) -> Result<Vec<PathBuf>, String> {
    let listed = git.run(&["ls-files", "--stage", "-z"]);
    if !listed.succeeded {
        return Err(listed.text());
    }
    let entries = listed.stdout.split(|byte| *byte == 0).filter(|entry| entry.starts_with(GITLINK));
    let paths = entries.filter_map(|entry| split_once(entry, b'\t'));
    Ok(paths.map(|(_, path)| git.dir.join(OsStr::from_bytes(path))).collect())
}

fn setting(name: &[u8], value: &[u8]) -> Result<OsString, String> {
    // git splits at the first one, and would set something else.
    if name.contains(&b'=') {
        return Err("the repository configures a filter whose name contains '='".into());
    }
    Ok(OsString::from_vec([name, b"=", value].concat()))
}

fn split_once(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let at = memchr::memchr(at, text)?;
    Some((text.get(..at)?, text.get(at + 1..)?))
}
