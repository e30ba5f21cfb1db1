//! The system calls of a confinement, without the C library where that could lock or allocate.

use std::ffi::{CStr, c_int, c_long, c_uint, c_ulong};
use std::os::fd::RawFd;
use std::ptr;

/// A result whose error is the kernel's number, as the child reports it.
pub(super) type Outcome<T = ()> = std::result::Result<T, c_int>;

pub(super) const AT_RECURSIVE: c_uint = 0x8000;
const MOVE_MOUNT_F_EMPTY_PATH: c_uint = 0x4;
const MOVE_MOUNT_T_EMPTY_PATH: c_uint = 0x40;
const CLOSE_RANGE_UNSHARE: c_uint = 2;
const CLOSE_RANGE_CLOEXEC: c_uint = 4;
const RESOLVE_NO_MAGICLINKS: u64 = 0x02;
const RESOLVE_NO_SYMLINKS: u64 = 0x04;

fn errno() -> c_int {
    // SAFETY: no arguments; it only says where.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: the location is this thread's own.
    unsafe { *location }
}

fn number(result: c_long) -> Outcome<c_int> {
    if result < 0 { Err(errno()) } else { Ok(result as c_int) }
}

fn done(result: c_long) -> Outcome {
    number(result).map(|_| ())
}

/// Opens a path, none of whose components may be a symbolic link: such a one was put there after the plan was made.
pub(super) fn open_path(path: &CStr, flags: c_int) -> Outcome<RawFd> {
    #[repr(C)]
    struct How {
        flags: u64,
        mode: u64,
        resolve: u64,
    }
    let how = How {
        flags: u64::from((flags | libc::O_CLOEXEC).cast_unsigned()),
        mode: 0,
        resolve: RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
    };
    let size = size_of::<How>();
    // SAFETY: a valid C string and a struct of the given size, both of which outlive the call.
    number(unsafe { libc::syscall(libc::SYS_openat2, libc::AT_FDCWD, path.as_ptr(), &raw const how, size) })
}

pub(super) fn open_at(directory: RawFd, name: &CStr, flags: c_int, mode: u32) -> Outcome<RawFd> {
    let flags = flags | libc::O_CLOEXEC;
    // SAFETY: a valid C string.
    number(unsafe { libc::syscall(libc::SYS_openat, directory, name.as_ptr(), flags, mode) })
}

pub(super) fn close(fd: RawFd) {
    // SAFETY: a plain number; the child's table is its own.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

/// How the null device was opened, if it is that.
pub(super) fn null_device(fd: RawFd) -> Option<c_int> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: room for the struct.
    let got = unsafe { libc::fstat(fd, stat.as_mut_ptr()) };
    // SAFETY: plain data, zeroed before.
    let stat = unsafe { stat.assume_init() };
    let is_device = stat.st_mode & libc::S_IFMT == libc::S_IFCHR;
    if got != 0 || !is_device || stat.st_rdev != libc::makedev(1, 3) {
        return None;
    }
    // SAFETY: plain numbers.
    let flags = number(unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFL) }).ok()?;
    Some(flags & libc::O_ACCMODE)
}

/// Moves a descriptor to a number that exec keeps open.
pub(super) fn move_to(fd: RawFd, number: RawFd) -> Outcome {
    // SAFETY: plain numbers.
    let moved = done(unsafe { libc::syscall(libc::SYS_dup3, fd, number, 0) });
    close(fd);
    moved
}

/// Closes all numbers from `first` to `last`, here only: who shares the table with us keeps them.
pub(super) fn close_range(first: RawFd, last: c_uint) -> Outcome {
    // SAFETY: plain numbers.
    done(unsafe { libc::syscall(libc::SYS_close_range, first, last, CLOSE_RANGE_UNSHARE) })
}

/// Has exec close everything from `first` on.
pub(super) fn close_at_exec(first: RawFd) -> Outcome {
    // SAFETY: plain numbers.
    done(unsafe { libc::syscall(libc::SYS_close_range, first, c_uint::MAX, CLOSE_RANGE_CLOEXEC) })
}

