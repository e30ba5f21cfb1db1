//! Directories by descriptor: what is made, opened or removed below one never leads out of it.
//!
//! Whoever shares our user may swap a directory for a link at any moment. So every step starts at a descriptor and
//! follows no link: by `openat2`, or where that is missing one name at a time with `O_NOFOLLOW`, which is as safe.

use crate::{Errno, Result, fault, retry};
use rustix::fd::OwnedFd;
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags, SeekFrom};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// No link at any step, not even one of /proc, and no way up.
const BENEATH: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);
const CLOSED: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW);

/// How often a name that somebody else makes again and again is removed before we give up.
const TRIES_MAX: usize = 100;
/// Levels of a tree whose descriptors stay open during its removal. Deeper ones are found again by their `..`; in tests
/// that begins soon, so that every call of it can be made to fail.
const HELD_MAX: usize = if cfg!(test) { 3 } else { 64 };
/// Subdirectories remembered per level: many where levels are few, so that memory has a bound.
const PENDING_MAX: usize = 256;
const PENDING_DEEP_MAX: usize = 8;
const LISTING_BYTES: usize = 32 << 10;

/// Which file a descriptor or a name stands for, as long as somebody holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
}

impl From<fs::Stat> for Identity {
    // The fields have other types on other machines.
    #[allow(clippy::useless_conversion)]
    fn from(stat: fs::Stat) -> Identity {
        Identity { device: stat.st_dev.into(), inode: stat.st_ino.into() }
    }
}

/// What an open descriptor stands for.
pub fn identity(fd: impl rustix::fd::AsFd) -> Result<Identity> {
    fault::gate()?;
    fs::fstat(fd).map(Identity::from)
}

/// Why a tree is still there: the call that failed, and on what, from the directory the removal started in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotRemoved {
    pub call: &'static str,
    pub path: PathBuf,
    pub errno: Errno,
}

/// A directory held by its descriptor.
#[derive(Debug)]
pub struct Dir(OwnedFd);

impl Dir {
    /// Where `path` leads, links followed: the caller's own paths start here. Only the first use tells whether it is
    /// a directory, and it need not be readable.
    pub fn at(path: &Path) -> Result<Dir> {
        retry(|| {
            fault::gate()?;
            fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map(Dir)
        })
    }

    /// An existing directory, any number of names below this one.
    pub fn open_dir(&self, path: &Path) -> Result<Dir> {
        self.open_below(path, DIRECTORY, Mode::empty()).map(Dir)
    }

    /// A new directory that only its owner may use, whatever the mask; `EEXIST` when the name is taken.
    pub fn make_dir(&self, name: &OsStr) -> Result<Dir> {
        checked(Path::new(name), 1)?;
        fault::gate()?;
        fs::mkdirat(&self.0, name, Mode::RWXU)?;
        let dir = self.open_dir(Path::new(name))?;
        fault::gate()?;
        fs::fchmod(&dir.0, Mode::RWXU)?;
        Ok(dir)
    }

