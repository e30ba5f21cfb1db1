//! The system calls of the sandbox interpreter, async-signal-safe: none of them takes a lock or allocates.

use crate::Errno;
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, ResolveFlags};
use rustix::pipe::PipeFlags;
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::ffi::{CStr, c_int, c_long, c_uint, c_ulong};
use std::os::fd::{BorrowedFd, IntoRawFd, RawFd};
use std::ptr;

/// A result whose error is an errno, as the child reports it.
pub(super) type Outcome<T = ()> = std::result::Result<T, c_int>;

pub(super) const AT_RECURSIVE: c_uint = 0x8000;
const MOVE_MOUNT_F_EMPTY_PATH: c_uint = 0x4;
const MOVE_MOUNT_T_EMPTY_PATH: c_uint = 0x40;
const CLOSE_RANGE_UNSHARE: c_uint = 2;
const CLOSE_RANGE_CLOEXEC: c_uint = 4;
const NULL_DEVICE: (u32, u32) = (1, 3);

fn number(result: c_long) -> Outcome<c_int> {
    if result < 0 { Err(crate::signal::last_errno().raw_os_error()) } else { Ok(result as c_int) }
}

fn done(result: c_long) -> Outcome {
    number(result).map(|_| ())
}

fn raw<T>(result: crate::Result<T>) -> Outcome<T> {
    result.map_err(Errno::raw_os_error)
}

/// Borrows a register's descriptor for one call. `EBADF` for an empty register.
pub(super) fn borrow<'fd>(fd: RawFd) -> Outcome<BorrowedFd<'fd>> {
    match fd {
        libc::AT_FDCWD => Ok(rustix::fs::CWD),
        ..0 => Err(libc::EBADF),
        // SAFETY: the number is not negative. The callers are child processes: they own all their descriptors, and
        // close one only by its register. A closed number makes the call fail with `EBADF`.
        _ => Ok(unsafe { BorrowedFd::borrow_raw(fd) }),
    }
}

/// Opens a path without symbolic links. A link in it was created after the plan was made.
pub(super) fn open_path(path: &CStr, flags: OFlags) -> Outcome<RawFd> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = flags | OFlags::CLOEXEC;
    raw(rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), resolve)).map(IntoRawFd::into_raw_fd)
}

pub(super) fn open_at(directory: RawFd, name: &CStr, flags: OFlags, mode: u32) -> Outcome<RawFd> {
    let (flags, mode) = (flags | OFlags::CLOEXEC, Mode::from_raw_mode(mode));
    raw(rustix::fs::openat(borrow(directory)?, name, flags, mode)).map(IntoRawFd::into_raw_fd)
}

