//! Resolves the working directory and the program of a request.

use crate::wire::Failure;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Search path without PATH, as in the C library.
const PATH_DEFAULT: &str = "/bin:/usr/bin";

/// "absolute, or relative to the server cwd; `~`, `~/x` expand to the server's HOME; "" = server cwd; lexically
/// normalised".
pub(crate) fn directory(asked: Option<&Path>, server: &Path, home: Option<&Path>) -> PathBuf {
    let Some(asked) = asked else { return server.to_owned() };
    let below_home = asked.strip_prefix("~").ok().and_then(|rest| Some(home?.join(rest)));
    crate::wire::normalized(&server.join(below_home.as_deref().unwrap_or(asked)))
}

/// Candidate paths of a program in search order: the name itself if it has a slash, else one per directory of PATH.
pub(crate) fn candidates(
    name: &str,
    directory: &Path,
    environment: &[(OsString, OsString)],
    terminal: bool,
) -> Result<Vec<PathBuf>, Failure> {
    if name.is_empty() {
        let kind = if terminal { "PTY" } else { "pipe" };
        return Err(fail(format!("missing program for {kind} spawn")));
    }
    if name.contains('/') {
        return Ok(vec![PathBuf::from(name)]);
    }
    let path = path_of(environment).unwrap_or(OsStr::new(PATH_DEFAULT));
    let dirs = path.as_bytes().split(|byte| *byte == b':').map(OsStr::from_bytes);
    Ok(dirs.map(|dir| directory.join(dir).join(name)).collect())
}

/// The first executable candidate, else the first existing one, for which exec then reports the error.
pub(crate) fn find_executable(
    name: &str,
    candidates: &[PathBuf],
    directory: &Path,
    environment: &[(OsString, OsString)],
    terminal: bool,
) -> Result<PathBuf, Failure> {
    if name.contains('/') && !terminal {
        return Ok(PathBuf::from(name));
    }
    let mut found = None;
    for candidate in candidates {
        let Ok(metadata) = directory.join(candidate).metadata() else { continue };
        if metadata.is_file() && metadata.permissions().mode() & 0o111 != 0 {
            return Ok(candidate.clone());
        }
        found = found.or(Some(candidate).filter(|_| metadata.is_file() || name.contains('/')));
    }
    match found {
        Some(found) => Ok(found.clone()),
        None if !terminal => Err(fail("No such file or directory (os error 2)".into())),
        None if name.contains('/') => Err(fail(format!(
            "Unable to spawn {name} because it doesn't exist on the filesystem (ENOENT: No such file or directory)"
        ))),
        None => {
            let path = path_of(environment).unwrap_or_default();
            Err(fail(format!("Unable to spawn {name} because:\nNo viable candidates found in PATH {path:?}")))
        }
    }
}

fn fail(text: String) -> Failure {
    Failure::internal(format!("failed to spawn command: {text}"))
}

fn path_of(environment: &[(OsString, OsString)]) -> Option<&OsStr> {
    environment.iter().find(|(variable, _)| variable == "PATH").map(|(_, value)| value.as_os_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_what_the_request_means() {
        let at = |asked: &str| {
            directory(Some(Path::new(asked)), Path::new("/srv/code"), Some(Path::new("/home/u")))
        };
        assert_eq!(at("/a/../b/./c"), Path::new("/b/c"));
        assert_eq!(at("sub"), Path::new("/srv/code/sub"));
        assert_eq!(at(".."), Path::new("/srv"));
        assert_eq!(at(""), Path::new("/srv/code"));
        assert_eq!(at("~"), Path::new("/home/u"));
        assert_eq!(at("~/x"), Path::new("/home/u/x"));
        assert_eq!(at("~x"), Path::new("/srv/code/~x"));
        assert_eq!(directory(None, Path::new("/srv"), None), Path::new("/srv"));
    }

    #[test]
    fn names_are_looked_up_in_the_environment_the_command_gets() {
        let path = |value: &str| vec![("PATH".into(), value.into())];
        let root = Path::new("/");
        let program = |name: &str, root: &Path, environment: &[(OsString, OsString)], terminal: bool| {
            let candidates = candidates(name, root, environment, terminal)?;
            find_executable(name, &candidates, root, environment, terminal)
        };
        assert_eq!(program("sh", root, &path("/nowhere:/bin"), false).unwrap(), Path::new("/bin/sh"));
        assert_eq!(program("sh", root, &path("bin"), false).unwrap(), Path::new("/bin/sh"));
        assert_eq!(program("sh", root, &[], false).unwrap(), Path::new("/bin/sh"));
        let missing = program("sh", root, &path("/nowhere"), false).unwrap_err();
        assert_eq!(missing.message, "failed to spawn command: No such file or directory (os error 2)");
        let missing = program("sh", root, &path("/nowhere"), true).unwrap_err();
        assert_eq!(
            missing.message,
            "failed to spawn command: Unable to spawn sh because:\nNo viable candidates found in PATH \"/nowhere\""
        );
    }
}
