//! Whether a client has left. One that has only finished writing has not.

use std::io;
use std::time::Duration;
use tokio::net::UnixStream;

/// The kernel tells of the end of what a client writes, but not of its leaving after that: we look.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Comes when the client has closed its end.
pub(crate) async fn gone(stream: &UnixStream) {
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
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}
