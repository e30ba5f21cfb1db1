//! The destination directory: checks its path, recreates it, and creates files and directories beneath it.

use crate::extract::error::ExtractError;
use crate::go_compat::{clean, join};
use outpost_sys::Errno;
use outpost_sys::beneath::{Dir, NotRemoved};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// PATH_MAX without the NUL. This code opens directories one by one and could create longer paths, but the original cannot,
/// and most programs could not open the files.
const PATH_BYTES_MAX: usize = 4095;

/// Cleans the client's path. Refuses paths that must not be wiped.
pub(super) fn check(dest_dir: &str, home: Option<&Path>) -> Result<PathBuf, ExtractError> {
    let path = path_of(clean(dest_dir.as_bytes()));
    if !path.is_absolute() || path.parent().is_none() {
        return Err(ExtractError::DestinationPath(dest_dir.to_owned()));
    }
    if home.is_some_and(|home| is_or_contains(&path, home)) {
        return Err(ExtractError::DestinationHome(dest_dir.to_owned()));
    }
    Ok(path)
}

/// Whether `path` is `home` or one of its ancestors. Compares names and also inodes, which detects symlinks, bind mounts and
/// other spellings.
fn is_or_contains(path: &Path, home: &Path) -> bool {
    let clean_home = path_of(clean(home.as_os_str().as_bytes()));
    if clean_home.starts_with(path) {
        return true;
    }
    let identity = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
    let Some(path_identity) = identity(path) else { return false };
    // A missing home is checked too: it may be created later.
    let home = home.canonicalize().unwrap_or(clean_home);
    home.ancestors().any(|ancestor| identity(ancestor) == Some(path_identity))
}

fn path_of(bytes: Vec<u8>) -> PathBuf {
    OsString::from_vec(bytes).into()
}

pub(super) struct Destination {
    /// Clean and absolute, without a trailing slash.
    path: PathBuf,
    dir: Dir,
    /// Directories created beneath the destination. One entry name can create thousands.
    pub(super) dirs_created: u64,
}

impl Destination {
    /// Removes the tree at `path` and creates an empty directory there, with its missing ancestors.
    pub(super) fn recreate(path: PathBuf) -> Result<Destination, ExtractError> {
        let (Some(parent_path), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(mkdir_error(&path, Errno::INVAL));
        };
        let parent = match Dir::at(parent_path) {
            Ok(parent) => {
                parent.remove_tree(name).map_err(|NotRemoved { call, path, errno }| {
                    ExtractError::path(format!("clean destDir: {call}"), text(&parent_path.join(path)), errno)
                })?;
                parent
            }
            // Without a parent there is no tree to remove.
            Err(Errno::NOENT) => {
                create_missing(parent_path).map_err(|(path, errno)| mkdir_error(&path, errno))?
            }
            Err(errno) => return Err(ExtractError::path("clean destDir: open", text(parent_path), errno)),
        };
        let created = parent.make_dir(name).and_then(|dir| {
            // Another process may have replaced the directory between mkdir and open. Accept only an empty one.
            if dir.is_empty()? { Ok(dir) } else { Err(Errno::EXIST) }
        });
        let dir = created.map_err(|errno| mkdir_error(&path, errno))?;
        Ok(Destination { path, dir, dirs_created: 0 })
    }

    /// The cleaned path of an entry relative to the destination, empty for the destination itself. `None` if the name leads
    /// outside. "a ../ that resolves back inside destDir is allowed".
    pub(super) fn resolve(&self, name: &[u8]) -> Option<PathBuf> {
        let target = path_of(join(self.path.as_os_str().as_bytes(), name));
        target.strip_prefix(&self.path).ok().map(Path::to_owned)
    }

    /// Creates a directory and its missing ancestors.
    pub(super) fn create_dirs(&mut self, relative: &Path) -> Result<(), ExtractError> {
        self.open_or_create(relative).map(drop)
    }

    /// Creates a file and its missing ancestors. Replaces an existing file.
    pub(super) fn create_file(&mut self, relative: &Path) -> Result<OwnedFd, ExtractError> {
        let created = match (relative.file_name(), relative.parent()) {
            (Some(name), Some(parent)) => {
                let dir = self.open_or_create(parent)?;
                if self.is_too_long(relative) {
                    Err(Errno::NAMETOOLONG)
                } else {
                    dir.as_ref().unwrap_or(&self.dir).create_file(name)
                }
            }
            _ => Err(Errno::ISDIR),
        };
        created.map_err(|errno| ExtractError::path("open", self.absolute(relative), errno))
    }

    /// The absolute path of an entry, for error messages.
    pub(super) fn absolute(&self, relative: &Path) -> String {
        let mut path = self.path.clone();
        path.extend(relative);
        text(&path)
    }

    /// `None` stands for the destination itself.
    fn open_or_create(&mut self, relative: &Path) -> Result<Option<Dir>, ExtractError> {
        if !self.is_too_long(relative)
            && !relative.as_os_str().is_empty()
            && let Ok(dir) = self.dir.open_dir(relative)
        {
            return Ok(Some(dir));
        }
        let (mut dir, mut prefix) = (None::<Dir>, PathBuf::new());
        for name in relative {
            prefix.push(name);
            let parent = dir.as_ref().unwrap_or(&self.dir);
            let next = if self.is_too_long(&prefix) {
                Err(Errno::NAMETOOLONG)
            } else {
                create_or_open(parent, name, || self.dirs_created += 1)
            };
            dir = Some(next.map_err(|errno| ExtractError::path("mkdir", self.absolute(&prefix), errno))?);
        }
        Ok(dir)
    }

    fn is_too_long(&self, relative: &Path) -> bool {
        self.path.as_os_str().len() + 1 + relative.as_os_str().len() > PATH_BYTES_MAX
    }
}

/// Creates `path` and its missing ancestors. The error names the path that could not be created.
fn create_missing(path: &Path) -> Result<Dir, (PathBuf, Errno)> {
    let mut missing = Vec::new();
    for ancestor in path.ancestors() {
        let mut dir = match Dir::at(ancestor) {
            Err(Errno::NOENT) => {
                missing.extend(ancestor.file_name());
                continue;
            }
            found => found.map_err(|errno| (ancestor.to_owned(), errno))?,
        };
        let mut prefix = ancestor.to_owned();
        for name in missing.into_iter().rev() {
            prefix.push(name);
            dir = create_or_open(&dir, name, || ()).map_err(|errno| (prefix.clone(), errno))?;
        }
        return Ok(dir);
    }
    Err((path.to_owned(), Errno::NOENT))
}

fn create_or_open(parent: &Dir, name: &OsStr, on_create: impl FnOnce()) -> Result<Dir, Errno> {
    match parent.make_dir(name) {
        Err(Errno::EXIST) => parent.open_dir(Path::new(name)),
        created => {
            on_create();
            created
        }
    }
}

fn mkdir_error(path: &Path, errno: Errno) -> ExtractError {
    ExtractError::path("mkdir destDir: mkdir", text(path), errno)
}

fn text(path: &Path) -> String {
    super::text(path.as_os_str().as_bytes())
}
