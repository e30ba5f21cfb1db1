//! Detection of a client's disconnect. A client that only shut down its sending side is still connected.

use std::io;
use std::time::Duration;
use tokio::net::UnixStream;

/// After the client's EOF the socket stays readable, so readiness cannot signal the disconnect. It is polled instead.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Returns when the client closed its end.
pub(crate) async fn wait(stream: &UnixStream) {
    let mut chunk = [0; 4096];
    loop {
        if stream.readable().await.is_err() {
            return;
        }
        match stream.try_read(&mut chunk) {
            Ok(0) => break,
            // "Anything after the first newline is ignored."
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
    while !outpost_sys::message::peer_is_gone(stream) {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
