//! Every `unsafe` block and every raw system call of Outpost, behind safe types.
//!
//! The other crates contain no `unsafe`. Interruptible calls retry on `EINTR` here, so callers never see it.
//! Each call passes a failpoint of [`fault`], which compiles to nothing without the `faults` feature.

pub mod beneath;
pub mod bounded_command;
pub mod cgroup;
pub mod clock;
pub mod confine;
pub mod confined;
pub mod connect;
pub mod credentials;
pub mod directory;
pub mod epoll;
pub mod exits;
pub mod fault;
pub mod file;
pub mod identity;
#[cfg(feature = "intercept")]
pub mod intercept;
pub mod kernel;
pub mod limits;
pub mod message;
pub mod namespace;
pub mod pidfd;
pub mod pipe;
pub mod process;
pub mod procfs;
pub mod pty;
pub mod random;
pub mod root_only;
pub mod signal;
pub mod spawn;
pub mod tcp_peer;
pub mod terminal;
pub mod user;

pub use rustix::io::Errno;

/// A result whose error is an errno.
pub type Result<T> = std::result::Result<T, Errno>;

/// Whether an error means that a resource has run out: disk, quota, descriptors, processes, memory. This is
/// temporary, so callers retry.
pub fn is_exhaustion(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOSPC
            | Errno::DQUOT
            | Errno::MFILE
            | Errno::NFILE
            | Errno::AGAIN
            | Errno::NOMEM
            | Errno::NOBUFS
            | Errno::TOOMANYREFS
    )
}

/// Repeats a call until it returns something other than `EINTR`.
pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}
