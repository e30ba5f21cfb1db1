//! Expansion and check of the `path` parameter of `session.create`.

use std::path::{Path, PathBuf};

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

/// Expands a path and checks that it is a directory. The error is a text of the contract.
pub(crate) fn project(given: &str, home: &Path) -> Result<PathBuf, String> {
    let path = expand(given, home);
    let resolved = format!("{} (resolved from: {given})", path.display());
    match path.metadata() {
        Ok(metadata) if metadata.is_dir() => Ok(path),
        Ok(_) => Err(format!("Path is not a directory on remote machine: {resolved}")),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Err(format!("Path cannot be opened on remote machine: {resolved}"))
        }
        Err(_) => Err(format!("Path does not exist on remote machine: {resolved}")),
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
            missing,
            format!("Path does not exist on remote machine: {} (resolved from: not-there)", path.display())
        );
        assert!(project("~/file", home.path()).unwrap_err().starts_with("Path is not a directory"));
    }
}
