//! Sockets in the file system: for this user only from their first moment on, and never in the place of a live one.

use outpost_sys::{limits, message};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// We hold the lock, so a socket that is there is nobody's.
pub(crate) fn bind(socket: &Path) -> Result<UnixListener, String> {
    let _not_there = std::fs::remove_file(socket);
    bind_new(socket).map_err(|error| format!("cannot listen on {}: {error}", socket.display()))
}

/// Where somebody else's may be: one that nobody answers on is replaced, anything else is in use.
pub(crate) fn bind_if_free(socket: &Path) -> io::Result<UnixListener> {
    match bind_new(socket) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let (address, _open) = message::address(socket)?;
            let nobody_listens = UnixStream::connect(address)
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
            if !nobody_listens {
                return Err(error);
            }
            std::fs::remove_file(socket)?;
            bind_new(socket)
        }
        bound => bound,
    }
}

fn bind_new(socket: &Path) -> io::Result<UnixListener> {
    let (address, _open) = message::address(socket)?;
    let before = limits::set_umask(0o177);
    let bound = UnixListener::bind(address);
    limits::set_umask(before);
    bound
}