pub(super) fn close(fd: RawFd) {
    // SAFETY: close takes a number only. The caller does not use the number afterwards. While init and the command share
    // a descriptor table, init closes only descriptors that the command does not use, and the command closes none.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

/// The access mode of a descriptor if it is the null device.
pub(super) fn null_device(fd: RawFd) -> Option<OFlags> {
    let fd = borrow(fd).ok()?;
    let stat = rustix::fs::fstat(fd).ok()?;
    let device = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    let is_null = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && device == NULL_DEVICE;
    let flags = is_null.then(|| rustix::fs::fcntl_getfl(fd))?.ok()?;
    Some(flags & OFlags::RWMODE)
}

/// Moves a descriptor to a number that exec keeps open.
pub(super) fn move_to(fd: RawFd, number: RawFd) -> Outcome {
    // SAFETY: dup3 takes numbers only. The target is a standard descriptor, which no value of the child owns.
    let moved = done(unsafe { libc::syscall(libc::SYS_dup3, fd, number, 0) });
    close(fd);
    moved
}

/// Unshares the descriptor table and closes all numbers from `first` to `last`. Processes that shared it keep them.
pub(super) fn close_range(first: RawFd, last: c_uint) -> Outcome {
    // SAFETY: close_range takes numbers only. The caller uses none of the closed descriptors afterwards.
    done(unsafe { libc::syscall(libc::SYS_close_range, first, last, CLOSE_RANGE_UNSHARE) })
}

/// Sets close-on-exec on all descriptors from `first` on.
pub(super) fn close_at_exec(first: RawFd) -> Outcome {
    // SAFETY: close_range takes numbers only, and with this flag closes nothing.
    done(unsafe { libc::syscall(libc::SYS_close_range, first, c_uint::MAX, CLOSE_RANGE_CLOEXEC) })
}

/// Writes with one call. A short write is an error.
pub(super) fn write_all(fd: RawFd, bytes: &[u8]) -> Outcome {
    let written = raw(rustix::io::write(borrow(fd)?, bytes))?;
    if written == bytes.len() { Ok(()) } else { Err(libc::EIO) }
}

pub(super) fn pipe() -> Outcome<(RawFd, RawFd)> {
    let (read, write) = raw(rustix::pipe::pipe_with(PipeFlags::CLOEXEC))?;
    Ok((read.into_raw_fd(), write.into_raw_fd()))
}

/// Fills the buffer with one read. The writer writes all bytes with one call; EOF is `ECANCELED`.
pub(super) fn read_all(fd: RawFd, bytes: &mut [u8]) -> Outcome {
    let len = bytes.len();
    let read =
        raw(crate::retry(|| rustix::io::read(borrow(fd).map_err(Errno::from_raw_os_error)?, &mut *bytes)))?;
    if read == len { Ok(()) } else { Err(libc::ECANCELED) }
}

/// Forks. The flags select new namespaces for the child, or a descriptor table shared with it. Returns 0 in the child.
pub(super) fn fork(flags: u32) -> Outcome<c_int> {
    let flags = c_ulong::from(flags) | libc::SIGCHLD as c_ulong;
    let none: *mut c_int = ptr::null_mut();
    // SAFETY: without CLONE_VM the child has its own copy of the memory, and runs on a copy of this stack. With
    // CLONE_FILES the two share the descriptor table, which is not memory. Both continue with system calls only.
    number(unsafe { libc::syscall(libc::SYS_clone, flags, none, none, none, none) })
}

pub(super) fn set_namespace(fd: RawFd, kind: c_int) -> Outcome {
    // SAFETY: setns takes numbers only.
    done(unsafe { libc::syscall(libc::SYS_setns, fd, kind) })
}

pub(super) fn mount(kind: Option<&CStr>, path: &CStr, flags: c_ulong, options: Option<&CStr>) -> Outcome {
    let kind = kind.map_or(ptr::null(), CStr::as_ptr);
    let options = options.map_or(ptr::null(), CStr::as_ptr);
    // SAFETY: each pointer is a C string that is live during the call, or null for an absent argument.
    done(unsafe { libc::syscall(libc::SYS_mount, kind, path.as_ptr(), kind, flags, options) })
}

pub(super) fn bind(from: &CStr, path: &CStr) -> Outcome {
    let (kind, options): (*const u8, *const u8) = (ptr::null(), ptr::null());
    // SAFETY: two C strings that are live during the call; a bind mount ignores type and options, which are null.
    done(unsafe {
        libc::syscall(libc::SYS_mount, from.as_ptr(), path.as_ptr(), kind, libc::MS_BIND, options)
    })
}

/// A detached clone of the mount tree at an opened path.
pub(super) fn clone_tree(at: RawFd) -> Outcome<RawFd> {
    let flags =
        libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | AT_RECURSIVE | libc::AT_EMPTY_PATH.cast_unsigned();
    // SAFETY: the path is a C string literal; the rest are numbers.
    number(unsafe { libc::syscall(libc::SYS_open_tree, at, c"".as_ptr(), flags) })
}

pub(super) fn move_mount(tree: RawFd, target: RawFd) -> Outcome {
    let (empty, flags) = (c"".as_ptr(), MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
    // SAFETY: the paths are C string literals; the rest are numbers.
    done(unsafe { libc::syscall(libc::SYS_move_mount, tree, empty, target, empty, flags) })
}

/// Sets attributes of the mount behind a descriptor, or at a path when that is `AT_FDCWD`.
pub(super) fn set_attributes(fd: RawFd, path: &CStr, attributes: u64, recursive: bool) -> Outcome {
    let set = [attributes, 0, 0, 0];
    let flags = if recursive { AT_RECURSIVE } else { 0 };
    let flags = if fd == libc::AT_FDCWD { flags } else { flags | libc::AT_EMPTY_PATH.cast_unsigned() };
    let (path, set_at, size) = (path.as_ptr(), set.as_ptr(), size_of_val(&set));
    // SAFETY: a C string and `struct mount_attr` (four u64) with its size, both live during the call.
    done(unsafe { libc::syscall(libc::SYS_mount_setattr, fd, path, flags, set_at, size) })
}

/// Makes the mount behind the descriptor the root and detaches the old root.
pub(super) fn pivot(root: RawFd) -> Outcome {
    raw(rustix::process::fchdir(borrow(root)?))?;
    raw(rustix::process::pivot_root(c".", c"."))?;
    // The old root is now mounted on top of the new one.
    // SAFETY: the path is a C string literal.
    done(unsafe { libc::syscall(libc::SYS_umount2, c".".as_ptr(), libc::MNT_DETACH) })?;
    change_directory(c"/")
}

pub(super) fn change_directory(path: &CStr) -> Outcome {
    raw(rustix::process::chdir(path))
}

pub(super) fn make_directory(path: &CStr, mode: u32) -> Outcome {
    raw(rustix::fs::mkdirat(rustix::fs::CWD, path, Mode::from_raw_mode(mode)))
}

pub(super) fn make_link(path: &CStr, target: &CStr) -> Outcome {
    raw(rustix::fs::symlinkat(target, rustix::fs::CWD, path))
}

pub(super) fn set_no_new_privs() -> Outcome {
    raw(rustix::thread::set_no_new_privs(true))
}

pub(super) fn set_undumpable() -> Outcome {
    raw(rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable))
}

/// Chooses whether the kernel kills this process when its parent exits.
pub(super) fn set_killed_with_parent(killed: bool) -> Outcome {
    let signal = killed.then_some(rustix::process::Signal::KILL);
    raw(rustix::process::set_parent_process_death_signal(signal))
}

/// Empties the bounding and ambient sets, so that exec grants no capability.
pub(super) fn bound_capabilities() -> Outcome {
    for capability in 0..64_u64 {
        // SAFETY: this option takes a number only.
        let dropped = unsafe { libc::syscall(libc::SYS_prctl, libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
        if dropped != 0 {
            // The first number without a capability, or no right to drop one: then there is none to lose.
            break;
        }
    }
    raw(rustix::thread::clear_ambient_capability_set())
}

/// Sets the permitted and effective capabilities, with none inheritable.
pub(crate) fn set_capabilities(set: CapabilitySet) -> Outcome {
    let sets = CapabilitySets { effective: set, permitted: set, inheritable: CapabilitySet::empty() };
    raw(rustix::thread::set_capabilities(None, sets))
}

pub(crate) fn join_new_keyring() -> Outcome {
    const JOIN_SESSION_KEYRING: c_int = 1;
    let anonymous: *const u8 = ptr::null();
    // SAFETY: a null name requests a new anonymous keyring; the other argument is a number.
    match done(unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, anonymous) }) {
        // A kernel without keyrings has none to hide.
        Err(libc::ENOSYS) => Ok(()),
        outcome => outcome,
    }
}

/// Lowers a soft and hard limit to at most `value`.
pub(super) fn lower_limit(resource: u32, value: u64) -> Outcome {
    let (mut before, none) = ([0u64; 2], ptr::null::<u64>());
    // SAFETY: the kernel writes `struct rlimit64` (two u64) to a live buffer of that size.
    done(unsafe { libc::syscall(libc::SYS_prlimit64, 0, resource, none, before.as_mut_ptr()) })?;
    let [soft, hard] = before;
    set_limit(resource, soft.min(value), hard.min(value))
}

pub(super) fn set_limit(resource: u32, soft: u64, hard: u64) -> Outcome {
    let (limit, none) = ([soft, hard], ptr::null_mut::<u64>());
    // SAFETY: the kernel reads `struct rlimit64` (two u64), which is live during the call.
    done(unsafe { libc::syscall(libc::SYS_prlimit64, 0, resource, limit.as_ptr(), none) })
}

/// Creates a Landlock ruleset from the bytes of `struct landlock_ruleset_attr`.
pub(super) fn ruleset(attributes: &[u8]) -> Outcome<RawFd> {
    let (at, size) = (attributes.as_ptr(), attributes.len());
    // SAFETY: the buffer is readable for its length. A kernel with a shorter struct requires the rest to be zero.
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
    // SAFETY: the kernel reads the packed struct of this rule type, which is live during the call.
    done(unsafe { libc::syscall(libc::SYS_landlock_add_rule, ruleset, PATH_BENEATH, &raw const rule, none) })
}

pub(super) fn is_terminal(fd: RawFd) -> bool {
    borrow(fd).is_ok_and(|fd| rustix::termios::tcgetattr(fd).is_ok())
}

pub(super) fn enforce_rules(ruleset: RawFd) -> Outcome {
    // SAFETY: landlock_restrict_self takes numbers only.
    done(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0) })
}

