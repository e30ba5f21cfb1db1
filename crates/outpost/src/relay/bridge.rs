//! `-bridge`: stdin and stdout of an ssh session, connected to the server's socket. It adds nothing.

use outpost_relay::words;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Ends when the server closes the connection. When stdin ends, the server is told, and what it still has to say is
/// passed on.
pub(super) fn bridge(socket: &Path) -> Result<(), String> {
    let server = UnixStream::connect(socket).map_err(|error| {
        format!("dial server: dial unix {}: connect: {}", socket.display(), words::io(&error))
    })?;
    // A client that is gone ends the bridge with an error from write, which stops the copying.
    outpost_sys::signal::ignore_sigpipe();
    let to_server = server.try_clone().map_err(|error| format!("dial server: {}", words::io(&error)))?;
    std::thread::spawn(move || {
        let _server_gone = copy(io::stdin().lock(), &to_server);
        let _closed_already = to_server.shutdown(Shutdown::Write);
    });
    let _client_gone = copy(&server, io::stdout().lock());
    Ok(())
}

/// Passes on what there is as soon as it is there.
fn copy(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        to.write_all(buffer.get(..read).unwrap_or_default())?;
        to.flush()?;
    }
}
