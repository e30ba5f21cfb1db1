//! Outboxes: the bounded send buffer of a connection, which keeps messages whole and in order.

use crate::socket::WriteHalf;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Senders block while this many bytes are queued. One message may exceed it.
const HIGH_WATER_BYTES: usize = 128 * 1024;
/// How often to poll for the peer of a connection that is neither read nor written: no event reports its
/// close.
const PEER_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Pooled empty buffers. An idle connection has none.
const POOLED_MAX: usize = 4;
/// A larger buffer is not pooled.
const POOLED_BYTES_MAX: usize = 1024 * 1024;

static POOL: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// The connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

#[derive(Default)]
struct State {
    /// Bytes that the socket has not accepted yet.
    queued: Vec<u8>,
    /// The writing task has taken over, because the socket was full.
    writing: bool,
    closed: bool,
}

struct Shared {
    socket: WriteHalf,
    state: Mutex<State>,
    /// Wakes the writing task.
    more: Notify,
    /// There is room, or the connection is closed.
    room: Notify,
    closed: Notify,
}

/// The send side of a connection. Clones share the same outbox.
#[derive(Clone)]
pub struct Outbox {
    shared: Arc<Shared>,
}

impl Outbox {
    /// Creates an outbox, and the task that writes what the socket did not accept. The task ends when the
    /// peer is gone or the outbox is closed.
    pub fn new(socket: WriteHalf) -> (Outbox, impl Future<Output = ()> + Send) {
        let shared = Arc::new(Shared {
            socket,
            state: Mutex::default(),
            more: Notify::new(),
            room: Notify::new(),
            closed: Notify::new(),
        });
        (Outbox { shared: shared.clone() }, write_out(shared))
    }

    /// Lets `write` append messages as soon as there is room. They are sent at once if the socket accepts
    /// them.
    pub async fn send(&self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), Closed> {
        // Usually there is room.
        let mut write = match self.try_send(write) {
            Ok(sent) => return sent,
            Err(write) => write,
        };
        loop {
            let room = self.shared.room.notified();
            tokio::pin!(room);
            // Registered before the check, so that no notification is missed between check and wait.
            room.as_mut().enable();
            write = match self.try_send(write) {
                Ok(sent) => return sent,
                Err(write) => write,
            };
            room.await;
        }
    }

    /// Returns `write` when there is no room.
    fn try_send<W: FnOnce(&mut Vec<u8>)>(&self, write: W) -> Result<Result<(), Closed>, W> {
        let mut state = self.shared.state();
        if state.closed {
            return Ok(Err(Closed));
        }
        if state.queued.len() >= HIGH_WATER_BYTES {
            return Err(write);
        }
        if state.queued.capacity() == 0 {
            state.queued = from_pool();
        }
        write(&mut state.queued);
        Ok(self.shared.flush(&mut state))
    }

    /// Whether the socket has accepted everything.
    pub fn is_empty(&self) -> bool {
        self.shared.state().queued.is_empty()
    }

    /// Closes the connection and wakes all senders.
    pub fn close(&self) {
        let mut state = self.shared.state();
        self.shared.close(&mut state);
    }

    pub fn is_closed(&self) -> bool {
        self.shared.state().closed
    }

    /// Waits until the socket has accepted everything or the connection is closed.
    pub async fn drained(&self) {
        loop {
            let room = self.shared.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            {
                let state = self.shared.state();
                if state.closed || (state.queued.is_empty() && !state.writing) {
                    return;
                }
            }
            room.await;
        }
    }

    /// Waits until the peer has closed both directions.
    pub async fn peer_gone(&self) {
        while !self.shared.socket.peer_is_gone() {
            tokio::time::sleep(PEER_POLL_INTERVAL).await;
        }
    }

    /// Waits for a future while the peer is connected. `None` when the peer leaves before.
    pub async fn while_peer_stays<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(future);
        loop {
            // The timer first: usually the wait is short.
            match tokio::time::timeout(PEER_POLL_INTERVAL, &mut future).await {
                Ok(done) => return Some(done),
                Err(_) if self.shared.socket.peer_is_gone() => return None,
                Err(_) => {}
            }
        }
    }

    /// Waits until the connection is closed.
    pub async fn closed(&self) {
        let closed = self.shared.closed.notified();
        tokio::pin!(closed);
        closed.as_mut().enable();
        if !self.is_closed() {
            closed.await;
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes queued bytes, or leaves them to the writing task when the socket is full.
    fn flush(&self, state: &mut State) -> Result<(), Closed> {
        if state.writing {
            return Ok(());
        }
        let mut done = 0;
        while let Some(rest) = state.queued.get(done..).filter(|rest| !rest.is_empty()) {
            match self.socket.try_write(rest) {
                Ok(Some(written)) => done += written,
                Ok(None) => {
                    state.queued.drain(..done);
                    state.writing = true;
                    self.more.notify_one();
                    return Ok(());
                }
                Err(_) => {
                    self.close(state);
                    return Err(Closed);
                }
            }
        }
        to_pool(&mut state.queued);
        Ok(())
    }

    fn close(&self, state: &mut State) {
        state.closed = true;
        state.queued = Vec::new();
        self.socket.close();
        self.more.notify_one();
        self.room.notify_waiters();
        self.closed.notify_waiters();
    }
}

fn from_pool() -> Vec<u8> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
}