    /// A new, empty file that only its owner may use, open for writing, in place of whatever had the name.
    /// A directory stays: `EISDIR`.
    pub fn create_file(&self, name: &OsStr) -> Result<OwnedFd> {
        checked(Path::new(name), 1)?;
        // Exclusive: what opens is new. A link, a second name of another file or a FIFO that somebody planted is not.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        for _ in 0..TRIES_MAX {
            match self.open_below(Path::new(name), flags, Mode::RUSR | Mode::WUSR) {
                Err(Errno::EXIST) => self.unlink(name, AtFlags::empty())?,
                Err(errno) => return Err(errno),
                Ok(file) => {
                    fault::gate()?;
                    fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
                    return Ok(file);
                }
            }
        }
        Err(Errno::EXIST)
    }

    /// A new, empty file that only its owner may use, open for writing; `EEXIST` when the name is taken, also by a link.
    pub fn create_new_file(&self, name: &OsStr) -> Result<OwnedFd> {
        checked(Path::new(name), 1)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        self.open_below(Path::new(name), flags, Mode::RUSR | Mode::WUSR)
    }

    /// Removes a name that is no directory. That it is gone already is what was wanted.
    pub fn remove_file(&self, name: &OsStr) -> Result<()> {
        checked(Path::new(name), 1)?;
        self.unlink(name, AtFlags::empty())
    }

    /// What a name of this directory leads to, links followed, for reading. Never waits for a writer of a FIFO.
    pub fn open_any(&self, name: &OsStr) -> Result<OwnedFd> {
        checked(Path::new(name), 1)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        retry(|| {
            fault::gate()?;
            fs::openat(&self.0, name, flags, Mode::empty())
        })
    }

    /// Removes a name if it still leads to `file`, links followed; says whether it did.
    pub fn remove_same(&self, name: &OsStr, file: Identity) -> Result<bool> {
        checked(Path::new(name), 1)?;
        fault::gate()?;
        match fs::statat(&self.0, name, AtFlags::empty()) {
            Ok(stat) if Identity::from(stat) == file => self.unlink(name, AtFlags::empty()).map(|()| true),
            Ok(_) | Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> Result<bool> {
        let mut empty = true;
        self.each_entry(|_, _| {
            empty = false;
            Ok(false)
        })?;
        Ok(empty)
    }

    /// Removes `name` with all that is below it. Links are removed, not followed, and what is mounted in there is left
    /// alone (`EBUSY`; without `openat2` only another file system is recognised). Stops at the first failure. However
    /// deep the tree is, few descriptors and no recursion.
    pub fn remove_tree(&self, name: &OsStr) -> std::result::Result<(), NotRemoved> {
        let failed = |errno| NotRemoved { call: "unlinkat", path: name.into(), errno };
        checked(Path::new(name), 1).map_err(failed)?;
        let mut removal = Removal { base: self, levels: Vec::new(), tries_left: TRIES_MAX };
        for _ in 0..TRIES_MAX {
            match self.unlink(name, AtFlags::empty()) {
                Err(Errno::ISDIR) => {}
                // A directory that may not be removed may be emptied. What is refused first is told.
                Err(Errno::ACCESS | Errno::PERM) if self.is_dir(name) => {}
                other => return other.map_err(failed),
            }
            removal.enter(name.into()).and_then(|()| removal.run()).map_err(|(call, errno, name)| {
                let above = removal.levels.iter().map(|level| level.name.as_os_str());
                NotRemoved { call, path: above.chain(name.as_deref()).collect(), errno }
            })?;
        }
        Err(failed(Errno::NOTEMPTY))
    }

    fn is_dir(&self, name: &OsStr) -> bool {
        let found = fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW);
        found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode).is_dir())
    }

    /// Removes one name. That it is gone already is what was wanted.
    fn unlink(&self, name: &OsStr, flags: AtFlags) -> Result<()> {
        fault::gate()?;
        match fs::unlinkat(&self.0, name, flags) {
            Err(Errno::NOENT) => Ok(()),
            other => other,
        }
    }

    fn open_below(&self, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        checked(path, usize::MAX)?;
        match self.resolve(path, flags, mode, BENEATH) {
            Err(errno) if is_missing(errno) => self.walk(path, flags, mode),
            other => other,
        }
    }

    fn resolve(&self, path: &Path, flags: OFlags, mode: Mode, how: ResolveFlags) -> Result<OwnedFd> {
        retry(|| {
            fault::gate()?;
            fs::openat2(&self.0, path, flags | CLOSED, mode, how)
        })
    }

    /// The same without `openat2`: each name by itself, and none of them a link.
    fn walk(&self, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        let mut above: Option<OwnedFd> = None;
        let mut names = path.iter().peekable();
        while let Some(name) = names.next() {
            let last = names.peek().is_none();
            let (flags, mode) = if last { (flags, mode) } else { (OFlags::PATH | DIRECTORY, Mode::empty()) };
            let opened = retry(|| {
                fault::gate()?;
                fs::openat(above.as_ref().unwrap_or(&self.0), name, flags | CLOSED, mode)
            })?;
            if last {
                return Ok(opened);
            }
            above = Some(opened);
        }
        Err(Errno::INVAL)
    }

    /// A subdirectory that is not the top of a mount: `EBUSY`, as its removal would say in the end.
    fn open_to_empty(&self, name: &OsStr, device: u64) -> Result<(Dir, Identity)> {
        let path = Path::new(name);
        match self.resolve(path, DIRECTORY, Mode::empty(), BENEATH | ResolveFlags::NO_XDEV) {
            Err(Errno::XDEV) => Err(Errno::BUSY),
            Err(errno) if is_missing(errno) => {
                let dir = self.walk(path, DIRECTORY, Mode::empty())?;
                let found = identity(&dir)?;
                if found.device == device { Ok((Dir(dir), found)) } else { Err(Errno::BUSY) }
            }
            opened => opened.and_then(|dir| identity(&dir).map(|found| (Dir(dir), found))),
        }
    }

    /// Calls `each` with every name and type until it says false.
    fn each_entry(&self, mut each: impl FnMut(&OsStr, FileType) -> Result<bool>) -> Result<()> {
        fault::gate()?;
        fs::seek(&self.0, SeekFrom::Start(0))?;
        let mut buffer = Vec::with_capacity(LISTING_BYTES);
        let mut entries = RawDir::new(&self.0, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = match entry {
                // Removed by somebody else: nothing is in it any more.
                Err(Errno::NOENT) => break,
                entry => entry?,
            };
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." && !each(name, entry.file_type())? {
                break;
            }
        }
        Ok(())
    }
}

/// Before Linux 5.6 there is no `openat2`; filters of older containers refuse what they do not know. Both are answered by
/// the walk, and an `EPERM` of another reason comes back from it.
fn is_missing(errno: Errno) -> bool {
    matches!(errno, Errno::NOSYS | Errno::PERM)
}

/// At most `names_max` plain names: nothing that leads elsewhere by itself.
fn checked(path: &Path, names_max: usize) -> Result<()> {
    let names = path.as_os_str().as_bytes().split(|&byte| byte == b'/');
    let plain = names.clone().all(|name| !matches!(name, b"" | b"." | b".."));
    if plain && names.take(2).count() <= names_max { Ok(()) } else { Err(Errno::INVAL) }
}