pub(super) fn write_all(fd: RawFd, bytes: &[u8]) -> Outcome {
    // SAFETY: the buffer is valid for its length.
    let written = number(unsafe { libc::syscall(libc::SYS_write, fd, bytes.as_ptr(), bytes.len()) })?;
    if usize::try_from(written) == Ok(bytes.len()) { Ok(()) } else { Err(libc::EIO) }
}

pub(super) fn pipe() -> Outcome<(RawFd, RawFd)> {
    let mut ends: [c_int; 2] = [-1; 2];
    // SAFETY: room for two descriptors.
    done(unsafe { libc::syscall(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
    let [read, write] = ends;
    Ok((read, write))
}

/// Waits for as many bytes as there is room for, which somebody writes at once.
pub(super) fn read_all(fd: RawFd, bytes: &mut [u8]) -> Outcome {
    loop {
        // SAFETY: the buffer is valid for its length.
        let read = unsafe { libc::syscall(libc::SYS_read, fd, bytes.as_mut_ptr(), bytes.len()) };
        match number(read) {
            Err(libc::EINTR) => {}
            Ok(read) if usize::try_from(read) == Ok(bytes.len()) => return Ok(()),
            Ok(_) => return Err(libc::ECANCELED),
            Err(errno) => return Err(errno),
        }
    }
}

/// A fork; the flags say what is new for the child (namespaces) or shared with it (descriptors). 0 in it.
pub(super) fn fork(flags: u32) -> Outcome<c_int> {
    let flags = c_ulong::from(flags) | libc::SIGCHLD as c_ulong;
    let none: *mut c_int = ptr::null_mut();
    // SAFETY: without CLONE_VM the child has a copy of everything; it goes on with system calls only, as we do.
    number(unsafe { libc::syscall(libc::SYS_clone, flags, none, none, none, none) })
}

pub(super) fn set_namespace(fd: RawFd, kind: c_int) -> Outcome {
    // SAFETY: plain numbers.
    done(unsafe { libc::syscall(libc::SYS_setns, fd, kind) })
}

pub(super) fn mount(kind: Option<&CStr>, path: &CStr, flags: c_ulong, options: Option<&CStr>) -> Outcome {
    let kind = kind.map_or(ptr::null(), CStr::as_ptr);
    let options = options.map_or(ptr::null(), CStr::as_ptr);
    // SAFETY: C strings or null, which stand for "none".
    done(unsafe { libc::syscall(libc::SYS_mount, kind, path.as_ptr(), kind, flags, options) })
}

pub(super) fn bind(from: &CStr, path: &CStr) -> Outcome {
    let (kind, options): (*const u8, *const u8) = (ptr::null(), ptr::null());
    // SAFETY: C strings, or null for what a bind has no use for.
    done(unsafe {
        libc::syscall(libc::SYS_mount, from.as_ptr(), path.as_ptr(), kind, libc::MS_BIND, options)
    })
}

/// A detached copy of the tree of mounts at an opened path.
pub(super) fn clone_tree(at: RawFd) -> Outcome<RawFd> {
    let flags =
        libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | AT_RECURSIVE | libc::AT_EMPTY_PATH.cast_unsigned();
    // SAFETY: a valid C string.
    number(unsafe { libc::syscall(libc::SYS_open_tree, at, c"".as_ptr(), flags) })
}

pub(super) fn move_mount(tree: RawFd, target: RawFd) -> Outcome {
    let (empty, flags) = (c"".as_ptr(), MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
    // SAFETY: valid C strings.
    done(unsafe { libc::syscall(libc::SYS_move_mount, tree, empty, target, empty, flags) })
}

/// Sets attributes of the mount behind a descriptor, or at a path when that is `AT_FDCWD`.
pub(super) fn set_attributes(fd: RawFd, path: &CStr, attributes: u64, recursive: bool) -> Outcome {
    let set = [attributes, 0, 0, 0];
    let flags = if recursive { AT_RECURSIVE } else { 0 };
    let flags = if fd == libc::AT_FDCWD { flags } else { flags | libc::AT_EMPTY_PATH.cast_unsigned() };
    let (path, set_at, size) = (path.as_ptr(), set.as_ptr(), size_of_val(&set));
    // SAFETY: a valid C string and the kernel's struct of four numbers, with its size.
    done(unsafe { libc::syscall(libc::SYS_mount_setattr, fd, path, flags, set_at, size) })
}

/// Makes the mount behind the descriptor the root; the old one is gone from this namespace.
pub(super) fn pivot(root: RawFd) -> Outcome {
    // SAFETY: a plain number.
    done(unsafe { libc::syscall(libc::SYS_fchdir, root) })?;
    // SAFETY: valid C strings.
    done(unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) })?;
    // SAFETY: a valid C string. The old root lies on top of the new one now.
    done(unsafe { libc::syscall(libc::SYS_umount2, c".".as_ptr(), libc::MNT_DETACH) })?;
    change_directory(c"/")
}

pub(super) fn change_directory(path: &CStr) -> Outcome {
    // SAFETY: a valid C string.
    done(unsafe { libc::syscall(libc::SYS_chdir, path.as_ptr()) })
}

pub(super) fn make_directory(path: &CStr, mode: u32) -> Outcome {
    // SAFETY: a valid C string.
    done(unsafe { libc::syscall(libc::SYS_mkdirat, libc::AT_FDCWD, path.as_ptr(), mode) })
}

pub(super) fn make_link(path: &CStr, target: &CStr) -> Outcome {
    // SAFETY: valid C strings.
    done(unsafe { libc::syscall(libc::SYS_symlinkat, target.as_ptr(), libc::AT_FDCWD, path.as_ptr()) })
}

pub(super) fn umask(mask: u32) -> u32 {
    // SAFETY: a plain number.
    unsafe { libc::umask(mask) }
}

pub(super) fn prctl(option: c_int, first: c_ulong, second: c_ulong) -> Outcome {
    // SAFETY: the options used here take numbers only.
    done(unsafe { libc::syscall(libc::SYS_prctl, option, first, second, 0, 0) })
}

/// Makes these the permitted and effective capabilities, and none inheritable.
pub(crate) fn set_capabilities(mask: u32) -> Outcome {
    const VERSION_3: u32 = 0x2008_0522;
    let head = [VERSION_3, 0];
    let sets = [mask, mask, 0, 0, 0, 0];
    // SAFETY: the kernel's structs of this version: two numbers, and twice three.
    done(unsafe { libc::syscall(libc::SYS_capset, head.as_ptr(), sets.as_ptr()) })
}

pub(crate) fn join_new_keyring() -> Outcome {
    const JOIN_SESSION_KEYRING: c_int = 1;
    let anonymous: *const u8 = ptr::null();
    // SAFETY: a null name asks for a new keyring.
    match done(unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, anonymous) }) {
        // A kernel without keys has none to keep away.
        Err(libc::ENOSYS) => Ok(()),
        outcome => outcome,
    }
}

