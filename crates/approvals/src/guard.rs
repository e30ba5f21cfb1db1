//! The guard, root's approval daemon: its paths, and how clients detect it.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a path of the guard cannot be used.
#[derive(Debug, Error)]
pub enum GuardError {
    #[error("{}: {cause}", path.display())]
    Path {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("{}: others than root can change it (owner {owner}, mode {mode:o})", path.display())]
    Writable { path: PathBuf, owner: u32, mode: u32 },
    #[error("{} is not a directory that root owns; remove it", .0.display())]
    NotDirectory(PathBuf),
    #[error("{} is not a socket of root", .0.display())]
    NotSocket(PathBuf),
}

impl GuardError {
    fn path(path: &Path, cause: io::Error) -> GuardError {
        GuardError::Path { path: path.to_owned(), cause }
    }
}

/// The paths of the guard. They are fixed, so that a user's environment cannot redirect them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardPaths {
    /// `/`, or the `--guard-root` directory.
    root: PathBuf,
}

/// Whether this host has a guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardStatus {
    /// Guard mode is not installed: every user's daemon has its own queue.
    Absent,
    /// The guard is installed but not usable, for this reason. No other daemon may approve in its place.
    Unavailable(String),
    Running,
}

/// The two modes of approval on a host, and what each protects against.
pub const GUARD_MODE: &str = "guard mode: also protects against an unconfined process of the same user";
pub const PERSONAL_MODE: &str = "personal mode: protects against confined agents and mistakes; not against an unconfined process of the same user";

impl GuardStatus {
    /// The current mode, for display. An unavailable guard still counts as guard mode: nothing is approved
    /// without it.
    pub fn mode(&self) -> &'static str {
        match self {
            GuardStatus::Absent => PERSONAL_MODE,
            GuardStatus::Unavailable(_) | GuardStatus::Running => GUARD_MODE,
        }
    }
}

impl Default for GuardPaths {
    fn default() -> GuardPaths {
        GuardPaths { root: PathBuf::from("/") }
    }
}

impl GuardPaths {
    pub fn new(root: Option<&Path>) -> Result<GuardPaths, GuardError> {
        let root = root.unwrap_or(Path::new("/"));
        let root = std::path::absolute(root).map_err(|error| GuardError::path(root, error))?;
        Ok(GuardPaths { root })
    }

    /// The `--guard-root` argument for a child process; `None` for `/`.
    pub fn root(&self) -> Option<&Path> {
        (self.root != Path::new("/")).then_some(&self.root)
    }

    /// The ledger and the journals. The directory exists from installation to removal, so it also marks guard
    /// mode.
    pub fn state(&self) -> PathBuf {
        self.root.join("var/lib/outpost-guard")
    }

    pub fn runtime(&self) -> PathBuf {
        self.root.join("run/outpost-guard")
    }

    /// Root's policy directory.
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

    /// Detects the guard. A path that users other than root can change makes the guard unavailable.
    pub fn status(&self) -> GuardStatus {
        match fs::symlink_metadata(self.state()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return GuardStatus::Absent,
            Err(error) => {
                return GuardStatus::Unavailable(GuardError::path(&self.state(), error).to_string());
            }
            Ok(_) => {}
        }
        let socket = self.broker_socket();
        let checks = [self.state(), self.runtime()].into_iter().try_for_each(|dir| check_root_only(&dir));
        match checks.and_then(|()| check_root_socket(&socket)) {
            Ok(()) => GuardStatus::Running,
            Err(error) => GuardStatus::Unavailable(error.to_string()),
        }
    }

    /// Fails if users other than root can write the configuration.
    pub fn check_configuration(&self) -> Result<(), GuardError> {
        let files = ["guard.toml", "rules.toml", "approvers.toml"].map(|name| self.etc().join(name));
        for path in [self.etc()].into_iter().chain(files) {
            match check_root_only(&path) {
                Err(_)
                    if fs::symlink_metadata(&path)
                        .is_err_and(|error| error.kind() == io::ErrorKind::NotFound) => {}
                checked => checked?,
            }
        }
        Ok(())
    }

