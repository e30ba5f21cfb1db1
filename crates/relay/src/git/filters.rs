//! Settings that prevent git from running the filter programs of a repository's configuration.

use super::Git;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Repositories per status: the requested one and its submodules.
const REPOSITORIES_MAX: usize = 256;
/// Overridden settings per status.
const OVERRIDES_MAX: usize = 1024;
/// Configuration scopes of the user and the host. All others belong to the repository.
const TRUSTED_SCOPES: [&[u8]; 3] = [b"system", b"global", b"command"];
/// The mode of a submodule in the index.
const GITLINK_MODE: &[u8] = b"160000 ";

/// Why the filters of a repository cannot be disabled.
#[derive(Debug, Error)]
pub(crate) enum FilterError {
    #[error("it has more than {REPOSITORIES_MAX} nested repositories")]
    TooManyRepositories,
    #[error("its filters have more than {OVERRIDES_MAX} settings")]
    TooManySettings,
    /// git cannot list the index, with git's message.
    #[error("{0}")]
    Index(String),
    #[error("the repository configures a filter whose name contains '='")]
    Name,
}

/// Arguments for git's `-c` option. They reset every filter of the repository and its submodules to the user's
/// configuration. git passes them on to the submodules.
pub(super) fn disabling_settings(git: &Git) -> Result<Vec<OsString>, FilterError> {
    let mut overrides = BTreeMap::new();
    let mut pending = vec![git.dir.clone()];
    let mut visited = 0;
    while let Some(dir) = pending.pop() {
        visited += 1;
        if visited > REPOSITORIES_MAX {
            return Err(FilterError::TooManyRepositories);
        }
        let Some(root) = git.at(&dir).root() else { continue };
        let git = git.at(Path::new(OsStr::from_bytes(&root)));
        overrides.extend(repository_overrides(&git));
        if overrides.len() > OVERRIDES_MAX {
            return Err(FilterError::TooManySettings);
        }
        // git does not descend into a submodule that is not checked out.
        pending.extend(submodules(&git)?.into_iter().filter(|dir| dir.join(".git").exists()));
    }
    overrides.into_iter().map(|(name, value)| setting(&name, &value)).collect()
}

/// Every filter setting of the repository, with its value in the user's configuration.
fn repository_overrides(git: &Git) -> BTreeMap<Vec<u8>, Vec<u8>> {
    const NAMES: &str = r"^filter\..*\.(clean|smudge|process|required)$";
    let scoped = git.run(&["config", "-z", "--show-scope", "--get-regexp", NAMES]);
    // git before 2.26 has no scopes. Then every filter counts as the repository's.
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
                let disabled: &[u8] = if name.ends_with(b".required") { b"false" } else { b"" };
                overrides.insert(name.to_vec(), disabled.to_vec())
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

/// The directories of the submodules in the index.
fn submodules(git: &Git) -> Result<Vec<PathBuf>, FilterError> {
    let listed = git.run(&["ls-files", "--stage", "-z"]);
    if !listed.succeeded {
        return Err(FilterError::Index(listed.error_text()));
    }
    let entries = listed.stdout.split(|byte| *byte == 0).filter(|entry| entry.starts_with(GITLINK_MODE));
    let paths = entries.filter_map(|entry| split_once(entry, b'\t'));
    Ok(paths.map(|(_, path)| git.dir.join(OsStr::from_bytes(path))).collect())
}

fn setting(name: &[u8], value: &[u8]) -> Result<OsString, FilterError> {
    // git splits the argument at the first '=' and would set another key.
    if name.contains(&b'=') {
        return Err(FilterError::Name);
    }
    Ok(OsString::from_vec([name, b"=", value].concat()))
}

fn split_once(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let at = memchr::memchr(at, text)?;
    Some((text.get(..at)?, text.get(at + 1..)?))
}
