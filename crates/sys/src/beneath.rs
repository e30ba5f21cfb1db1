//! Directories by descriptor: operations below a [`Dir`] never resolve to a path outside of it.
//!
//! A process of the same user may replace a directory by a symbolic link at any moment. So every operation
//! starts at a descriptor and follows no link: by `openat2`, or without it one component at a time with
//! `O_NOFOLLOW`, which is as safe.

use crate::{Errno, Result, fault, retry};
use rustix::fd::OwnedFd;
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags, SeekFrom};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// No symbolic link in any component, no magic link of /proc, no `..` out of the directory.
const BENEATH: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);
const CLOEXEC_NOFOLLOW: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW);

/// Attempts to remove a name that another process keeps recreating.
const TRIES_MAX: usize = 100;
/// Levels of a tree whose descriptors stay open during its removal. Deeper levels are reopened through `..`.
/// The value is small in tests, so that fault injection reaches every call of that path.
const HELD_MAX: usize = if cfg!(test) { 3 } else { 64 };
/// Subdirectories remembered per level. Deep levels remember fewer, to bound memory.
const PENDING_MAX: usize = 256;
const PENDING_DEEP_MAX: usize = 8;
const LISTING_BYTES: usize = 32 << 10;

/// Device and inode of a file. Unique while the file is open or linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl From<fs::Stat> for FileId {
    // The field types differ by architecture.
    #[allow(clippy::useless_conversion)]
    fn from(stat: fs::Stat) -> FileId {
        FileId { device: stat.st_dev.into(), inode: stat.st_ino.into() }
    }
}

/// The device and inode of an open file.
pub fn file_id(fd: impl rustix::fd::AsFd) -> Result<FileId> {
    fault::failpoint()?;
    fs::fstat(fd).map(FileId::from)
}