    /// Creates the directories: the state directory for root only, the runtime directory readable for all
    /// users.
    pub fn create(&self) -> Result<(), GuardError> {
        for (dir, mode) in [(self.state(), 0o700), (self.runtime(), 0o755)] {
            let fail = |error| GuardError::path(&dir, error);
            let parent = dir.parent().unwrap_or(&dir);
            fs::create_dir_all(parent).map_err(|error| GuardError::path(parent, error))?;
            match fs::DirBuilder::new().mode(mode).create(&dir) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(fail(error)),
                _ => {}
            }
            let found = fs::symlink_metadata(&dir).map_err(fail)?;
            if !found.is_dir() || found.uid() != 0 {
                return Err(GuardError::NotDirectory(dir));
            }
            fs::set_permissions(&dir, PermissionsExt::from_mode(mode)).map_err(fail)?;
        }
        self.check_configuration()
    }
}

/// Fails unless a file or directory belongs to root and only root can write it. A symlink fails too.
fn check_root_only(path: &Path) -> Result<(), GuardError> {
    let found = fs::symlink_metadata(path).map_err(|error| GuardError::path(path, error))?;
    match found.file_type().is_symlink() || found.uid() != 0 || found.mode() & 0o022 != 0 {
        true => Err(GuardError::Writable {
            path: path.to_owned(),
            owner: found.uid(),
            mode: found.mode() & 0o7777,
        }),
        false => Ok(()),
    }
}

/// Fails unless the path is a socket that root created. All users may write to it: connecting requires that.
fn check_root_socket(path: &Path) -> Result<(), GuardError> {
    let found = fs::symlink_metadata(path).map_err(|error| GuardError::path(path, error))?;
    match found.file_type().is_socket() && found.uid() == 0 {
        true => Ok(()),
        false => Err(GuardError::NotSocket(path.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(dir: &Path) -> GuardPaths {
        GuardPaths::new(Some(dir)).unwrap()
    }

    #[test]
    fn paths_do_not_depend_on_the_environment() {
        let paths = GuardPaths::new(None).unwrap();
        assert_eq!(paths.state(), Path::new("/var/lib/outpost-guard"));
        assert_eq!(paths.broker_socket(), Path::new("/run/outpost-guard/broker.sock"));
        assert_eq!(paths.config(), Path::new("/etc/outpost/guard.toml"));
        assert_eq!(paths.root(), None);
    }

    #[test]
    fn an_installed_guard_that_is_down_is_unavailable() {
        let dir = tempfile::tempdir().unwrap();
        let paths = paths(dir.path());
        assert_eq!(paths.status(), GuardStatus::Absent);
        fs::create_dir_all(paths.state()).unwrap();
        assert!(matches!(paths.status(), GuardStatus::Unavailable(_)));
    }

    #[test]
    fn paths_that_other_users_can_change_are_rejected() {
        if outpost_sys::process::effective_uid() != 0 {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let paths = paths(dir.path());
        paths.create().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&paths.state()), mode(&paths.runtime())), (0o700, 0o755));
        let _socket = std::os::unix::net::UnixListener::bind(paths.broker_socket()).unwrap();
        assert_eq!(paths.status(), GuardStatus::Running);
        std::os::unix::fs::lchown(paths.broker_socket(), Some(54_321), None).unwrap();
        assert!(
            matches!(paths.status(), GuardStatus::Unavailable(why) if why.contains("not a socket of root"))
        );
        std::os::unix::fs::lchown(paths.broker_socket(), Some(0), None).unwrap();
        fs::set_permissions(paths.runtime(), PermissionsExt::from_mode(0o777)).unwrap();
        assert!(
            matches!(paths.status(), GuardStatus::Unavailable(why) if why.contains("others than root can change it"))
        );
        fs::create_dir_all(paths.etc()).unwrap();
        fs::write(paths.rules(), "").unwrap();
        paths.check_configuration().unwrap();
        fs::set_permissions(paths.rules(), PermissionsExt::from_mode(0o664)).unwrap();
        assert!(paths.check_configuration().unwrap_err().to_string().contains("rules.toml"));
    }
}
