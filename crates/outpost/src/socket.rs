//! Sockets in the file system: for this user only from their first moment on, and never in the place of a live one.

use crate::failure::Failure;
use crate::paths::Paths;
use outpost_engine::Engine;
use outpost_sys::{connect, limits, message};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;

/// The umask for a socket of this user alone, and for one of everybody.
const PRIVATE: u32 = 0o177;
const OPEN: u32 = 0o111;

/// We hold the lock, so a socket that is there is nobody's.
pub(crate) fn bind(socket: &Path) -> Result<UnixListener, Failure> {
    bind_as(socket, PRIVATE)
}

/// The socket of a face: for this user, or for everybody where it is the guard's.
pub(crate) fn bind_face(paths: &Paths, socket: &Path) -> Result<UnixListener, Failure> {
    bind_as(socket, if paths.is_guard { OPEN } else { PRIVATE })
}

fn bind_as(socket: &Path, umask: u32) -> Result<UnixListener, Failure> {
    let _not_there = std::fs::remove_file(socket);
    bind_new(socket, umask)
        .map_err(|error| Failure::io(format_args!("cannot listen on {}", socket.display()), &error))
}

/// Where somebody else's may be: one that nobody answers on is replaced, anything else is in use.
pub(crate) fn bind_if_free(socket: &Path) -> io::Result<UnixListener> {
    match bind_new(socket, PRIVATE) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if !connect::is_abandoned(socket) {
                return Err(error);
            }
            std::fs::remove_file(socket)?;
            bind_new(socket, PRIVATE)
        }
        bound => bound,
    }
}

fn bind_new(socket: &Path, umask: u32) -> io::Result<UnixListener> {
    let (address, _open) = message::address(socket)?;
    let before = limits::set_umask(umask);
    let bound = UnixListener::bind(address);
    limits::set_umask(before);
    bound
}

/// The socket of a face: as the keeper holds it, or a new one that it holds from now on, and which of both. `own` keeps a
/// copy, so that a face that fails later finds the socket again when it is retried.
pub(crate) async fn held<L: From<OwnedFd> + AsFd>(
    engine: &Engine,
    own: &mut HashMap<u8, OwnedFd>,
    role: u8,
    bind: impl FnOnce() -> Result<L, Failure>,
) -> Result<(L, bool), Failure> {
    let copy = |fd: std::os::fd::BorrowedFd<'_>| outpost_sys::file::duplicate(fd).map_err(Failure::from);
    if let Some(socket) = own.get(&role) {
        return Ok((L::from(copy(socket.as_fd())?), false));
    }
    let listener = bind()?;
    own.insert(role, copy(listener.as_fd())?);
    hold(engine, role, &listener).await?;
    Ok((listener, true))
}

/// Has the keeper hold a copy, so that clients wait in the backlog while there is no worker.
pub(crate) async fn hold(engine: &Engine, role: u8, listener: &impl AsFd) -> Result<(), Failure> {
    let copy = outpost_sys::file::duplicate(listener.as_fd())?;
    Ok(engine.hold(role, copy).await?)
}

/// For a task that waits for clients.
pub(crate) fn listening(listener: UnixListener) -> Result<tokio::net::UnixListener, Failure> {
    let made = listener.set_nonblocking(true).and_then(|()| tokio::net::UnixListener::from_std(listener));
    Ok(made?)
}
