//! Client connections to Outpost's Unix sockets, made only after the path and the listener were checked.
//!
//! The path is checked before the connection. The listener is checked by `SO_PEERCRED` after it, before the
//! caller can send. Only trusted users can change a path that passed, so there is no TOCTOU race between the
//! two.

use crate::{Errno, message, retry, root_only, user};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, fs, io};

/// Which users may listen on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The user of this process, or root.
    Own,
    /// Root alone.
    Root,
    /// The owner of the socket. For a socket of another user that a person named explicitly.
    Owner,
}

/// Why the client refused to talk to a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Untrusted {
    /// Other users can change this directory or symbolic link on the path to the socket.
    Ancestor { socket: PathBuf, ancestor: PathBuf, uid: u32, mode: u32 },
    /// The file is not a socket, or its owner is not trusted.
    File { socket: PathBuf, uid: u32 },
    /// The listening process belongs to another user.
    Listener { socket: PathBuf, uid: u32 },
}

impl Untrusted {
    /// The next step for a person.
    pub fn hint(&self) -> &'static str {
        match self {
            Untrusted::Ancestor { uid, .. } if *uid == 0 || *uid == crate::process::effective_uid() => {
                "take the write permission of others away (`chmod go-w`), or choose another directory with --runtime-dir or XDG_RUNTIME_DIR"
            }
            Untrusted::Ancestor { .. } => {
                "have its owner or root remove it, or choose another directory with --runtime-dir or XDG_RUNTIME_DIR"
            }
            Untrusted::File { .. } | Untrusted::Listener { .. } => {
                "find the process that listens there with `ss -xlp`, end it and remove the socket"
            }
        }
    }
}

impl fmt::Display for Untrusted {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Untrusted::Ancestor { socket, ancestor, uid, mode } => write!(
                to,
                "nothing was sent to {}: other users can change {} (owner {}, mode {mode:04o})",
                socket.display(),
                ancestor.display(),
                user::name_or_number(*uid),
            ),
            Untrusted::File { socket, uid } => write!(
                to,
                "nothing was sent to {}: it is not a socket of this user (owner {})",
                socket.display(),
                user::name_or_number(*uid),
            ),
            Untrusted::Listener { socket, uid } => write!(
                to,
                "nothing was sent to {}: the process that listens there belongs to {}",
                socket.display(),
                user::name_or_number(*uid),
            ),
        }
    }
}

impl std::error::Error for Untrusted {}

impl From<Untrusted> for io::Error {
    fn from(reason: Untrusted) -> io::Error {
        io::Error::new(io::ErrorKind::PermissionDenied, reason)
    }
}

/// The refusal in an error, if the error comes from a check here and not from the kernel.
pub fn untrusted(error: &io::Error) -> Option<&Untrusted> {
    error.get_ref()?.downcast_ref()
}

/// How long a client waits in the backlog of a listener. Longer than a killed worker takes to be replaced.
const BACKLOG_TIMEOUT: Duration = Duration::from_secs(60);

/// A blocking connection. `TimedOut` if the listener's backlog stays full.
pub fn connect(socket: &Path, trust: Trust) -> io::Result<UnixStream> {
    connect_within(socket, trust, BACKLOG_TIMEOUT)
}

fn connect_within(socket: &Path, trust: Trust, timeout: Duration) -> io::Result<UnixStream> {
    connect_with(socket, trust, Some(timeout))
}

/// A non-blocking connection, for an event loop. `EAGAIN` while the listener's backlog is full.
pub fn connect_nonblocking(socket: &Path, trust: Trust) -> io::Result<UnixStream> {
    connect_with(socket, trust, None)
}

fn connect_with(socket: &Path, trust: Trust, timeout: Option<Duration>) -> io::Result<UnixStream> {
    let socket = std::path::absolute(socket)?;
    let listeners = check_path(&socket, trust)?;
    let stream = dial(&socket, timeout)?;
    let uid = message::peer_uid(&stream)?;
    match listeners.contains(&uid) {
        true => Ok(stream),
        false => Err(Untrusted::Listener { socket, uid }.into()),
    }
}