/// Lowers a limit, soft and hard.
pub(super) fn lower_limit(resource: u32, value: u64) -> Outcome {
    let (mut before, none) = ([0u64; 2], ptr::null::<u64>());
    // SAFETY: room for the kernel's struct of two numbers.
    done(unsafe { libc::syscall(libc::SYS_prlimit64, 0, resource, none, before.as_mut_ptr()) })?;
    let [soft, hard] = before;
    set_limit(resource, soft.min(value), hard.min(value))
}

pub(super) fn set_limit(resource: u32, soft: u64, hard: u64) -> Outcome {
    let (limit, none) = ([soft, hard], ptr::null_mut::<u64>());
    // SAFETY: the kernel's struct of two numbers, which outlives the call.
    done(unsafe { libc::syscall(libc::SYS_prlimit64, 0, resource, limit.as_ptr(), none) })
}

/// A new Landlock ruleset from the kernel's struct.
pub(super) fn ruleset(attributes: &[u8]) -> Outcome<RawFd> {
    let (at, size) = (attributes.as_ptr(), attributes.len());
    // SAFETY: the buffer is valid for its length; a kernel that knows a shorter struct wants the rest to be zero.
    number(unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, at, size, 0) })
}

pub(super) fn add_rule(ruleset: RawFd, path: RawFd, allowed: u64) -> Outcome {
    const PATH_BENEATH: c_int = 1;
    #[repr(C, packed)]
    struct Beneath {
        allowed: u64,
        parent: i32,
    }
    let rule = Beneath { allowed, parent: path };
    let none = 0;
    // SAFETY: the kernel's packed struct for this kind of rule, which outlives the call.
    done(unsafe { libc::syscall(libc::SYS_landlock_add_rule, ruleset, PATH_BENEATH, &raw const rule, none) })
}

