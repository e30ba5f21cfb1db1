//! `-bridge`: copies between the server's socket and the stdin and stdout of an ssh session.

use outpost_relay::go_compat;
use outpost_sys::connect::{self, Trust};
use outpost_sys::epoll::wait_readable;
use outpost_sys::message::peer_is_gone;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::path::Path;
use std::time::Duration;

/// How often the bridge checks whether stdout has a reader. Otherwise a silent server would keep the bridge for ever.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Runs until the server closes the connection or stdout has no reader. At EOF on stdin it shuts down its write side and
/// continues to copy the server's output.
pub(super) fn bridge(socket: &Path) -> Result<(), String> {
    let server = connect::connect(socket, Trust::Own).map_err(|error| {
        format!("dial server: dial unix {}: connect: {}", socket.display(), go_compat::io_text(&error))
    })?;
    // With SIGPIPE ignored, a write to a closed stdout fails and ends the copy loop.
    outpost_sys::signal::ignore_sigpipe();
    let to_server =
        server.try_clone().map_err(|error| format!("dial server: {}", go_compat::io_text(&error)))?;
    std::thread::spawn(move || {
        let _server_gone = copy(io::stdin().lock(), &to_server, || true);
        let _closed_already = to_server.shutdown(Shutdown::Write);
    });
    let out = io::stdout().lock();
    let wait_for_data = || {
        while !wait_readable(&server, POLL_INTERVAL).unwrap_or(true) {
            if peer_is_gone(io::stdout()) {
                return false;
            }
        }
        true
    };
    let _client_gone = copy(&server, out, wait_for_data);
    Ok(())
}

/// Copies each piece as soon as it arrives, while `wait_for_data` returns true.
fn copy(mut from: impl Read, mut to: impl Write, wait_for_data: impl Fn() -> bool) -> io::Result<()> {
    let mut buffer = vec![0; 256 * 1024];
    while wait_for_data() {
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
