//! Files by descriptor: positioned reads and writes, sizes, holes, sealed memory files, locks.

use crate::{Errno, Result, fault, retry};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    self, FallocateFlags, FileType, FlockOperation, MemfdFlags, Mode, OFlags, RenameFlags, SealFlags,
    SeekFrom,
};
use std::os::fd::AsRawFd;
use std::path::Path;

/// How a file of ours is opened. All are close-on-exec and never follow a symbolic link at the last step.
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
    /// An existing program, to be executed by its descriptor. Links are followed: it may be one in /proc.
    Program,
    /// Something a client named, for reading: links are followed, and neither opening nor reading waits for a peer.
    Foreign,
    /// A terminal, for both; neither reading nor writing waits, and it does not become ours.
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
        fault::gate()?;
        fs::openat(&dir, name.as_ref(), common | flags, Mode::RUSR | Mode::WUSR)
    })
}

/// Opens a path from the root or the working directory.
pub fn open(path: impl AsRef<Path>, how: Open) -> Result<OwnedFd> {
    open_at(fs::CWD, path, how)
}

/// Whether this process could make something in a directory.
pub fn can_write(directory: &Path) -> bool {
    use rustix::fs::{Access, AtFlags};
    let wanted = Access::WRITE_OK | Access::EXEC_OK;
    fault::gate().is_ok() && fs::accessat(fs::CWD, directory, wanted, AtFlags::EACCESS).is_ok()
}

/// Names of the entries of a directory, without `.` and `..`; names that are not UTF-8 are none of ours and left out.
pub fn names(dir: impl AsFd) -> Result<Vec<String>> {
    fault::gate()?;
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

/// Opens the same once more, in the same direction, so that only this descriptor does not wait.
pub fn reopen_nonblocking(fd: impl AsFd) -> Result<OwnedFd> {
    let direction = fs::fcntl_getfl(&fd)? & OFlags::RWMODE;
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    fs::open(path, direction | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())
}

/// Writes what a descriptor that does not wait takes. `EAGAIN` when that is nothing.
pub fn write_some(fd: impl AsFd, bytes: &[u8]) -> Result<usize> {
    retry(|| {
        let wanted = fault::length(bytes.len())?;
        rustix::io::write(&fd, bytes.get(..wanted).ok_or(Errno::INVAL)?)
    })
}

/// Bytes that this user may still write to the file system of a path.
pub fn free_bytes(path: impl AsRef<Path>) -> Result<u64> {
    fault::gate()?;
    let found = fs::statvfs(path.as_ref())?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

/// Files that can still be made there; none where the file system does not count them.
pub fn free_inodes(path: impl AsRef<Path>) -> Result<Option<u64>> {
    fault::gate()?;
    let found = fs::statvfs(path.as_ref())?;
    Ok((found.f_files > 0).then_some(found.f_favail))
}

/// One positioned read; fewer bytes than asked for only at the end of the file or when the kernel says so.
pub fn read_at(file: impl AsFd, buffer: &mut [u8], offset: u64) -> Result<usize> {
    retry(|| {
        let wanted = fault::length(buffer.len())?;
        let part = buffer.get_mut(..wanted).ok_or(Errno::INVAL)?;
        rustix::io::pread(&file, part, offset)
    })
}

/// Reads until `buffer` is full or the file ends; says how much was read.
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
    fault::gate()?;
    Ok(u64::try_from(fs::fstat(file)?.st_size).unwrap_or(0))
}

/// Sets the size of a file.
pub fn set_size(file: impl AsFd, size: u64) -> Result<()> {
    retry(|| {
        fault::gate()?;
        fs::ftruncate(&file, size)
    })
}

/// Waits until the bytes of a file, and what is needed to read them again, are on the disk.
pub fn sync_data(file: impl AsFd) -> Result<()> {
    retry(|| {
        fault::gate()?;
        fs::fdatasync(&file)
    })
}

/// Waits until everything that was written to the file system of `file` is on the disk.
pub fn sync_file_system(file: impl AsFd) -> Result<()> {
    fault::gate()?;
    fs::syncfs(file)
}

/// Waits until the names in a directory are on the disk.
pub fn sync_names(dir: impl AsFd) -> Result<()> {
    retry(|| {
        fault::gate()?;
        fs::fsync(&dir)
    })
}

/// The position of an open file description, which every process that shares it sees.
pub fn position(file: impl AsFd) -> Result<u64> {
    fault::gate()?;
    fs::tell(file)
}

/// Moves the position of an open file description.
pub fn set_position(file: impl AsFd, position: u64) -> Result<()> {
    fault::gate()?;
    fs::seek(file, SeekFrom::Start(position)).map(|_| ())
}

/// Takes disk blocks for the first `len` bytes, while the file keeps its size. A file system that cannot do that takes none.
pub fn reserve(file: impl AsFd, len: u64) -> Result<()> {
    let reserved = retry(|| {
        fault::gate()?;
        fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, len)
    });
    match reserved {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        reserved => reserved,
    }
}

