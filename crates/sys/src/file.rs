//! Files by descriptor: opening, positioned reads and writes, sizes, holes, memfds, locks, inheritance across
//! exec.

use crate::{Errno, Result, fault, retry};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    self, FallocateFlags, FileType, FlockOperation, MemfdFlags, Mode, OFlags, RenameFlags, SealFlags,
    SeekFrom,
};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, RawFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

const STDERR: RawFd = 2;

/// How to open a file. All modes are close-on-exec and do not follow a symbolic link in the last component,
/// unless stated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// Existing, for reading.
    Read,
    /// Existing, for reading and writing.
    ReadWrite,
    /// Created if missing, for reading and writing, owner only.
    Create,
    /// Created if missing, for writing at the end, owner only.
    Append,
    /// Created empty, also when it exists, for writing, owner only.
    Replace,
    /// An existing directory.
    Directory,
    /// An existing program, to be executed by its descriptor. Follows links: it may be a magic link of /proc.
    Program,
    /// A path that a client named, for reading. Follows links; neither the open nor reads block on a peer.
    Foreign,
    /// A terminal, for reading and writing, non-blocking. It does not become the controlling terminal.
    Terminal,
}

/// Opens `name` below the directory `dir`.
pub fn open_at(dir: impl AsFd, name: impl AsRef<Path>, how: Open) -> Result<OwnedFd> {
    let common = match how {
        Open::Program | Open::Foreign | Open::Terminal => OFlags::CLOEXEC,
        _ => OFlags::CLOEXEC | OFlags::NOFOLLOW,
    };
    let flags = match how {
        Open::Read | Open::Program => OFlags::RDONLY,
        Open::Foreign => OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY,
        Open::Terminal => OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY,
        Open::ReadWrite => OFlags::RDWR,
        Open::Create => OFlags::RDWR | OFlags::CREATE,
        Open::Append => OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND,
        Open::Replace => OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC,
        Open::Directory => OFlags::RDONLY | OFlags::DIRECTORY,
    };
    retry(|| {
        fault::failpoint()?;
        fs::openat(&dir, name.as_ref(), common | flags, Mode::RUSR | Mode::WUSR)
    })
}

/// Opens a path from the root or the working directory.
pub fn open(path: impl AsRef<Path>, how: Open) -> Result<OwnedFd> {
    open_at(fs::CWD, path, how)
}

/// Whether this process could create a file in a directory.
pub fn can_write(directory: &Path) -> bool {
    use rustix::fs::{Access, AtFlags};
    let wanted = Access::WRITE_OK | Access::EXEC_OK;
    fault::failpoint().is_ok() && fs::accessat(fs::CWD, directory, wanted, AtFlags::EACCESS).is_ok()
}

