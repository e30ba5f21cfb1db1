//! Every `unsafe` block and every raw system call of Outpost, behind safe types.
//!
//! Nothing above this crate may contain `unsafe`. Calls that may be interrupted retry on `EINTR` here, so no
//! caller ever sees it. Each call passes the [`fault`] gate, which compiles to nothing unless the `faults`
//! feature is on.

pub mod beneath;
pub mod cgroup;
pub mod clock;
pub mod confine;
pub mod confined;
pub mod connect;
pub mod credentials;
pub mod epoll;
pub mod exits;
pub mod fault;
pub mod file;
pub mod identity;
#[cfg(feature = "intercept")]
pub mod intercept;
pub mod kernel;
pub mod limits;
pub mod memory;
pub mod message;
pub mod namespace;
pub mod pidfd;
pub mod pipe;
pub mod procfs;
pub mod pty;
pub mod root_only;
pub mod signal;
pub mod spawn;
pub mod tcp_peer;
pub mod terminal;
pub mod user;

pub use rustix::io::Errno;

/// A result whose error is the kernel's own number.
pub type Result<T> = std::result::Result<T, Errno>;

/// Whether an error means that a resource has run out for now: disk, quota, descriptors, processes, memory. The state passes,
/// so a caller retries and never gives up for good.
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

/// Repeats a call until the kernel answers with something other than `EINTR`.
pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}
