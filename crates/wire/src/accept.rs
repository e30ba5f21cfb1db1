//! Accept loops: one task per connection, with a limit on concurrent connections.

use outpost_sys::{Errno, message};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
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

    /// Takes the socket out of the runtime.
    fn into_socket(self) -> io::Result<OwnedFd>;

    /// Puts an accepted connection into the runtime.
    fn connection(socket: OwnedFd) -> io::Result<Self::Stream>;

    /// Whether the peer may connect.
    fn admits(stream: &Self::Stream) -> bool;
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    fn into_socket(self) -> io::Result<OwnedFd> {
        self.into_std().map(OwnedFd::from)
    }

    fn connection(socket: OwnedFd) -> io::Result<UnixStream> {
        UnixStream::from_std(socket.into())
    }

    /// This user and root, but no sandboxed process: a sandboxed process that reaches the socket must not
    /// start others.
    fn admits(stream: &UnixStream) -> bool {
        message::peer(stream).is_ok_and(|peer| {
            (peer.uid == outpost_sys::process::effective_uid() || peer.uid == 0)
                && !outpost_sys::confined::may_be_confined(peer.pid)
        })
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    fn into_socket(self) -> io::Result<OwnedFd> {
        self.into_std().map(OwnedFd::from)
    }

    fn connection(socket: OwnedFd) -> io::Result<TcpStream> {
        let stream = TcpStream::from_std(socket.into())?;
        // Small replies must not wait for larger ones.
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// [`crate::Peers`] checks TCP clients, so that they get a reply.
    fn admits(_: &TcpStream) -> bool {
        true
    }
}

/// The next connection; `None` when the socket was shut down. The accept of the runtime does not return then: a Unix
/// socket stays readable but has no connection, and the runtime tries again at once.
async fn accept<L: Listener>(listening: &UnixStream) -> io::Result<Option<L::Stream>> {
    loop {
        let ready = listening.ready(Interest::READABLE).await?;
        // Many waiting connections must not keep the thread from those that were accepted.
        tokio::task::coop::consume_budget().await;
        match listening.try_io(Interest::READABLE, || Ok(message::accept(listening)?)) {
            Ok(accepted) => return L::connection(accepted).map(Some),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if ready.is_read_closed() {
                    return Ok(None);
                }
            }
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

/// Accepts until [`stop_accepting`] or until the socket is shut down, with at most `max` concurrent connections. More wait
/// in the backlog.
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
    // A `UnixStream` is the runtime's type for any socket whose readiness is awaited.
    let registered = listener.into_socket().and_then(|socket| UnixStream::from_std(socket.into()));
    let listening = match registered {
        Ok(listening) => listening,
        Err(error) => return tracing::error!("[Server] cannot accept connections: {error}"),
    };
    let permits = Arc::new(Semaphore::new(max));
    let mut pause = PAUSE_MIN;
    loop {
        let next = async { (permits.clone().acquire_owned().await, accept::<L>(&listening).await) };
        let (permit, accepted) = tokio::select! {
            biased;
            _closed = ACCEPTING.acquire() => return,
            next = next => next,
        };
        match accepted {
            Ok(None) => return,
            Ok(Some(stream)) if !admits(&stream) => {
                tracing::warn!("[Server] a connection of another user or of a sandboxed process was refused");
            }
            Ok(Some(stream)) => {
                pause = PAUSE_MIN;
                let served = serve(stream);
                tokio::spawn(async move {
                    served.await;
                    drop(permit);
                });
            }
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

    async fn assert_ends(listener: impl Listener + AsFd + Sync + 'static) {
        let socket = listener.as_fd().try_clone_to_owned().unwrap();
        let accepting = tokio::spawn(accept_all(listener, 1, |_| std::future::ready(())));
        tokio::task::yield_now().await;
        message::shut_down(&socket);
        tokio::time::timeout(Duration::from_secs(30), accepting).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_loop_ends_when_its_socket_is_shut_down() {
        let dir = tempfile::tempdir().unwrap();
        assert_ends(UnixListener::bind(dir.path().join("socket")).unwrap()).await;
        assert_ends(TcpListener::bind("127.0.0.1:0").await.unwrap()).await;
    }
}
