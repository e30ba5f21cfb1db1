//! Expansion and check of the `path` parameter of `session.create`.

use std::path::{Path, PathBuf};
use thiserror::Error;

/// Keeps `/x`, expands `~` and `~/x` to the home directory, and puts any other path below `~/Projects`.
pub(crate) fn expand(given: &str, home: &Path) -> PathBuf {
    if given.starts_with('/') {
        return given.into();
    }
    match given.strip_prefix('~') {
        Some("") => home.to_owned(),
        Some(rest) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
        // `~user` is not supported. The literal path does not exist.
        Some(_) => given.into(),
        None => home.join("Projects").join(given),
    }
}

/// Why a path is no project. The texts are those of the contract.
#[derive(Debug, PartialEq, Eq, Error)]
pub(crate) enum ProjectError {
    #[error("Path is not a directory on remote machine: {} (resolved from: {given})", path.display())]
    NotDirectory { path: PathBuf, given: String },
    #[error("Path cannot be opened on remote machine: {} (resolved from: {given})", path.display())]
    Denied { path: PathBuf, given: String },
    #[error("Path does not exist on remote machine: {} (resolved from: {given})", path.display())]
    Missing { path: PathBuf, given: String },
}

/// Expands a path and checks that it is a directory.
pub(crate) fn project(given: &str, home: &Path) -> Result<PathBuf, ProjectError> {
    let path = expand(given, home);
    let found = path.metadata();
    let given = given.to_owned();
    match found {
        Ok(metadata) if metadata.is_dir() => Ok(path),
        Ok(_) => Err(ProjectError::NotDirectory { path, given }),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Err(ProjectError::Denied { path, given })
        }
        Err(_) => Err(ProjectError::Missing { path, given }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_expand_as_the_contract_specifies() {
        let home = Path::new("/home/u");
        let cases = [
            ("/srv/a", "/srv/a"),
            ("~", "/home/u"),
            ("~/a b", "/home/u/a b"),
            ("~bob/x", "~bob/x"),
            ("myproject", "/home/u/Projects/myproject"),
            ("./x", "/home/u/Projects/./x"),
            ("a/b", "/home/u/Projects/a/b"),
            ("", "/home/u/Projects/"),
        ];
        for (given, expected) in cases {
            assert_eq!(expand(given, home), Path::new(expected), "{given}");
        }
    }

    #[test]
    fn a_project_must_be_a_directory() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(home.path().join("Projects/there")).unwrap();
        std::fs::write(home.path().join("file"), "").unwrap();
        assert_eq!(project("there", home.path()), Ok(home.path().join("Projects/there")));
        let missing = project("not-there", home.path()).unwrap_err();
        let path = home.path().join("Projects/not-there");
        assert_eq!(
            missing.to_string(),
            format!("Path does not exist on remote machine: {} (resolved from: not-there)", path.display())
        );
        assert!(matches!(project("~/file", home.path()), Err(ProjectError::NotDirectory { .. })));
    }
}
