//! Binds Unix sockets with their final mode, without replacing a live one, and shares listeners with the keeper.

use crate::failure::Failure;
use outpost_cli::paths::Paths;
use outpost_engine::Engine;
use outpost_sys::{connect, message};
use std::collections::HashMap;
use std::fmt::Display;
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use tokio::net::TcpListener;

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
    bind_new(socket, umask).map_err(|error| cannot_listen(socket.display(), &error))
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

/// Returns the inherited socket of this role, or binds one. The flag is true if the socket is new.
pub(crate) async fn acquire(
    engine: &Engine,
    inherited: &mut HashMap<u8, OwnedFd>,
    role: u8,
    bind: impl FnOnce() -> Result<UnixListener, Failure>,
) -> Result<(tokio::net::UnixListener, bool), Failure> {
    let (listener, is_new) = take_or_bind(engine, inherited, role, bind).await?;
    Ok((into_tokio(listener)?, is_new))
}

/// A listener of a port.
pub(crate) struct Port {
    pub(crate) listener: TcpListener,
    pub(crate) bound: SocketAddr,
    pub(crate) is_new: bool,
}

/// Returns the inherited port of this role, or binds one.
pub(crate) async fn acquire_port(
    engine: &Engine,
    inherited: &mut HashMap<u8, OwnedFd>,
    role: u8,
    address: SocketAddr,
    bind: impl FnOnce(SocketAddr) -> Result<StdTcpListener, Failure>,
) -> Result<Port, Failure> {
    let (listener, is_new) = take_or_bind(engine, inherited, role, || bind(address)).await?;
    let fail = |error: io::Error| cannot_listen(address, &error);
    let bound = listener.local_addr().map_err(fail)?;
    listener.set_nonblocking(true).map_err(fail)?;
    Ok(Port { listener: TcpListener::from_std(listener).map_err(fail)?, bound, is_new })
}

/// Binds exactly this port.
pub(crate) fn bind_port(address: SocketAddr) -> Result<StdTcpListener, Failure> {
    StdTcpListener::bind(address).map_err(|error| cannot_listen(address, &error))
}

pub(crate) fn cannot_listen(address: impl Display, error: &io::Error) -> Failure {
    Failure::io(format_args!("cannot listen on {address}"), error)
}

/// Releases an inherited listener that is not configured any more. Clients must not queue in its backlog.
pub(crate) async fn release(
    engine: &Engine,
    inherited: &mut HashMap<u8, OwnedFd>,
    role: u8,
) -> Result<(), Failure> {
    if inherited.remove(&role).is_some() {
        engine.release(role).await?;
    }
    Ok(())
}

/// Gives a new listener to the keeper, so that connections queue in the backlog while no worker runs. `inherited` keeps a
/// copy, so that a retry of a failed face finds the listener.
async fn take_or_bind<L: From<OwnedFd> + AsFd>(
    engine: &Engine,
    inherited: &mut HashMap<u8, OwnedFd>,
    role: u8,
    bind: impl FnOnce() -> Result<L, Failure>,
) -> Result<(L, bool), Failure> {
    let copy = |fd: BorrowedFd<'_>| outpost_sys::file::duplicate(fd).map_err(Failure::from);
    if let Some(socket) = inherited.get(&role) {
        return Ok((L::from(copy(socket.as_fd())?), false));
    }
    let listener = bind()?;
    inherited.insert(role, copy(listener.as_fd())?);
    engine.hold(role, copy(listener.as_fd())?).await?;
    Ok((listener, true))
}

/// Converts a listener for use in the runtime.
pub(crate) fn into_tokio(listener: UnixListener) -> Result<tokio::net::UnixListener, Failure> {
    listener.set_nonblocking(true)?;
    Ok(tokio::net::UnixListener::from_std(listener)?)
}
