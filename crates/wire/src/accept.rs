//! Accepting connections: each served by a task of its own, so many at a time.

use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;

/// How long to wait after a connection could not be accepted, at first and at most.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Never has a permit. Closed when this process accepts no more connections.
static ACCEPTING: Semaphore = Semaphore::const_new(0);

/// Ends all loops that accept connections, and closes their sockets: for a daemon that stops.
pub fn stop_accepting() {
    ACCEPTING.close();
}

/// Where connections come from.
pub trait Listener: Send {
    type Stream: Send + 'static;

    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Whether who is there may come in.
    fn admits(stream: &Self::Stream) -> bool;
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        UnixListener::accept(self).await.map(|(stream, _)| stream)
    }

    /// This user and root, but no sandboxed process: whatever it can reach of the file system, it shall not start others.
    fn admits(stream: &UnixStream) -> bool {
        outpost_sys::message::peer(stream).is_ok_and(|peer| {
            (peer.uid == outpost_sys::limits::effective_uid() || peer.uid == 0)
                && !outpost_sys::confined::may_be_confined(peer.pid)
        })
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = TcpListener::accept(self).await?;
        // Small answers shall not wait for larger ones.
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// [`crate::Peers`] looks it up, so that the client gets an answer.
    fn admits(_: &TcpStream) -> bool {
        true
    }
}

/// Accepts until [`stop_accepting`], at most `max` at a time; more wait in the backlog.
pub async fn accept_all<L, F, S>(listener: L, max: usize, serve: S)
where
    L: Listener,
    F: Future<Output = ()> + Send + 'static,
    S: Fn(L::Stream) -> F,
{
    accept_admitted(listener, max, L::admits, serve).await;
}

/// The same for whom `admits` lets in.
pub async fn accept_admitted<L, F, S>(listener: L, max: usize, admits: impl Fn(&L::Stream) -> bool, serve: S)
where
    L: Listener,
    F: Future<Output = ()> + Send + 'static,
    S: Fn(L::Stream) -> F,
{
    let places = Arc::new(Semaphore::new(max));
    let mut pause = PAUSE_MIN;
    loop {
        let next = async { (places.clone().acquire_owned().await, listener.accept().await) };
        let (place, accepted) = tokio::select! {
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
                    drop(place);
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
