//! `-bridge`: stdin and stdout of an ssh session, connected to the server's socket. It adds nothing.

use outpost_relay::words;
use outpost_sys::connect::{self, Trust};
use outpost_sys::epoll::wait_readable;
use outpost_sys::message::peer_is_gone;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::path::Path;
use std::time::Duration;

/// How often we look whether anybody reads what we write: a server that is silent would keep us for ever otherwise.
const LOOK: Duration = Duration::from_secs(1);

/// Ends when the server closes the connection, or nobody reads any more. When stdin ends, the server is told, and what it
/// still has to say is passed on.
pub(super) fn bridge(socket: &Path) -> Result<(), String> {
    let server = connect::connect(socket, Trust::Own).map_err(|error| {
        format!("dial server: dial unix {}: connect: {}", socket.display(), words::io(&error))
    })?;
    // A client that is gone ends the bridge with an error from write, which stops the copying.
    outpost_sys::signal::ignore_sigpipe();
    let to_server = server.try_clone().map_err(|error| format!("dial server: {}", words::io(&error)))?;
    std::thread::spawn(move || {
        let _server_gone = copy(io::stdin().lock(), &to_server, || true);
        let _closed_already = to_server.shutdown(Shutdown::Write);
    });
    let out = io::stdout().lock();
    let more = || {
        while !wait_readable(&server, LOOK).unwrap_or(true) {
            if peer_is_gone(io::stdout()) {
                return false;
            }
        }
        true
    };
    let _client_gone = copy(&server, out, more);
    Ok(())
}

/// Passes on what there is as soon as it is there, as long as `more` says so.
fn copy(mut from: impl Read, mut to: impl Write, more: impl Fn() -> bool) -> io::Result<()> {
    let mut buffer = vec![0; 256 * 1024];
    while more() {
        let read = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        to.write_all(buffer.get(..read).unwrap_or_default())?;
        to.flush()?;
    }
    Ok(())
}