/// Installs a seccomp filter of eight-byte instructions.
pub(super) fn filter(instructions: &[u8]) -> Outcome {
    filter_with_flags(instructions, 0).map(|_| ())
}

/// Installs a filter and returns its listener, from which intercepted calls are received.
#[cfg(feature = "intercept")]
pub(super) fn filter_with_listener(instructions: &[u8]) -> Outcome<std::os::fd::OwnedFd> {
    use std::os::fd::FromRawFd;
    let listener = filter_with_flags(instructions, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?;
    // SAFETY: seccomp has just returned this descriptor, so nothing else owns it.
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
    // SAFETY: the struct is `struct sock_fprog`. It points to `len` whole instructions, which the kernel copies.
    number(unsafe { libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, flags, &raw const filter) })
}

/// Makes the descriptor non-blocking and the kernel send SIGIO when it becomes readable. If this fails, the caller still
/// notices the exit of the writer.
pub(super) fn enable_sigio(fd: RawFd) {
    let flags = libc::O_ASYNC | libc::O_NONBLOCK;
    let own_pid = rustix::process::getpid().as_raw_pid();
    // SAFETY: F_SETOWN takes numbers only.
    unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_SETOWN, own_pid) };
    // SAFETY: F_SETFL takes numbers only.
    unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_SETFL, flags) };
}

pub(super) fn lock(fd: RawFd, operation: FlockOperation) -> Outcome {
    raw(rustix::fs::flock(borrow(fd)?, operation))
}

/// Removes a placeholder, if the name in the directory is still the opened one and it is empty. Otherwise `EEXIST`.
pub(super) fn remove_placeholder(parent: BorrowedFd<'_>, name: &CStr, opened: BorrowedFd<'_>) -> Outcome {
    let named = raw(rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW))?;
    let held = raw(rustix::fs::fstat(opened))?;
    let is_same = (named.st_dev, named.st_ino, named.st_mode) == (held.st_dev, held.st_ino, held.st_mode);
    if !is_same || !super::is_placeholder_mode(named.st_mode) {
        return Err(libc::EEXIST);
    }
    raw(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR))
}
