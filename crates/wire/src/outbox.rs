//! The bounded way out of a connection: whole messages, in order, in buffers that are used again.

use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

/// Messages that may wait. Who has more to say waits, and nobody else does.
const WAITING_MAX: usize = 2;
/// Empty buffers kept for the next messages.
const BUFFERS_MAX: usize = 2;

/// The connection is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

/// Where the parts of a connection put what they have to say. Clones are the same outbox.
#[derive(Clone)]
pub struct Outbox {
    queue: mpsc::Sender<Vec<u8>>,
    empty: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Outbox {
    /// An outbox, and the task that writes what is put into it. It ends when all clones are gone or the peer is.
    pub fn new<W: AsyncWrite + Unpin>(mut writer: W) -> (Outbox, impl Future<Output = ()>) {
        let (queue, mut waiting) = mpsc::channel::<Vec<u8>>(WAITING_MAX);
        let empty = Arc::new(Mutex::new(Vec::new()));
        let pool = empty.clone();
        let write_all = async move {
            while let Some(mut message) = waiting.recv().await {
                if writer.write_all(&message).await.is_err() {
                    return;
                }
                message.clear();
                give_back(&pool, message);
            }
            let _peer_gone = writer.shutdown().await;
        };
        (Outbox { queue, empty }, write_all)
    }

    /// An empty buffer for a message.
    pub fn buffer(&self) -> Vec<u8> {
        self.empty.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Puts a message, waiting for its turn.
    pub async fn put(&self, message: Vec<u8>) -> Result<(), Closed> {
        self.queue.send(message).await.map_err(|_| Closed)
    }

    /// Waits until the connection is gone.
    pub async fn closed(&self) {
        self.queue.closed().await;
    }
}

fn give_back(pool: &Mutex<Vec<Vec<u8>>>, buffer: Vec<u8>) {
    let mut pool = pool.lock().unwrap_or_else(PoisonError::into_inner);
    if pool.len() < BUFFERS_MAX {
        pool.push(buffer);
    }
}
