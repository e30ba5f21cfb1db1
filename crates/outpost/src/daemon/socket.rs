//! Binds Unix sockets with their final mode, without replacing a live one, and shares listeners with the keeper.

use crate::failure::Failure;
use crate::paths::Paths;
use outpost_engine::Engine;
use outpost_sys::{connect, message};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;

/// The umask for a socket with mode 0600.
const PRIVATE: u32 = 0o177;
/// The umask for a socket with mode 0666.
const OPEN: u32 = 0o111;

/// Replaces any existing socket. The caller holds the lock, so no live daemon owns that socket.
pub(crate) fn bind(socket: &Path) -> Result<UnixListener, Failure> {
    bind_as(socket, PRIVATE)
}

/// Binds the socket of a face: mode 0600, or 0666 for the guard.
pub(crate) fn bind_face(paths: &Paths, socket: &Path) -> Result<UnixListener, Failure> {
    bind_as(socket, if paths.is_guard { OPEN } else { PRIVATE })
}

fn bind_as(socket: &Path, umask: u32) -> Result<UnixListener, Failure> {
    let _not_there = std::fs::remove_file(socket);
    bind_new(socket, umask)
        .map_err(|error| Failure::io(format_args!("cannot listen on {}", socket.display()), &error))
}

/// Replaces an existing socket only if no process listens on it. For paths that the lock does not cover.
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
    let before = outpost_sys::process::set_umask(umask);
    let bound = UnixListener::bind(address);
    outpost_sys::process::set_umask(before);
    bound
}

/// Returns the inherited listener of this role, or binds one and gives it to the keeper. The flag is true if the listener is
/// new. `inherited` keeps a copy, so that a retry of a failed face finds the listener.
pub(crate) async fn acquire<L: From<OwnedFd> + AsFd>(
    engine: &Engine,
    inherited: &mut HashMap<u8, OwnedFd>,
    role: u8,
    bind: impl FnOnce() -> Result<L, Failure>,
) -> Result<(L, bool), Failure> {
    let copy = |fd: std::os::fd::BorrowedFd<'_>| outpost_sys::file::duplicate(fd).map_err(Failure::from);
    if let Some(socket) = inherited.get(&role) {
        return Ok((L::from(copy(socket.as_fd())?), false));
    }
    let listener = bind()?;
    inherited.insert(role, copy(listener.as_fd())?);
    hold_in_keeper(engine, role, &listener).await?;
    Ok((listener, true))
}

/// Gives the keeper a duplicate, so that connections queue in the backlog while no worker runs.
pub(crate) async fn hold_in_keeper(engine: &Engine, role: u8, listener: &impl AsFd) -> Result<(), Failure> {
    let copy = outpost_sys::file::duplicate(listener.as_fd())?;
    Ok(engine.hold(role, copy).await?)
}

/// Converts a listener for use in the runtime.
pub(crate) fn into_tokio(listener: UnixListener) -> Result<tokio::net::UnixListener, Failure> {
    listener.set_nonblocking(true)?;
    Ok(tokio::net::UnixListener::from_std(listener)?)
}