/// Names of the entries of a directory, without `.` and `..`. Outpost creates UTF-8 names only, so others are
/// skipped.
pub fn names(dir: impl AsFd) -> Result<Vec<String>> {
    fault::failpoint()?;
    let mut names = Vec::new();
    for entry in fs::Dir::read_from(dir)? {
        if let Ok(name) = entry?.file_name().to_str()
            && name != "."
            && name != ".."
        {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

pub fn is_socket(fd: impl AsFd) -> Result<bool> {
    Ok(FileType::from_raw_mode(fs::fstat(fd)?.st_mode) == FileType::Socket)
}

pub fn is_pipe(fd: impl AsFd) -> Result<bool> {
    Ok(FileType::from_raw_mode(fs::fstat(fd)?.st_mode) == FileType::Fifo)
}

/// Opens a new, non-blocking file description of the same file and direction. The original stays blocking.
pub fn reopen_nonblocking(fd: impl AsFd) -> Result<OwnedFd> {
    let direction = fs::fcntl_getfl(&fd)? & OFlags::RWMODE;
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    fs::open(path, direction | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())
}

/// Writes as much as a non-blocking descriptor accepts. `EAGAIN` when it accepts nothing.
pub fn write_some(fd: impl AsFd, bytes: &[u8]) -> Result<usize> {
    retry(|| {
        let wanted = fault::length(bytes.len())?;
        rustix::io::write(&fd, bytes.get(..wanted).ok_or(Errno::INVAL)?)
    })
}

/// Bytes that this user may still write to the file system of a path.
pub fn free_bytes(path: impl AsRef<Path>) -> Result<u64> {
    fault::failpoint()?;
    let found = fs::statvfs(path.as_ref())?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

/// Inodes that are still free; `None` where the file system does not count them.
pub fn free_inodes(path: impl AsRef<Path>) -> Result<Option<u64>> {
    fault::failpoint()?;
    let found = fs::statvfs(path.as_ref())?;
    Ok((found.f_files > 0).then_some(found.f_favail))
}

/// One positioned read. May return fewer bytes than requested.
pub fn read_at(file: impl AsFd, buffer: &mut [u8], offset: u64) -> Result<usize> {
    retry(|| {
        let wanted = fault::length(buffer.len())?;
        let part = buffer.get_mut(..wanted).ok_or(Errno::INVAL)?;
        rustix::io::pread(&file, part, offset)
    })
}

/// Reads until `buffer` is full or the file ends. Returns the number of bytes read.
pub fn read_full_at(file: impl AsFd, buffer: &mut [u8], offset: u64) -> Result<usize> {
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match read_at(&file, rest, offset + done as u64)? {
            0 => break,
            read => done += read,
        }
    }
    Ok(done)
}

/// Writes all of `bytes` at `offset`. On an error a prefix may have been written.
pub fn write_all_at(file: impl AsFd, mut bytes: &[u8], mut offset: u64) -> Result<()> {
    while !bytes.is_empty() {
        let written = retry(|| {
            let wanted = fault::length(bytes.len())?;
            rustix::io::pwrite(&file, bytes.get(..wanted).ok_or(Errno::INVAL)?, offset)
        })?;
        if written == 0 {
            return Err(Errno::NOSPC);
        }
        bytes = bytes.get(written..).unwrap_or_default();
        offset += written as u64;
    }
    Ok(())
}

/// The size of a file in bytes.
pub fn size(file: impl AsFd) -> Result<u64> {
    fault::failpoint()?;
    Ok(u64::try_from(fs::fstat(file)?.st_size).unwrap_or(0))
}

/// Sets the size of a file.
pub fn set_size(file: impl AsFd, size: u64) -> Result<()> {
    retry(|| {
        fault::failpoint()?;
        fs::ftruncate(&file, size)
    })
}

/// fdatasync(2): waits until the contents of a file are on disk.
pub fn sync_data(file: impl AsFd) -> Result<()> {
    retry(|| {
        fault::failpoint()?;
        fs::fdatasync(&file)
    })
}

/// syncfs(2): waits until everything written to the file system of `file` is on disk.
pub fn sync_file_system(file: impl AsFd) -> Result<()> {
    fault::failpoint()?;
    fs::syncfs(file)
}

/// fsync(2) of a directory: waits until its entries are on disk.
pub fn sync_directory(dir: impl AsFd) -> Result<()> {
    retry(|| {
        fault::failpoint()?;
        fs::fsync(&dir)
    })
}

/// The position of an open file description. All processes that share the description see it.
pub fn position(file: impl AsFd) -> Result<u64> {
    fault::failpoint()?;
    fs::tell(file)
}

/// Moves the position of an open file description.
pub fn set_position(file: impl AsFd, position: u64) -> Result<()> {
    fault::failpoint()?;
    fs::seek(file, SeekFrom::Start(position)).map(|_| ())
}

/// Allocates disk blocks for the first `len` bytes without a change of the file size. Does nothing where the
/// file system cannot.
pub fn reserve(file: impl AsFd, len: u64) -> Result<()> {
    let reserved = retry(|| {
        fault::failpoint()?;
        fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, len)
    });
    match reserved {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        reserved => reserved,
    }
}

/// Frees the disk blocks of `offset..offset + len` without a change of the file size.
pub fn punch_hole(file: impl AsFd, offset: u64, len: u64) -> Result<()> {
    retry(|| {
        fault::failpoint()?;
        fs::fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)
    })
}

/// Renames a file within a directory; `EEXIST` when the new name is taken.
pub fn rename_at(dir: impl AsFd, from: &str, to: &str) -> Result<()> {
    retry(|| {
        fault::failpoint()?;
        fs::renameat_with(&dir, from, &dir, to, RenameFlags::NOREPLACE)
    })
}

/// Takes the exclusive lock of a file without blocking. Returns false when another open file description
/// holds it.
pub fn try_lock(file: impl AsFd) -> Result<bool> {
    match retry(|| fs::flock(&file, FlockOperation::NonBlockingLockExclusive)) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// A memfd with these contents that is sealed against every change, so that the receiver need not trust the
/// sender.
pub fn sealed_memory(name: &str, contents: &[u8]) -> Result<OwnedFd> {
    fault::failpoint()?;
    let file = fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    write_all_at(&file, contents, 0)?;
    fs::fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// The contents of a file of at most `limit` bytes; `EFBIG` for a larger one.
pub fn read_whole(file: impl AsFd, limit: u64) -> Result<Vec<u8>> {
    let size = size(&file)?;
    if size > limit {
        return Err(Errno::FBIG);
    }
    let size = usize::try_from(size).map_err(|_| Errno::FBIG)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size).map_err(|_| Errno::NOMEM)?;
    bytes.resize(size, 0);
    let read = read_full_at(&file, &mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Another descriptor for the same open file description, close-on-exec.
pub fn duplicate(fd: impl AsFd) -> Result<OwnedFd> {
    fault::failpoint()?;
    rustix::io::fcntl_dupfd_cloexec(fd, 3)
}

/// Sets whether `fd` survives `execve`.
pub fn set_inherited(fd: impl AsFd, inherited: bool) -> Result<()> {
    let flags = if inherited { rustix::io::FdFlags::empty() } else { rustix::io::FdFlags::CLOEXEC };
    rustix::io::fcntl_setfd(fd, flags)
}

/// Makes this open file description non-blocking.
pub fn set_nonblocking(fd: impl AsFd) -> Result<()> {
    let flags = fs::fcntl_getfl(&fd)?;
    fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)
}

/// Serializes [`inherited`], so that two threads cannot take the same descriptor.
static TAKING_INHERITED: Mutex<()> = Mutex::new(());

/// Takes ownership of a descriptor that this process inherited across exec. `EBADF` unless it is open and not
/// close-on-exec.
///
/// Everything that this program opens is close-on-exec, so a descriptor without that flag came from the parent and has no
/// owner yet. It gets the flag here, so it can be taken only once. The standard descriptors belong to the standard library;
/// they are duplicated.
pub fn inherited(number: RawFd) -> Result<OwnedFd> {
    use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
    let _guard = TAKING_INHERITED.lock().unwrap_or_else(PoisonError::into_inner);
    if number < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the number is not negative. It is borrowed for the calls below, which fail if it is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    if fcntl_getfd(borrowed)?.contains(FdFlags::CLOEXEC) {
        return Err(Errno::BADF);
    }
    if number <= STDERR {
        return duplicate(borrowed);
    }
    fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
    // SAFETY: the descriptor is open. It was not close-on-exec, so no value of this process owned it; now it is, so no
    // second call can take it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Gives up ownership of a descriptor so that [`inherited`] can take it, in this process or after an exec.
pub fn into_inherited(fd: impl Into<OwnedFd>) -> Result<RawFd> {
    let fd = fd.into();
    set_inherited(&fd, true)?;
    Ok(fd.into_raw_fd())
}

/// Reads until `buffer` is full or the file ends, from the page cache only. `EAGAIN` instead of disk I/O.
pub fn read_cached_at(file: impl AsFd, buffer: &mut [u8], offset: u64) -> Result<usize> {
    use rustix::io::{ReadWriteFlags, preadv2};
    use std::io::IoSliceMut;
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let at = offset + done as u64;
        let read = retry(|| {
            let wanted = fault::length(rest.len())?;
            let part = rest.get_mut(..wanted).ok_or(Errno::INVAL)?;
            preadv2(&file, &mut [IoSliceMut::new(part)], at, ReadWriteFlags::NOWAIT)
        });
        match read {
            Ok(0) => break,
            Ok(read) => done += read,
            // The file system does not support RWF_NOWAIT: read with blocking.
            Err(Errno::OPNOTSUPP) => return read_full_at(&file, buffer, offset),
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

/// Sets close-on-exec on every descriptor from `first` on, so that children do not inherit what a parent left
/// open.
pub fn close_on_exec_from(first: u32) -> Result<()> {
    // SAFETY: close_range takes numbers only, and with this flag closes nothing.
    let marked =
        unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    match marked {
        0 => Ok(()),
        _ => match crate::signal::last_errno() {
            Errno::INVAL => close_listed_on_exec(first),
            errno => Err(errno),
        },
    }
}

/// The same before Linux 5.11, which lacks the flag: one call per descriptor in `/proc/self/fd`. Not atomic:
/// no other thread may open a descriptor meanwhile.
fn close_listed_on_exec(first: u32) -> Result<()> {
    let listed = std::fs::read_dir("/proc/self/fd");
    let listed = listed.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    // Collected first: read_dir has the directory itself open.
    let numbers: Vec<libc::c_int> =
        listed.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| number.unsigned_abs() >= first) {
        // SAFETY: fcntl takes numbers only. `EBADF` for a closed descriptor changes nothing.
        let marked = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
        match crate::signal::last_errno() {
            errno if marked != 0 && errno != Errno::BADF => return Err(errno),
            _ => {}
        }
    }
    Ok(())
}

/// Redirects standard input to `/dev/null`.
pub fn redirect_stdin_to_null() -> Result<()> {
    rustix::stdio::dup2_stdin(open("/dev/null", Open::Read)?)
}

/// Rotates a log file that is larger than this to `….log.1`. Several processes append to one open file, so it is copied
/// and truncated, not renamed. A line that is written meanwhile may be lost.
pub fn rotate_if_large(file: &Path, bytes_max: u64) {
    if file.metadata().is_ok_and(|found| found.len() > bytes_max) {
        let _no_room = std::fs::copy(file, file.with_extension("log.1"));
        let _gone = std::fs::File::options().write(true).open(file).and_then(|file| file.set_len(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_getfd, fcntl_setfd};

    #[test]
    fn without_the_flag_of_linux_5_11_every_descriptor_from_a_number_on_is_still_closed_by_exec() {
        // Far above the descriptors of tests that run concurrently.
        const FIRST: u32 = 700;
        let null = open("/dev/null", Open::Read).unwrap();
        let below = fcntl_dupfd_cloexec(&null, 650).unwrap();
        let above = fcntl_dupfd_cloexec(&null, 710).unwrap();
        for fd in [&below, &above] {
            fcntl_setfd(fd, FdFlags::empty()).unwrap();
        }
        close_listed_on_exec(FIRST).unwrap();
        assert_eq!(fcntl_getfd(&above), Ok(FdFlags::CLOEXEC));
        assert_eq!(fcntl_getfd(&below), Ok(FdFlags::empty()));
    }

    #[test]
    fn a_large_log_file_is_rotated() {
        let file = std::env::temp_dir().join(format!("outpost-sys-rotated-{}.log", std::process::id()));
        std::fs::write(&file, "0123456789").unwrap();
        rotate_if_large(&file, 10);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "0123456789", "not larger than allowed");
        rotate_if_large(&file, 9);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "");
        let before = file.with_extension("log.1");
        assert_eq!(std::fs::read_to_string(&before).unwrap(), "0123456789");
        std::fs::remove_file(file).unwrap();
        std::fs::remove_file(before).unwrap();
    }
}
