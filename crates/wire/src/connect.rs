//! Async connections to Outpost's Unix sockets.

use outpost_sys::connect::{Trust, connect_nonblocking};
use std::io;
use std::path::Path;
use tokio::net::UnixStream;

/// A connection whose path and listener were checked. The kernel completes or refuses it at once.
pub fn connect(socket: &Path, trust: Trust) -> io::Result<UnixStream> {
    UnixStream::from_std(connect_nonblocking(socket, trust)?)
}
