//! Accept loops: one task per connection, with a limit on concurrent connections.

use outpost_sys::Errno;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;

/// The initial and the maximum delay after a failed accept.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Never has a permit. Closed when this process stops accepting.
static ACCEPTING: Semaphore = Semaphore::const_new(0);

/// Ends all accept loops and closes their sockets. For a daemon that stops.
pub fn stop_accepting() {
    ACCEPTING.close();
}

/// A listening socket.
pub trait Listener: Send {
    type Stream: Send + 'static;

    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Whether the peer may connect.
    fn admits(stream: &Self::Stream) -> bool;
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        UnixListener::accept(self).await.map(|(stream, _)| stream)
    }

    /// This user and root, but no sandboxed process: a sandboxed process that reaches the socket must not
    /// start others.
    fn admits(stream: &UnixStream) -> bool {
        outpost_sys::message::peer(stream).is_ok_and(|peer| {
            (peer.uid == outpost_sys::process::effective_uid() || peer.uid == 0)
                && !outpost_sys::confined::may_be_confined(peer.pid)
        })
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = TcpListener::accept(self).await?;
        // Small replies must not wait for larger ones.
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// [`crate::Peers`] checks TCP clients, so that they get a reply.
    fn admits(_: &TcpStream) -> bool {
        true
    }
}

/// Accepts until [`stop_accepting`] or until the socket is shut down, with at most `max` concurrent connections. More wait in the backlog.
pub async fn accept_all<L, F, S>(listener: L, max: usize, serve: S)
where
    L: Listener,
    F: Future<Output = ()> + Send + 'static,
    S: Fn(L::Stream) -> F,
{
    accept_admitted(listener, max, L::admits, serve).await;
}

/// The same for peers that `admits` accepts.
pub async fn accept_admitted<L, F, S>(listener: L, max: usize, admits: impl Fn(&L::Stream) -> bool, serve: S)
where
    L: Listener,
    F: Future<Output = ()> + Send + 'static,
    S: Fn(L::Stream) -> F,
{
    let permits = Arc::new(Semaphore::new(max));
    let mut pause = PAUSE_MIN;
    loop {
        let next = async { (permits.clone().acquire_owned().await, listener.accept().await) };
        let (permit, accepted) = tokio::select! {
            biased;
            _closed = ACCEPTING.acquire() => return,
            next = next => next,
        };
        match accepted {
            Ok(stream) if !admits(&stream) => {
                tracing::warn!("[Server] a connection of another user or of a sandboxed process was refused");
            }
            Ok(stream) => {
                pause = PAUSE_MIN;
                let served = serve(stream);
                tokio::spawn(async move {
                    served.await;
                    drop(permit);
                });
            }
            // Shut down: the daemon has released the socket.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => return,
            Err(error) => {
                tracing::warn!("[Server] accept error (retrying in {pause:?}): {error}");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[tokio::test]
    async fn a_loop_ends_when_its_socket_is_shut_down() {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
        let socket = listener.as_fd().try_clone_to_owned().unwrap();
        let accepting = tokio::spawn(accept_all(listener, 1, |_| std::future::ready(())));
        tokio::task::yield_now().await;
        outpost_sys::message::shut_down(&socket);
        tokio::time::timeout(Duration::from_secs(30), accepting).await.unwrap().unwrap();
    }
}
