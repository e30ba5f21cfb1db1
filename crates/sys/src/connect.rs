//! Connections to Unix sockets of ours: made only after the path and the listener were checked.
//!
//! The path is checked before the connection, the listener by `SO_PEERCRED` after it and before the caller can send. A
//! directory that passes can be changed by trusted users only, so the path means the same in between.

use crate::{limits, message, retry, root_only, user};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

/// Which users may listen on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The user of this process, or root.
    Own,
    /// Root alone.
    Root,
    /// The owner of the socket, for a socket of another user that a person named.
    Owner,
}

/// Why nothing was sent to a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Untrusted {
    /// Other users can change this directory or link on the way to the socket.
    Way { socket: PathBuf, spot: PathBuf, uid: u32, mode: u32 },
    /// The file is no socket, or the socket of another user.
    File { socket: PathBuf, uid: u32 },
    /// The listening process is another user's.
    Listener { socket: PathBuf, uid: u32 },
}

impl Untrusted {
    /// The next step for a person.
    pub fn hint(&self) -> &'static str {
        match self {
            Untrusted::Way { uid, .. } if *uid == 0 || *uid == limits::effective_uid() => {
                "take the write permission of others away (`chmod go-w`), or choose another directory with --runtime-dir or XDG_RUNTIME_DIR"
            }
            Untrusted::Way { .. } => {
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
            Untrusted::Way { socket, spot, uid, mode } => write!(
                to,
                "nothing was sent to {}: other users can change {} (owner {}, mode {mode:04o})",
                socket.display(),
                spot.display(),
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

/// The reason, if an error is a refusal of ours and not the kernel's.
pub fn untrusted(error: &io::Error) -> Option<&Untrusted> {
    error.get_ref()?.downcast_ref()
}

/// A connection for a thread that may wait.
pub fn connect(socket: &Path, trust: Trust) -> io::Result<UnixStream> {
    connect_with(socket, trust, SocketFlags::CLOEXEC)
}

/// The same for an event loop. `EAGAIN` while the listener's backlog is full.
pub fn connect_nonblocking(socket: &Path, trust: Trust) -> io::Result<UnixStream> {
    connect_with(socket, trust, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

fn connect_with(socket: &Path, trust: Trust, flags: SocketFlags) -> io::Result<UnixStream> {
    let socket = std::path::absolute(socket)?;
    let listeners = check_way(&socket, trust)?;
    let stream = dial(&socket, flags)?;
    let uid = message::peer_uid(&stream)?;
    match listeners.contains(&uid) {
        true => Ok(stream),
        false => Err(Untrusted::Listener { socket, uid }.into()),
    }
}

/// Whether a leftover socket can be replaced: no process listens on it. Nothing is sent to one that does.
pub fn is_abandoned(socket: &Path) -> bool {
    dial(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
        .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Refuses a directory that other users can change. One that does not exist is `NotFound`.
pub fn check_directory(dir: &Path, trust: Trust) -> io::Result<()> {
    let dir = std::path::absolute(dir)?;
    let own = limits::effective_uid();
    let users: &[u32] = if trust == Trust::Root { &[] } else { &[own] };
    match root_only::weak_spot_for(&dir, users) {
        Some(spot) => Err(weak(&dir, spot)),
        None => check_owner(&dir, &dir, own, trust),
    }
}

/// The users that may listen there, if no other user can have put the socket there.
fn check_way(socket: &Path, trust: Trust) -> io::Result<Vec<u32>> {
    let own = limits::effective_uid();
    let (listeners, users) = match trust {
        Trust::Own => (vec![0, own], vec![own]),
        Trust::Root => (vec![0], vec![]),
        Trust::Owner => {
            let owner = fs::metadata(socket)?.uid();
            (vec![owner], vec![owner, own])
        }
    };
    if let Some(spot) = root_only::weak_way_for(socket, &users) {
        return Err(weak(socket, spot));
    }
    // Links were followed by trusted users' names only.
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

/// The directory itself has to be of a user that this namespace maps.
fn check_owner(socket: &Path, dir: &Path, own: u32, trust: Trust) -> io::Result<()> {
    let uid = fs::metadata(dir)?.uid();
    match uid == 0 || (trust != Trust::Root && uid == own) {
        true => Ok(()),
        false => Err(weak(socket, dir.to_owned())),
    }
}

fn weak(socket: &Path, spot: PathBuf) -> io::Error {
    match fs::symlink_metadata(&spot) {
        Err(error) => error,
        Ok(of) => {
            let (socket, mode) = (socket.to_owned(), of.mode() & 0o7777);
            Untrusted::Way { socket, spot, uid: of.uid(), mode }.into()
        }
    }
}

fn dial(socket: &Path, flags: SocketFlags) -> io::Result<UnixStream> {
    let (address, _open) = message::address(socket)?;
    let address = SocketAddrUnix::new(&address)?;
    let stream = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // A connect that a signal interrupts has not begun: the kernel made no connection.
    #[expect(clippy::disallowed_methods, reason = "the one place that connects")]
    retry(|| rustix::net::connect(&stream, &address))?;
    Ok(stream.into())
}
