//! The guard: where root's daemon for approvals has its things, and how users' programs find it.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Where everything of the guard is. Fixed, so that no environment of a user can name another place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// `/`, or what a command line gives in its place.
    root: PathBuf,
}

/// Whether this host has a guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Guard mode is not set up: every user's daemon has its own queue.
    Absent,
    /// It is set up and cannot be used now; says why. Nothing is approved in its place.
    Away(String),
    Serving,
}

/// Where approvals of this host live, and what that is worth, in one sentence each.
pub const GUARD_MODE: &str = "guard mode: holds also against an unconfined process of the same user";
pub const PERSONAL_MODE: &str = "personal mode: holds against confined agents and mistakes; not against an unconfined process of the same user";

impl Found {
    /// The mode in force, in words for people. A guard that is away is still in force: nothing is approved without it.
    pub fn mode(&self) -> &'static str {
        match self {
            Found::Absent => PERSONAL_MODE,
            Found::Away(_) | Found::Serving => GUARD_MODE,
        }
    }
}

impl Default for Places {
    fn default() -> Places {
        Places { root: PathBuf::from("/") }
    }
}

impl Places {
    pub fn new(root: Option<&Path>) -> Result<Places, String> {
        let root = root.unwrap_or(Path::new("/"));
        let root = std::path::absolute(root).map_err(|error| format!("{}: {error}", root.display()))?;
        Ok(Places { root })
    }

    /// What another process of ours is given to find the same.
    pub fn root(&self) -> Option<&Path> {
        (self.root != Path::new("/")).then_some(&self.root)
    }

    /// Records and journals. It exists from the installation to the removal, so it also says that there is a guard.
    pub fn state(&self) -> PathBuf {
        self.root.join("var/lib/outpost-guard")
    }

    pub fn runtime(&self) -> PathBuf {
        self.root.join("run/outpost-guard")
    }

    /// Root's configuration for this host.
    pub fn etc(&self) -> PathBuf {
        self.root.join("etc/outpost")
    }

    pub fn config(&self) -> PathBuf {
        self.etc().join("guard.toml")
    }

    pub fn rules(&self) -> PathBuf {
        self.etc().join("rules.toml")
    }

    pub fn broker_socket(&self) -> PathBuf {
        self.runtime().join("broker.sock")
    }

    pub fn approvals_socket(&self) -> PathBuf {
        self.runtime().join("approvals.sock")
    }

    /// Looks for the guard. A place that others than root can change is as good as none, and is reported.
    pub fn find(&self) -> Found {
        match fs::symlink_metadata(self.state()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Found::Absent,
            Err(error) => return Found::Away(format!("{}: {error}", self.state().display())),
            Ok(_) => {}
        }
        let socket = self.broker_socket();
        let checks = [self.state(), self.runtime()].into_iter().try_for_each(|dir| only_root_changes(&dir));
        match checks.and_then(|()| is_socket_of_root(&socket)) {
            Ok(()) => Found::Serving,
            Err(reason) => Found::Away(reason),
        }
    }

    /// Refuses configuration that others than root could write.
    pub fn check_configuration(&self) -> Result<(), String> {
        let files = ["guard.toml", "rules.toml", "approvers.toml"].map(|name| self.etc().join(name));
        for path in [self.etc()].into_iter().chain(files) {
            match only_root_changes(&path) {
                Err(_)
                    if fs::symlink_metadata(&path)
                        .is_err_and(|error| error.kind() == io::ErrorKind::NotFound) => {}
                checked => checked?,
            }
        }
        Ok(())
    }

    /// Makes the directories: the state for root alone, the runtime directory for everybody to look into.
    pub fn create(&self) -> Result<(), String> {
        for (dir, mode) in [(self.state(), 0o700), (self.runtime(), 0o755)] {
            let fail = |error: io::Error| format!("{}: {error}", dir.display());
            let parent = dir.parent().unwrap_or(&dir);
            fs::create_dir_all(parent).map_err(|error| format!("{}: {error}", parent.display()))?;
            match fs::DirBuilder::new().mode(mode).create(&dir) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(fail(error)),
                _ => {}
            }
            let found = fs::symlink_metadata(&dir).map_err(fail)?;
            if !found.is_dir() || found.uid() != 0 {
                return Err(format!("{} is not a directory of root; remove it", dir.display()));
            }
            fs::set_permissions(&dir, PermissionsExt::from_mode(mode)).map_err(fail)?;
        }
        self.check_configuration()
    }
}

/// Whether a file or directory is root's and not writable for others. A link is neither.
fn only_root_changes(path: &Path) -> Result<(), String> {
    let found = fs::symlink_metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
    match found.file_type().is_symlink() || found.uid() != 0 || found.mode() & 0o022 != 0 {
        true => Err(format!(
            "{}: others than root can change it (owner {}, mode {:o})",
            path.display(),
            found.uid(),
            found.mode() & 0o7777
        )),
        false => Ok(()),
    }
}

/// Everybody may write to it, which is how a client connects; only root can have made it.
fn is_socket_of_root(path: &Path) -> Result<(), String> {
    let found = fs::symlink_metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
    match found.file_type().is_socket() && found.uid() == 0 {
        true => Ok(()),
        false => Err(format!("{} is not a socket of root", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(dir: &Path) -> Places {
        Places::new(Some(dir)).unwrap()
    }

    #[test]
    fn the_places_do_not_depend_on_the_environment() {
        let places = Places::new(None).unwrap();
        assert_eq!(places.state(), Path::new("/var/lib/outpost-guard"));
        assert_eq!(places.broker_socket(), Path::new("/run/outpost-guard/broker.sock"));
        assert_eq!(places.config(), Path::new("/etc/outpost/guard.toml"));
        assert_eq!(places.root(), None);
    }

    #[test]
    fn a_guard_that_was_installed_and_does_not_serve_is_not_absent() {
        let dir = tempfile::tempdir().unwrap();
        let places = places(dir.path());
        assert_eq!(places.find(), Found::Absent);
        fs::create_dir_all(places.state()).unwrap();
        assert!(matches!(places.find(), Found::Away(_)));
    }

    #[test]
    fn what_others_can_change_is_no_guard_and_no_configuration() {
        if outpost_sys::limits::effective_uid() != 0 {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let places = places(dir.path());
        places.create().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&places.state()), mode(&places.runtime())), (0o700, 0o755));
        let _socket = std::os::unix::net::UnixListener::bind(places.broker_socket()).unwrap();
        assert_eq!(places.find(), Found::Serving);
        std::os::unix::fs::lchown(places.broker_socket(), Some(54_321), None).unwrap();
        assert!(matches!(places.find(), Found::Away(why) if why.contains("not a socket of root")));
        std::os::unix::fs::lchown(places.broker_socket(), Some(0), None).unwrap();
        fs::set_permissions(places.runtime(), PermissionsExt::from_mode(0o777)).unwrap();
        assert!(matches!(places.find(), Found::Away(why) if why.contains("others than root can change it")));
        fs::create_dir_all(places.etc()).unwrap();
        fs::write(places.rules(), "").unwrap();
        assert_eq!(places.check_configuration(), Ok(()));
        fs::set_permissions(places.rules(), PermissionsExt::from_mode(0o664)).unwrap();
        assert!(places.check_configuration().unwrap_err().contains("rules.toml"));
    }
}
