//! The directory an archive is unpacked into: which one may be it, how it is made anew, and what is made below it.

use crate::extract::{failed, lexical};
use crate::go::quote;
use outpost_sys::Errno;
use outpost_sys::beneath::{Dir, NotRemoved};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The kernel takes no longer path. Ours never gives it a whole one, but the original does, and who reads the files later
/// will too.
const PATH_BYTES_MAX: usize = 4095;

/// The path the client sent, cleaned; refused when it is no place to wipe.
pub(super) fn check(dest_dir: &str, home: Option<&Path>) -> Result<PathBuf, String> {
    let names = lexical::names(dest_dir.as_bytes());
    if !dest_dir.starts_with('/') || names.is_empty() {
        return Err(format!("destDir must be an absolute, non-root path: {}", quote(dest_dir)));
    }
    let path = absolute(&names);
    if home.is_some_and(|home| holds(&path, &names, home)) {
        return Err(format!("destDir must not be or contain the home directory: {}", quote(dest_dir)));
    }
    Ok(path)
}

/// Whether `path` is `home` or a directory around it, by its names or by where it leads: a link, a mount or another spelling
/// of the same directory shows by its inode.
fn holds(path: &Path, names: &[&[u8]], home: &Path) -> bool {
    let home_names = lexical::names(home.as_os_str().as_bytes());
    if home.is_absolute() && home_names.starts_with(names) {
        return true;
    }
    let identity = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
    let Some(ours) = identity(path) else { return false };
    // A home that does not exist may do so tomorrow.
    let home = home.canonicalize().unwrap_or_else(|_| absolute(&home_names));
    home.ancestors().any(|around| identity(around) == Some(ours))
}

fn absolute(names: &[&[u8]]) -> PathBuf {
    [OsStr::new("/")].into_iter().chain(names.iter().map(|name| OsStr::from_bytes(name))).collect()
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

    /// What an entry's name means here: the names below, none for the directory itself; `None` when it leads out.
    pub(super) fn resolve<'a>(&self, name: &'a [u8]) -> Option<Vec<&'a [u8]>> {
        lexical::below(self.path.as_os_str().as_bytes(), name)
    }

    /// A directory and those above it, unless they are there.
    pub(super) fn make_dirs(&mut self, names: &[&[u8]]) -> Result<(), String> {
        self.open_or_make(names).map(drop)
    }

    /// A file, in directories that are made if they are missing, in place of one that is there.
    pub(super) fn create_file(&mut self, names: &[&[u8]]) -> Result<OwnedFd, String> {
        let created = match names.split_last() {
            None => Err(Errno::ISDIR),
            Some((name, above)) => {
                let dir = self.open_or_make(above)?;
                if self.length(names) > PATH_BYTES_MAX {
                    Err(Errno::NAMETOOLONG)
                } else {
                    dir.as_ref().unwrap_or(&self.dir).create_file(OsStr::from_bytes(name))
                }
            }
        };
        created.map_err(|errno| failed("open", &self.target(names), errno))
    }

    /// The absolute path of an entry, for messages.
    pub(super) fn target(&self, names: &[&[u8]]) -> String {
        let mut path = self.path.clone();
        path.extend(names.iter().map(|name| OsStr::from_bytes(name)));
        text(&path)
    }

    /// `None` is the destination itself.
    fn open_or_make(&mut self, names: &[&[u8]]) -> Result<Option<Dir>, String> {
        if names.is_empty() {
            return Ok(None);
        }
        if self.length(names) <= PATH_BYTES_MAX
            && let Ok(dir) = self.dir.open_dir(Path::new(OsStr::from_bytes(&names.join(&b'/'))))
        {
            return Ok(Some(dir));
        }
        let mut dir: Option<Dir> = None;
        for (count, name) in (1..).zip(names) {
            let made = names.get(..count).unwrap_or(names);
            let above = dir.as_ref().unwrap_or(&self.dir);
            let next = if self.length(made) > PATH_BYTES_MAX {
                Err(Errno::NAMETOOLONG)
            } else {
                existing_or_new(above, OsStr::from_bytes(name), || self.dirs_made += 1)
            };
            dir = Some(next.map_err(|errno| failed("mkdir", &self.target(made), errno))?);
        }
        Ok(dir)
    }

    fn length(&self, names: &[&[u8]]) -> usize {
        self.path.as_os_str().len() + names.iter().map(|name| name.len() + 1).sum::<usize>()
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
    lexical::text(path.as_os_str().as_bytes())
}