/// One directory on the way down to the one that is being emptied.
struct Level {
    name: OsString,
    identity: Identity,
    /// `None` where a descriptor is not kept.
    dir: Option<Dir>,
    pending: Vec<OsString>,
}

/// The call that failed, why, and the name below the innermost level if it was about one.
type Stopped = (&'static str, Errno, Option<OsString>);

struct Removal<'a> {
    base: &'a Dir,
    levels: Vec<Level>,
    tries_left: usize,
}

impl Removal<'_> {
    /// Each round either goes down into a remembered subdirectory, removes what it finds, or goes up from an empty level.
    fn run(&mut self) -> std::result::Result<(), Stopped> {
        while let Some(level) = self.levels.last_mut() {
            match level.pending.pop() {
                Some(name) => self.enter(name)?,
                None if self.sweep()? => {}
                None => self.leave()?,
            }
        }
        Ok(())
    }

    fn enter(&mut self, name: OsString) -> std::result::Result<(), Stopped> {
        let depth = self.levels.len();
        let (above, device) = match self.levels.last() {
            Some(level) => (level.dir.as_ref(), level.identity.device),
            None => {
                // Parent and tree may be on two file systems only if the tree is the top of one.
                let found = identity(&self.base.0).map_err(|errno| ("fstat", errno, None))?;
                (Some(self.base), found.device)
            }
        };
        let above = above.ok_or(("openfdat", Errno::STALE, None))?;
        match above.open_to_empty(&name, device) {
            Ok((dir, identity)) => {
                if depth > HELD_MAX
                    && let Some(level) = self.levels.last_mut()
                {
                    level.dir = None;
                }
                self.levels.push(Level { name, identity, dir: Some(dir), pending: Vec::new() });
                Ok(())
            }
            Err(Errno::NOENT) => Ok(()),
            // Not a directory any more: it goes like any other name.
            Err(Errno::NOTDIR | Errno::LOOP) => above.unlink(&name, AtFlags::empty()).or_else(|errno| {
                self.tries_left = self.tries_left.saturating_sub(1);
                // And now it is one again; the next listing finds it.
                if errno == Errno::ISDIR && self.tries_left > 0 {
                    Ok(())
                } else {
                    Err(("unlinkat", errno, Some(name)))
                }
            }),
            Err(Errno::BUSY) => Err(("unlinkat", Errno::BUSY, Some(name))),
            Err(errno) => Err(("openfdat", errno, Some(name))),
        }
    }

    /// Removes what is no directory from the innermost level and remembers the directories; false when it was empty.
    fn sweep(&mut self) -> std::result::Result<bool, Stopped> {
        let pending_max = if self.levels.len() > HELD_MAX { PENDING_DEEP_MAX } else { PENDING_MAX };
        let Some(Level { dir: Some(dir), pending, .. }) = self.levels.last_mut() else { return Ok(false) };
        let (mut found, mut refused) = (false, None);
        let listed = dir.each_entry(|name, kind| {
            found = true;
            let removed = if kind == FileType::Directory {
                Err(Errno::ISDIR)
            } else {
                dir.unlink(name, AtFlags::empty())
            };
            match removed {
                Ok(()) => Ok(true),
                Err(Errno::ISDIR) => {
                    pending.push(name.to_owned());
                    Ok(pending.len() < pending_max)
                }
                Err(errno) => {
                    refused = Some(("unlinkat", errno, Some(name.to_owned())));
                    Ok(false)
                }
            }
        });
        match (refused, listed) {
            (Some(refused), _) => Err(refused),
            (None, Err(errno)) => Err(("readdirnames", errno, None)),
            (None, Ok(())) => Ok(found),
        }
    }

    /// Goes up from an empty level and removes it.
    fn leave(&mut self) -> std::result::Result<(), Stopped> {
        let Some(level) = self.levels.pop() else { return Ok(()) };
        let above = match self.levels.last_mut() {
            None => self.base,
            Some(parent) => match &mut parent.dir {
                Some(dir) => dir,
                gone @ None => {
                    let below = level.dir.as_ref().ok_or(("openfdat", Errno::STALE, None))?;
                    let found = above(below, parent.identity).map_err(|errno| ("openfdat", errno, None))?;
                    gone.insert(found)
                }
            },
        };
        match above.unlink(&level.name, AtFlags::REMOVEDIR) {
            Ok(()) => Ok(()),
            // Somebody put something into it, or something else in its place: once more.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) if self.tries_left > 0 => {
                self.tries_left -= 1;
                self.enter(level.name)
            }
            Err(errno) => Err(("unlinkat", errno, Some(level.name))),
        }
    }
}

/// The directory above, if it still is the one we came from: a directory that was moved meanwhile has another.
fn above(dir: &Dir, expected: Identity) -> Result<Dir> {
    let found = retry(|| {
        fault::gate()?;
        fs::openat(&dir.0, "..", DIRECTORY | CLOSED, Mode::empty())
    })?;
    if identity(&found)? == expected { Ok(Dir(found)) } else { Err(Errno::STALE) }
}

#[cfg(test)]
mod tests;