/// Why a tree is still there: the failed call and its path, relative to the directory in which the removal
/// started.
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
    /// Opens `path` with links followed. For paths of the caller's own. The path may be unreadable or no
    /// directory; the first operation on it reports that.
    pub fn at(path: &Path) -> Result<Dir> {
        retry(|| {
            fault::failpoint()?;
            fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map(Dir)
        })
    }

    /// An existing directory, any number of names below this one.
    pub fn open_dir(&self, path: &Path) -> Result<Dir> {
        self.open_below(path, DIRECTORY, Mode::empty()).map(Dir)
    }

    /// Creates a directory of mode 0700, whatever the umask. `EEXIST` when the name is taken.
    pub fn make_dir(&self, name: &OsStr) -> Result<Dir> {
        check_names(Path::new(name), 1)?;
        fault::failpoint()?;
        fs::mkdirat(&self.0, name, Mode::RWXU)?;
        let dir = self.open_dir(Path::new(name))?;
        fault::failpoint()?;
        fs::fchmod(&dir.0, Mode::RWXU)?;
        Ok(dir)
    }

    /// Creates an empty file of mode 0600 for writing, in place of an existing file, link or FIFO. `EISDIR`
    /// for a directory.
    pub fn create_file(&self, name: &OsStr) -> Result<OwnedFd> {
        check_names(Path::new(name), 1)?;
        // O_EXCL: the opened file is new. A link, hard link or FIFO planted by another process is replaced,
        // not opened.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        for _ in 0..TRIES_MAX {
            match self.open_below(Path::new(name), flags, Mode::RUSR | Mode::WUSR) {
                Err(Errno::EXIST) => self.unlink(name, AtFlags::empty())?,
                Err(errno) => return Err(errno),
                Ok(file) => {
                    fault::failpoint()?;
                    fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
                    return Ok(file);
                }
            }
        }
        Err(Errno::EXIST)
    }

    /// Creates an empty file of mode 0600 for writing; `EEXIST` when the name is taken, also by a link.
    pub fn create_new_file(&self, name: &OsStr) -> Result<OwnedFd> {
        check_names(Path::new(name), 1)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        self.open_below(Path::new(name), flags, Mode::RUSR | Mode::WUSR)
    }

    /// Removes a name that is not a directory. A missing name is success.
    pub fn remove_file(&self, name: &OsStr) -> Result<()> {
        check_names(Path::new(name), 1)?;
        self.unlink(name, AtFlags::empty())
    }

    /// Opens a name of this directory for reading, with links followed. Does not block on a FIFO without a
    /// writer.
    pub fn open_any(&self, name: &OsStr) -> Result<OwnedFd> {
        check_names(Path::new(name), 1)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        retry(|| {
            fault::failpoint()?;
            fs::openat(&self.0, name, flags, Mode::empty())
        })
    }

    /// Removes a name if it still resolves to `file`, links followed. Returns whether it did.
    pub fn remove_same(&self, name: &OsStr, file: FileId) -> Result<bool> {
        check_names(Path::new(name), 1)?;
        fault::failpoint()?;
        match fs::statat(&self.0, name, AtFlags::empty()) {
            Ok(stat) if FileId::from(stat) == file => self.unlink(name, AtFlags::empty()).map(|()| true),
            Ok(_) | Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Whether the directory has no entries.
    pub fn is_empty(&self) -> Result<bool> {
        let mut empty = true;
        self.each_entry(|_, _| {
            empty = false;
            Ok(false)
        })?;
        Ok(empty)
    }

    /// Removes `name` and everything below it. Links are removed, not followed. Mount points are kept
    /// (`EBUSY`; without `openat2` only those of another file system are recognised). Stops at the first
    /// failure. Uses no recursion and a bounded number of descriptors, whatever the depth.
    pub fn remove_tree(&self, name: &OsStr) -> std::result::Result<(), NotRemoved> {
        let failed = |errno| NotRemoved { call: "unlinkat", path: name.into(), errno };
        check_names(Path::new(name), 1).map_err(failed)?;
        let mut removal = Removal { base: self, levels: Vec::new(), tries_left: TRIES_MAX };
        for _ in 0..TRIES_MAX {
            match self.unlink(name, AtFlags::empty()) {
                Err(Errno::ISDIR) => {}
                // A directory that cannot be removed may still be emptied. The first refusal is the one
                // reported.
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

    /// Removes one name. A missing name is success.
    fn unlink(&self, name: &OsStr, flags: AtFlags) -> Result<()> {
        fault::failpoint()?;
        match fs::unlinkat(&self.0, name, flags) {
            Err(Errno::NOENT) => Ok(()),
            other => other,
        }
    }

    fn open_below(&self, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        check_names(path, usize::MAX)?;
        match self.resolve(path, flags, mode, BENEATH) {
            Err(errno) if is_missing(errno) => self.walk(path, flags, mode),
            other => other,
        }
    }

    fn resolve(&self, path: &Path, flags: OFlags, mode: Mode, resolve: ResolveFlags) -> Result<OwnedFd> {
        retry(|| {
            fault::failpoint()?;
            fs::openat2(&self.0, path, flags | CLOEXEC_NOFOLLOW, mode, resolve)
        })
    }

    /// The same without `openat2`: opens one component at a time, none of which may be a link.
    fn walk(&self, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        let mut above: Option<OwnedFd> = None;
        let mut names = path.iter().peekable();
        while let Some(name) = names.next() {
            let last = names.peek().is_none();
            let (flags, mode) = if last { (flags, mode) } else { (OFlags::PATH | DIRECTORY, Mode::empty()) };
            let opened = retry(|| {
                fault::failpoint()?;
                fs::openat(above.as_ref().unwrap_or(&self.0), name, flags | CLOEXEC_NOFOLLOW, mode)
            })?;
            if last {
                return Ok(opened);
            }
            above = Some(opened);
        }
        Err(Errno::INVAL)
    }

    /// Opens a subdirectory that is not a mount point. `EBUSY` for a mount point, as its removal would fail
    /// in the end.
    fn open_to_empty(&self, name: &OsStr, device: u64) -> Result<(Dir, FileId)> {
        let path = Path::new(name);
        match self.resolve(path, DIRECTORY, Mode::empty(), BENEATH | ResolveFlags::NO_XDEV) {
            Err(Errno::XDEV) => Err(Errno::BUSY),
            Err(errno) if is_missing(errno) => {
                let dir = self.walk(path, DIRECTORY, Mode::empty())?;
                let found = file_id(&dir)?;
                if found.device == device { Ok((Dir(dir), found)) } else { Err(Errno::BUSY) }
            }
            opened => opened.and_then(|dir| file_id(&dir).map(|found| (Dir(dir), found))),
        }
    }

    /// Calls `each` with every name and type until it returns false.
    fn each_entry(&self, mut each: impl FnMut(&OsStr, FileType) -> Result<bool>) -> Result<()> {
        fault::failpoint()?;
        fs::seek(&self.0, SeekFrom::Start(0))?;
        let mut buffer = Vec::with_capacity(LISTING_BYTES);
        let mut entries = RawDir::new(&self.0, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = match entry {
                // Another process removed the directory, so it is empty.
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

/// Whether `openat2` is unavailable: absent before Linux 5.6, refused by seccomp filters of older containers.
/// The fallback reports an `EPERM` that has another cause.
fn is_missing(errno: Errno) -> bool {
    matches!(errno, Errno::NOSYS | Errno::PERM)
}

/// Accepts at most `names_max` components, none of them empty, `.` or `..`.
fn check_names(path: &Path, names_max: usize) -> Result<()> {
    let names = path.as_os_str().as_bytes().split(|&byte| byte == b'/');
    let plain = names.clone().all(|name| !matches!(name, b"" | b"." | b".."));
    if plain && names.take(2).count() <= names_max { Ok(()) } else { Err(Errno::INVAL) }
}

/// One directory on the path from the base to the directory that is being emptied.
struct Level {
    name: OsString,
    id: FileId,
    /// `None` when the descriptor was closed to stay below [`HELD_MAX`].
    dir: Option<Dir>,
    pending: Vec<OsString>,
}

/// The failed call, its error, and the name below the innermost level if the call was about one.
type Stopped = (&'static str, Errno, Option<OsString>);

struct Removal<'a> {
    base: &'a Dir,
    levels: Vec<Level>,
    tries_left: usize,
}

impl Removal<'_> {
    /// Each round enters a remembered subdirectory, removes the files of the innermost level, or leaves an
    /// empty level.
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
            Some(level) => (level.dir.as_ref(), level.id.device),
            None => {
                // Base and tree differ in device only if the tree is a mount point.
                let found = file_id(&self.base.0).map_err(|errno| ("fstat", errno, None))?;
                (Some(self.base), found.device)
            }
        };
        let above = above.ok_or(("openfdat", Errno::STALE, None))?;
        match above.open_to_empty(&name, device) {
            Ok((dir, id)) => {
                if depth > HELD_MAX
                    && let Some(level) = self.levels.last_mut()
                {
                    level.dir = None;
                }
                self.levels.push(Level { name, id, dir: Some(dir), pending: Vec::new() });
                Ok(())
            }
            Err(Errno::NOENT) => Ok(()),
            // No longer a directory: unlink it like a file.
            Err(Errno::NOTDIR | Errno::LOOP) => above.unlink(&name, AtFlags::empty()).or_else(|errno| {
                self.tries_left = self.tries_left.saturating_sub(1);
                // A directory again: the next listing finds it.
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

    /// Unlinks the files of the innermost level and remembers its subdirectories. Returns false if the level
    /// was empty.
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

    /// Removes the empty innermost level and returns to its parent.
    fn leave(&mut self) -> std::result::Result<(), Stopped> {
        let Some(level) = self.levels.pop() else { return Ok(()) };
        let above = match self.levels.last_mut() {
            None => self.base,
            Some(parent) => match &mut parent.dir {
                Some(dir) => dir,
                gone @ None => {
                    let below = level.dir.as_ref().ok_or(("openfdat", Errno::STALE, None))?;
                    let found = open_parent(below, parent.id).map_err(|errno| ("openfdat", errno, None))?;
                    gone.insert(found)
                }
            },
        };
        match above.unlink(&level.name, AtFlags::REMOVEDIR) {
            Ok(()) => Ok(()),
            // Another process added an entry or replaced the directory: retry.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) if self.tries_left > 0 => {
                self.tries_left -= 1;
                self.enter(level.name)
            }
            Err(errno) => Err(("unlinkat", errno, Some(level.name))),
        }
    }
}

/// Opens `..`, and checks that it is the expected parent. A directory that was moved meanwhile has another
/// parent.
fn open_parent(dir: &Dir, expected: FileId) -> Result<Dir> {
    let found = retry(|| {
        fault::failpoint()?;
        fs::openat(&dir.0, "..", DIRECTORY | CLOEXEC_NOFOLLOW, Mode::empty())
    })?;
    if file_id(&found)? == expected { Ok(Dir(found)) } else { Err(Errno::STALE) }
}

#[cfg(test)]
mod tests;