/// Whether no process listens on a socket, so that it can be replaced. Sends nothing to a live listener.
pub fn is_abandoned(socket: &Path) -> bool {
    dial(socket, None).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Refuses a directory that other users can change. `NotFound` when it does not exist.
pub fn check_directory(dir: &Path, trust: Trust) -> io::Result<()> {
    let dir = std::path::absolute(dir)?;
    let own = crate::process::effective_uid();
    let users: &[u32] = if trust == Trust::Root { &[] } else { &[own] };
    match root_only::weak_spot_for(&dir, users) {
        Some(ancestor) => Err(untrusted_ancestor(&dir, ancestor)),
        None => check_owner(&dir, &dir, own, trust),
    }
}

/// The uids that may listen on the socket. Fails if another user could have created the socket.
fn check_path(socket: &Path, trust: Trust) -> io::Result<Vec<u32>> {
    let own = crate::process::effective_uid();
    let (listeners, users) = match trust {
        Trust::Own => (vec![0, own], vec![own]),
        Trust::Root => (vec![0], vec![]),
        Trust::Owner => {
            let owner = fs::metadata(socket)?.uid();
            (vec![owner], vec![owner, own])
        }
    };
    if let Some(ancestor) = root_only::weak_ancestor_for(socket, &users) {
        return Err(untrusted_ancestor(socket, ancestor));
    }
    // All symbolic links on the path belong to trusted users.
    let real = fs::canonicalize(socket)?;
    let (file, dir) = (fs::symlink_metadata(&real)?, real.parent().unwrap_or(Path::new("/")));
    if !file.file_type().is_socket() || !listeners.contains(&file.uid()) {
        return Err(Untrusted::File { socket: socket.to_owned(), uid: file.uid() }.into());
    }
    match trust {
        Trust::Owner => Ok(listeners),
        Trust::Own | Trust::Root => check_owner(socket, dir, own, trust).map(|()| listeners),
    }
}

/// The directory itself must belong to a user that this user namespace maps.
fn check_owner(socket: &Path, dir: &Path, own: u32, trust: Trust) -> io::Result<()> {
    let uid = fs::metadata(dir)?.uid();
    match uid == 0 || (trust != Trust::Root && uid == own) {
        true => Ok(()),
        false => Err(untrusted_ancestor(socket, dir.to_owned())),
    }
}

fn untrusted_ancestor(socket: &Path, ancestor: PathBuf) -> io::Error {
    match fs::symlink_metadata(&ancestor) {
        Err(error) => error,
        Ok(of) => {
            let (socket, mode) = (socket.to_owned(), of.mode() & 0o7777);
            Untrusted::Ancestor { socket, ancestor, uid: of.uid(), mode }.into()
        }
    }
}

/// Connects; without a timeout the connection is non-blocking.
fn dial(socket: &Path, timeout: Option<Duration>) -> io::Result<UnixStream> {
    let (address, _open) = message::address(socket)?;
    let address = SocketAddrUnix::new(&address)?;
    let blocking = if timeout.is_some() { SocketFlags::empty() } else { SocketFlags::NONBLOCK };
    let flags = SocketFlags::CLOEXEC | blocking;
    let stream = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // connect(2) waits in the backlog for as long as a send may take.
    set_socket_timeout(&stream, Timeout::Send, timeout)?;
    // connect(2) on a Unix socket is restartable: an interrupted call has made no connection.
    #[expect(clippy::disallowed_methods, reason = "the one place that connects")]
    retry(|| rustix::net::connect(&stream, &address)).map_err(|errno| match (errno, timeout) {
        (Errno::AGAIN, Some(_)) => Errno::TIMEDOUT,
        (errno, _) => errno,
    })?;
    set_socket_timeout(&stream, Timeout::Send, None)?;
    Ok(stream.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_client_does_not_wait_for_ever_for_a_listener_that_accepts_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let limit = Duration::from_millis(50);
        let waiting = connect_within(&socket, Trust::Own, limit).unwrap();
        assert_eq!(waiting.write_timeout().unwrap(), None, "the timeout is that of the connect alone");
        let refused = connect_within(&socket, Trust::Own, limit).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut, "{refused}");
        drop(listener.accept().unwrap());
        connect_within(&socket, Trust::Own, limit).unwrap();
    }
}
