//! The directory an archive is unpacked into: which one may be it, how it is made anew, and what is made below it.

use crate::extract::failed;
use crate::go::{clean, join, quote};
use outpost_sys::Errno;
use outpost_sys::beneath::{Dir, NotRemoved};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The kernel takes no longer path. Ours never gives it a whole one, but the original does, and who reads the files later
/// will too.
const PATH_BYTES_MAX: usize = 4095;

/// The path the client sent, cleaned; refused when it is no place to wipe.
pub(super) fn check(dest_dir: &str, home: Option<&Path>) -> Result<PathBuf, String> {
    let path = path_of(clean(dest_dir.as_bytes()));
    if !path.is_absolute() || path.parent().is_none() {
        return Err(format!("destDir must be an absolute, non-root path: {}", quote(dest_dir)));
    }
    if home.is_some_and(|home| holds(&path, home)) {
        return Err(format!("destDir must not be or contain the home directory: {}", quote(dest_dir)));
    }
    Ok(path)
}

/// Whether `path` is `home` or a directory around it, by its names or by where it leads: a link, a mount or another spelling
/// of the same directory shows by its inode.
fn holds(path: &Path, home: &Path) -> bool {
    let clean_home = path_of(clean(home.as_os_str().as_bytes()));
    if clean_home.starts_with(path) {
        return true;
    }
    let identity = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
    let Some(ours) = identity(path) else { return false };
    // A home that does not exist may do so tomorrow.
    let home = home.canonicalize().unwrap_or(clean_home);
    home.ancestors().any(|around| identity(around) == Some(ours))
}

fn path_of(bytes: Vec<u8>) -> PathBuf {
    OsString::from_vec(bytes).into()
}

pub(super) struct Destination {
    /// Clean and absolute, with no slash at the end.
    path: PathBuf,
    dir: Dir,
    /// Directories made below it. One name in the archive can stand for thousands.
    pub(super) dirs_made: u64,
}

impl Destination {
    /// Removes what is at `path` and makes a new, empty directory there, with those above it that are missing.
    pub(super) fn renew(path: PathBuf) -> Result<Destination, String> {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(failed("mkdir destDir: mkdir", &text(&path), Errno::INVAL));
        };
        let parent = match Dir::at(above) {
            Ok(parent) => {
                parent.remove_tree(name).map_err(|NotRemoved { call, path, errno }| {
                    failed(&format!("clean destDir: {call}"), &text(&above.join(path)), errno)
                })?;
                parent
            }
            // Then there is nothing to remove either.
            Err(Errno::NOENT) => make_missing(above)
                .map_err(|(path, errno)| failed("mkdir destDir: mkdir", &text(&path), errno))?,
            Err(errno) => return Err(failed("clean destDir: open", &text(above), errno)),
        };
        let made = parent.make_dir(name).and_then(|dir| {
            // Ours is empty. What somebody put in its place between making and opening it may be anything.
            if dir.is_empty()? { Ok(dir) } else { Err(Errno::EXIST) }
        });
        let dir = made.map_err(|errno| failed("mkdir destDir: mkdir", &text(&path), errno))?;
        Ok(Destination { path, dir, dirs_made: 0 })
    }

    /// What an entry's name means here: the clean path below, empty for the directory itself; `None` when it leads out. A
    /// name that leaves and comes back is inside: "a ../ that resolves back inside destDir is allowed".
    pub(super) fn resolve(&self, name: &[u8]) -> Option<PathBuf> {
        let target = path_of(join(self.path.as_os_str().as_bytes(), name));
        target.strip_prefix(&self.path).ok().map(Path::to_owned)
    }

    /// A directory and those above it, unless they are there.
    pub(super) fn make_dirs(&mut self, below: &Path) -> Result<(), String> {
        self.open_or_make(below).map(drop)
    }

    /// A file, in directories that are made if they are missing, in place of one that is there.
    pub(super) fn create_file(&mut self, below: &Path) -> Result<OwnedFd, String> {
        let created = match (below.file_name(), below.parent()) {
            (Some(name), Some(above)) => {
                let dir = self.open_or_make(above)?;
                if self.is_too_long(below) {
                    Err(Errno::NAMETOOLONG)
                } else {
                    dir.as_ref().unwrap_or(&self.dir).create_file(name)
                }
            }
            _ => Err(Errno::ISDIR),
        };
        created.map_err(|errno| failed("open", &self.target(below), errno))
    }

    /// The absolute path of an entry, for messages.
    pub(super) fn target(&self, below: &Path) -> String {
        let mut path = self.path.clone();
        path.extend(below);
        text(&path)
    }

    /// `None` is the destination itself.
    fn open_or_make(&mut self, below: &Path) -> Result<Option<Dir>, String> {
        if !self.is_too_long(below)
            && !below.as_os_str().is_empty()
            && let Ok(dir) = self.dir.open_dir(below)
        {
            return Ok(Some(dir));
        }
        let (mut dir, mut made) = (None::<Dir>, PathBuf::new());
        for name in below {
            made.push(name);
            let above = dir.as_ref().unwrap_or(&self.dir);
            let next = if self.is_too_long(&made) {
                Err(Errno::NAMETOOLONG)
            } else {
                existing_or_new(above, name, || self.dirs_made += 1)
            };
            dir = Some(next.map_err(|errno| failed("mkdir", &self.target(&made), errno))?);
        }
        Ok(dir)
    }

    fn is_too_long(&self, below: &Path) -> bool {
        self.path.as_os_str().len() + 1 + below.as_os_str().len() > PATH_BYTES_MAX
    }
}

/// Makes the directories that are missing on the way to `path`, below the last one that is there.
fn make_missing(path: &Path) -> Result<Dir, (PathBuf, Errno)> {
    let mut missing = Vec::new();
    for around in path.ancestors() {
        let mut dir = match Dir::at(around) {
            Err(Errno::NOENT) => {
                missing.extend(around.file_name());
                continue;
            }
            found => found.map_err(|errno| (around.to_owned(), errno))?,
        };
        let mut made = around.to_owned();
        for name in missing.into_iter().rev() {
            made.push(name);
            dir = existing_or_new(&dir, name, || ()).map_err(|errno| (made.clone(), errno))?;
        }
        return Ok(dir);
    }
    Err((path.to_owned(), Errno::NOENT))
}

fn existing_or_new(above: &Dir, name: &OsStr, made: impl FnOnce()) -> Result<Dir, Errno> {
    match above.make_dir(name) {
        Err(Errno::EXIST) => above.open_dir(Path::new(name)),
        new => {
            made();
            new
        }
    }
}

fn text(path: &Path) -> String {
    super::text(path.as_os_str().as_bytes())
}