pub(super) fn is_terminal(fd: RawFd) -> bool {
    // The kernel's struct is smaller.
    let mut settings = [0u64; 16];
    // SAFETY: room for more than the kernel writes.
    unsafe { libc::syscall(libc::SYS_ioctl, fd, libc::TCGETS, settings.as_mut_ptr()) == 0 }
}

pub(super) fn enforce_rules(ruleset: RawFd) -> Outcome {
    // SAFETY: plain numbers.
    done(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0) })
}

/// Installs a filter of eight-byte instructions.
pub(super) fn filter(instructions: &[u8]) -> Outcome {
    filter_with_flags(instructions, 0).map(|_| ())
}

/// Filters, and returns the descriptor from which the calls that the filter hands over are received.
#[cfg(feature = "intercept")]
pub(super) fn filter_with_listener(instructions: &[u8]) -> Outcome<std::os::fd::OwnedFd> {
    use std::os::fd::FromRawFd;
    let listener = filter_with_flags(instructions, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?;
    // SAFETY: the kernel has just opened this descriptor for us.
    Ok(unsafe { std::os::fd::OwnedFd::from_raw_fd(listener) })
}

fn filter_with_flags(instructions: &[u8], flags: c_ulong) -> Outcome<c_int> {
    #[repr(C)]
    struct Filter {
        len: u16,
        at: *const u8,
    }
    const SET_MODE_FILTER: c_int = 1;
    let len = u16::try_from(instructions.len() / 8).map_err(|_| libc::EINVAL)?;
    let filter = Filter { len, at: instructions.as_ptr() };
    // SAFETY: the kernel's struct; the instructions are valid for their count and copied by the call.
    number(unsafe { libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, flags, &raw const filter) })
}

/// Has the kernel send SIGIO when there is something to read, which does not wait from now on. Without it the end of who
/// writes has to do.
pub(super) fn signal_when_readable(fd: RawFd) {
    let flags = libc::O_ASYNC | libc::O_NONBLOCK;
    let ourselves = rustix::process::getpid().as_raw_pid();
    // SAFETY: plain numbers.
    unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_SETOWN, ourselves) };
    // SAFETY: plain numbers.
    unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_SETFL, flags) };
}

pub(super) fn lock(fd: RawFd, operation: c_int) -> Outcome {
    // SAFETY: plain numbers.
    done(unsafe { libc::syscall(libc::SYS_flock, fd, operation) })
}

/// Whether the name in the directory is the opened, empty directory that was made to be mounted upon; removes it then.
pub(super) fn remove_if_same(parent: RawFd, name: &CStr, opened: RawFd) -> Outcome {
    let identity = |fd: RawFd, path: &CStr, flags: c_int| {
        let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: room for the struct and a valid C string.
        let got = unsafe { libc::fstatat(fd, path.as_ptr(), stat.as_mut_ptr(), flags) };
        // SAFETY: plain data, zeroed before.
        let stat = unsafe { stat.assume_init() };
        number(got.into()).map(|_| (stat.st_dev, stat.st_ino, stat.st_mode))
    };
    let there = identity(parent, name, libc::AT_SYMLINK_NOFOLLOW)?;
    if there != identity(opened, c"", libc::AT_EMPTY_PATH)? || !super::is_lease_mode(there.2) {
        return Err(libc::EEXIST);
    }
    // SAFETY: a valid C string.
    done(unsafe { libc::syscall(libc::SYS_unlinkat, parent, name.as_ptr(), libc::AT_REMOVEDIR) })
}