fn to_pool(buffer: &mut Vec<u8>) {
    let mut buffer = std::mem::take(buffer);
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    if pool.len() < POOLED_MAX && (1..=POOLED_BYTES_MAX).contains(&buffer.capacity()) {
        buffer.clear();
        pool.push(buffer);
    }
}

/// The writing task. It uses a second buffer, so that senders can fill the first meanwhile.
async fn write_out(shared: Arc<Shared>) {
    let mut taken = Vec::new();
    loop {
        shared.more.notified().await;
        loop {
            {
                let mut state = shared.state();
                if state.closed {
                    return;
                }
                if state.queued.is_empty() {
                    state.writing = false;
                    to_pool(&mut state.queued);
                    to_pool(&mut taken);
                    shared.room.notify_waiters();
                    break;
                }
                taken.clear();
                std::mem::swap(&mut state.queued, &mut taken);
                shared.room.notify_waiters();
            }
            if write_all(&shared, &taken).await.is_err() {
                shared.close(&mut shared.state());
                return;
            }
        }
    }
}

async fn write_all(shared: &Shared, mut bytes: &[u8]) -> io::Result<()> {
    let mut room = shared.socket.watch()?;
    while !bytes.is_empty() {
        let written = tokio::select! {
            written = room.write(bytes) => written?,
            () = shared.closed.notified() => return Err(io::ErrorKind::BrokenPipe.into()),
        };
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::io::AsyncReadExt;
    use tokio::net::UnixStream;

    async fn within<T>(what: impl Future<Output = T>) -> T {
        tokio::time::timeout(Duration::from_secs(30), what).await.unwrap()
    }

    #[tokio::test]
    async fn everything_arrives_in_order_at_a_slow_peer() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (_reader, writer) = crate::split(ours).unwrap();
        let (outbox, writing) = Outbox::new(writer);
        tokio::spawn(writing);
        let sender = outbox.clone();
        let sending = tokio::spawn(async move {
            for number in 0..2000u32 {
                let message = number.to_le_bytes().repeat(1000);
                sender.send(|out| out.extend_from_slice(&message)).await.unwrap();
            }
        });
        let mut received = vec![0; 2000 * 4000];
        within(theirs.read_exact(&mut received)).await.unwrap();
        for (number, message) in received.chunks(4000).enumerate() {
            assert!(message == (number as u32).to_le_bytes().repeat(1000), "message {number}");
        }
        within(sending).await.unwrap();
        within(outbox.drained()).await;
    }

    #[tokio::test]
    async fn a_peer_that_reads_nothing_costs_one_bounded_buffer() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (_reader, writer) = crate::split(ours).unwrap();
        let (outbox, writing) = Outbox::new(writer);
        let writing = tokio::spawn(writing);
        let message = vec![b'x'; 64 * 1024];
        let mut accepted = 0;
        let wait = Duration::from_millis(200);
        while let Ok(sent) =
            tokio::time::timeout(wait, outbox.send(|out| out.extend_from_slice(&message))).await
        {
            sent.unwrap();
            accepted += 1;
            assert!(accepted < 100, "an outbox without a bound");
        }
        drop(theirs);
        within(outbox.closed()).await;
        assert_eq!(within(outbox.send(|_| ())).await, Err(Closed));
        within(writing).await.unwrap();
    }

    #[tokio::test]
    async fn close_wakes_blocked_senders() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let (_reader, writer) = crate::split(ours).unwrap();
        let (outbox, writing) = Outbox::new(writer);
        let writing = tokio::spawn(writing);
        let sender = outbox.clone();
        let full = tokio::spawn(async move {
            while sender.send(|out| out.resize(out.len() + 64 * 1024, 0)).await.is_ok() {
                tokio::task::yield_now().await;
            }
        });
        while outbox.is_empty() {
            tokio::task::yield_now().await;
        }
        outbox.close();
        within(full).await.unwrap();
        within(writing).await.unwrap();
    }
}