/// Gives the disk blocks of `offset..offset + len` back while the file keeps its size.
pub fn punch_hole(file: impl AsFd, offset: u64, len: u64) -> Result<()> {
    retry(|| {
        fault::gate()?;
        fs::fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)
    })
}

/// Gives a name below a directory to a file that has another one there; `EEXIST` when it is taken.
pub fn rename_at(dir: impl AsFd, from: &str, to: &str) -> Result<()> {
    retry(|| {
        fault::gate()?;
        fs::renameat_with(&dir, from, &dir, to, RenameFlags::NOREPLACE)
    })
}

/// Takes the exclusive lock of a file without waiting; false when another open file description holds it.
pub fn try_lock(file: impl AsFd) -> Result<bool> {
    match retry(|| fs::flock(&file, FlockOperation::NonBlockingLockExclusive)) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// A memory file with these contents that can never change again: safe to read for a peer that does not trust us.
pub fn sealed_memory(name: &str, contents: &[u8]) -> Result<OwnedFd> {
    fault::gate()?;
    let file = fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    write_all_at(&file, contents, 0)?;
    fs::fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// The whole of a file of at most `limit` bytes; larger ones are refused with `EFBIG`.
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
    fault::gate()?;
    rustix::io::fcntl_dupfd_cloexec(fd, 3)
}

/// Chooses whether `fd` survives `execve`.
pub fn set_inherited(fd: impl AsFd, inherited: bool) -> Result<()> {
    let flags = if inherited { rustix::io::FdFlags::empty() } else { rustix::io::FdFlags::CLOEXEC };
    rustix::io::fcntl_setfd(fd, flags)
}

/// Makes reads and writes on this open file description return `EAGAIN` instead of waiting.
pub fn set_nonblocking(fd: impl AsFd) -> Result<()> {
    let flags = fs::fcntl_getfl(&fd)?;
    fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)
}

/// Takes ownership of a descriptor this process was started with; `EBADF` when it is not open.
pub fn inherited(number: i32) -> Result<OwnedFd> {
    use std::os::fd::FromRawFd;
    if number < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the number is not negative and is borrowed only for the fcntl call, which fails when it is not open.
    let probe = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_setfd(probe, rustix::io::FdFlags::CLOEXEC)?;
    // SAFETY: the descriptor is open, and callers name only numbers that a parent passed to this process for them.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Fills `buffer` from the page cache; `EAGAIN` rather than a wait for the disk. Fewer bytes only at the end of the file.
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
            // Where the file system cannot say, waiting is all there is.
            Err(Errno::OPNOTSUPP) => return read_full_at(&file, buffer, offset),
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

/// Marks every descriptor from `first` on as closed by exec: what a parent left open is not for our children.
pub fn close_on_exec_from(first: u32) -> Result<()> {
    // SAFETY: plain numbers; nothing is closed now.
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

/// The same before Linux 5.11, which has no such flag: one call for each descriptor in `/proc/self/fd`. Not atomic: no
/// other thread may open anything meanwhile.
fn close_listed_on_exec(first: u32) -> Result<()> {
    let listed = std::fs::read_dir("/proc/self/fd");
    let listed = listed.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    // Collected first: the directory itself is open while it is read.
    let numbers: Vec<libc::c_int> =
        listed.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| number.unsigned_abs() >= first) {
        // SAFETY: plain numbers; what is not open any more is an error that changes nothing.
        let marked = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
        match crate::signal::last_errno() {
            errno if marked != 0 && errno != Errno::BADF => return Err(errno),
            _ => {}
        }
    }
    Ok(())
}

/// Makes standard input an empty one.
pub fn empty_stdin() -> Result<()> {
    rustix::stdio::dup2_stdin(open("/dev/null", Open::Read)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_getfd, fcntl_setfd};

    #[test]
    fn without_the_flag_of_linux_5_11_every_descriptor_from_a_number_on_is_still_closed_by_exec() {
        // Far above those of tests that run beside this one.
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
}
