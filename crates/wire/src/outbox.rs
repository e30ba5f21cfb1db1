//! The bounded way out of a connection: whole messages, in order, through one buffer that everybody appends to.

use crate::socket::WriteHalf;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Who has something to say waits while more than this waits for the peer. One message may go beyond.
const WAITING_BYTES: usize = 128 * 1024;
/// How often a connection is looked at that is neither read nor written: no event reports that its peer has left.
const PEER_LOOK: Duration = Duration::from_secs(1);
/// Empty buffers kept for whoever needs one next. Connections that have nothing to say have none.
const POOLED_MAX: usize = 4;
/// One that has grown beyond this is not kept.
const POOLED_BYTES_MAX: usize = 1024 * 1024;

static POOL: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// The connection is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

#[derive(Default)]
struct State {
    /// What the peer has not taken yet.
    waiting: Vec<u8>,
    /// The writing task has taken over: the socket was full.
    writing: bool,
    closed: bool,
}

struct Shared {
    socket: WriteHalf,
    state: Mutex<State>,
    /// There is something for the writing task.
    more: Notify,
    /// There is room, or there will never be any.
    room: Notify,
    closed: Notify,
}

/// Where the parts of a connection put what they have to say. Clones are the same outbox.
#[derive(Clone)]
pub struct Outbox {
    shared: Arc<Shared>,
}

impl Outbox {
    /// An outbox, and the task that writes what the socket had no room for. The task ends when the peer is gone or
    /// somebody closes the outbox.
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

    /// Lets `write` append messages as soon as there is room for more. They are sent at once if the socket takes them.
    pub async fn send(&self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), Closed> {
        // Nearly always there is room, and nobody has to wait.
        let mut write = match self.try_send(write) {
            Ok(sent) => return sent,
            Err(write) => write,
        };
        loop {
            let room = self.shared.room.notified();
            tokio::pin!(room);
            // Registered before we look, so that no notice can be missed between looking and waiting.
            room.as_mut().enable();
            write = match self.try_send(write) {
                Ok(sent) => return sent,
                Err(write) => write,
            };
            room.await;
        }
    }

    /// Gives `write` back when there is no room.
    fn try_send<W: FnOnce(&mut Vec<u8>)>(&self, write: W) -> Result<Result<(), Closed>, W> {
        let mut state = self.shared.state();
        if state.closed {
            return Ok(Err(Closed));
        }
        if state.waiting.len() >= WAITING_BYTES {
            return Err(write);
        }
        if state.waiting.capacity() == 0 {
            state.waiting = from_pool();
        }
        write(&mut state.waiting);
        Ok(self.shared.flush(&mut state))
    }

    /// Whether everything that was sent has been taken by the socket.
    pub fn is_empty(&self) -> bool {
        self.shared.state().waiting.is_empty()
    }

    /// Nothing more is sent, and who waits learns that.
    pub fn close(&self) {
        let mut state = self.shared.state();
        self.shared.close(&mut state);
    }

    pub fn is_closed(&self) -> bool {
        self.shared.state().closed
    }

    /// Waits until the socket has taken everything or the connection is gone.
    pub async fn drained(&self) {
        loop {
            let room = self.shared.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            {
                let state = self.shared.state();
                if state.closed || (state.waiting.is_empty() && !state.writing) {
                    return;
                }
            }
            room.await;
        }
    }

    /// Waits until the peer has closed both directions.
    pub async fn peer_gone(&self) {
        while !self.shared.socket.peer_is_gone() {
            tokio::time::sleep(PEER_LOOK).await;
        }
    }

    /// Waits for something while the peer is there. None when it has left before.
    pub async fn while_peer_stays<T>(&self, what: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(what);
        loop {
            // The timer first: mostly the wait is short.
            match tokio::time::timeout(PEER_LOOK, &mut what).await {
                Ok(done) => return Some(done),
                Err(_) if self.shared.socket.peer_is_gone() => return None,
                Err(_) => {}
            }
        }
    }

    /// Waits until the connection is gone.
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

    /// Writes what waits, or leaves it to the writing task when the socket is full.
    fn flush(&self, state: &mut State) -> Result<(), Closed> {
        if state.writing {
            return Ok(());
        }
        let mut done = 0;
        while let Some(rest) = state.waiting.get(done..).filter(|rest| !rest.is_empty()) {
            match self.socket.try_write(rest) {
                Ok(Some(written)) => done += written,
                Ok(None) => {
                    state.waiting.drain(..done);
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
        to_pool(&mut state.waiting);
        Ok(())
    }

    fn close(&self, state: &mut State) {
        state.closed = true;
        state.waiting = Vec::new();
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

/// Takes over whenever the socket was full, with a second buffer so that others can go on filling the first.
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
                if state.waiting.is_empty() {
                    state.writing = false;
                    to_pool(&mut state.waiting);
                    to_pool(&mut taken);
                    shared.room.notify_waiters();
                    break;
                }
                taken.clear();
                std::mem::swap(&mut state.waiting, &mut taken);
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
    async fn everything_arrives_in_order_though_the_peer_is_slow() {
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
    async fn a_peer_that_takes_nothing_costs_one_bounded_buffer() {
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
    async fn closing_wakes_those_who_wait_for_room() {
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
