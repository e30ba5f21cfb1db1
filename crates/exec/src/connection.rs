//! One client connection: its lines, its handshake, and the commands bound to it.

use crate::command::Command;
use crate::methods;
use crate::server::Server;
use crate::wire::{Failure, Id, Incoming, append_reply};
use outpost_wire::{Closed, Line, Lines, Outbox, ReadHalf, WriteHalf};
use serde::Serialize;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

/// Largest request line. The original has no limit.
const LINE_BYTES: usize = 64 * 1024 * 1024;

/// Limit of stdin bytes queued by one client, beyond what the stdin logs hold.
const STDIN_WAITING_BYTES: usize = 64 * 1024 * 1024;

/// Limit of running and waiting commands of one client.
const COMMANDS_MAX: usize = 16 * 1024;

pub(crate) struct Connection {
    pub(crate) server: Arc<Server>,
    pub(crate) outbox: Outbox,
    pub(crate) number: u64,
    state: Mutex<State>,
    /// Remaining bytes of stdin that may be queued. Queued input holds its permits until it is dropped.
    stdin_room: Arc<Semaphore>,
    /// Commands without a reply yet.
    running: AtomicUsize,
    /// Signalled after each reply to a command.
    ended: Notify,
    closing: watch::Sender<bool>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) initialized: bool,
    pub(crate) opted_out_of_deltas: bool,
    /// Keyed by the client's process ids.
    pub(crate) commands: HashMap<String, Arc<Command>>,
}

/// Serves a client until it disconnects, or until all replies after its last request are sent. Then kills its commands.
pub async fn serve(server: Arc<Server>, (reader, writer): (ReadHalf, WriteHalf)) {
    let (outbox, writing) = Outbox::new(writer);
    let writing = tokio::spawn(writing);
    let connection = Arc::new(Connection {
        number: server.next_connection(),
        server,
        outbox: outbox.clone(),
        state: Mutex::default(),
        stdin_room: Arc::new(Semaphore::new(STDIN_WAITING_BYTES)),
        running: AtomicUsize::new(0),
        ended: Notify::new(),
        closing: watch::Sender::new(false),
    });
    let lines = Lines::new(reader, LINE_BYTES);
    tokio::select! {
        _gone = connection.read(lines) => {}
        () = outbox.closed() => {}
    }
    // "Connection closed -> every command of that connection gets SIGKILL", with everything that it started.
    connection.closing.send_replace(true);
    connection.all_ended().await;
    outbox.close();
    let _ended = writing.await;
}

impl Connection {
    async fn read(self: &Arc<Connection>, mut lines: Lines) -> Result<(), Closed> {
        loop {
            let line = match lines.next().await {
                Ok(Line::Whole(line)) => line,
                Ok(Line::TooLong) => {
                    let refused = Failure::invalid_request(format!(
                        "Invalid request: a line has more than {LINE_BYTES} bytes; the connection is closed"
                    ));
                    return self.reply::<()>(&Id::Null, &Err(refused)).await;
                }
                Ok(Line::Truncated(_) | Line::Eof) | Err(_) => return Ok(()),
            };
            if !line.trim_ascii().is_empty() {
                self.handle(line).await?;
            }
            // A flooding client must not monopolise the thread.
            tokio::task::consume_budget().await;
        }
    }

    async fn handle(self: &Arc<Connection>, line: &[u8]) -> Result<(), Closed> {
        match Incoming::parse(line) {
            Incoming::Request { id, method, params } => methods::call(self, id, &method, params).await,
            Incoming::Notification | Incoming::Reply => Ok(()),
            Incoming::Bad(id, failure) => {
                tracing::debug!(%failure.message, "malformed message");
                self.reply::<()>(&id, &Err(failure)).await
            }
        }
    }

    pub(crate) async fn reply<T: Serialize>(
        &self,
        id: &Id,
        outcome: &Result<T, Failure>,
    ) -> Result<(), Closed> {
        self.outbox.send(|out| append_reply(out, id, outcome)).await
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves room for stdin bytes; `None` when the limit is reached.
    pub(crate) fn take_stdin_room(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = u32::try_from(bytes).ok()?;
        self.stdin_room.clone().try_acquire_many_owned(bytes).ok()
    }

    /// Counts a new command; false when the limit is reached.
    pub(crate) fn begin_command(&self) -> bool {
        let fits = |running: usize| Some(running + 1).filter(|sum| *sum <= COMMANDS_MAX);
        self.running.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).is_ok()
    }

    pub(crate) fn end_command(&self) {
        self.running.fetch_sub(1, Ordering::AcqRel);
        self.ended.notify_waiters();
    }

    /// Waits until the client disconnects.
    pub(crate) async fn closing(&self) {
        let mut closing = self.closing.subscribe();
        // The sender is a field of self, so the channel cannot close first.
        let _closed = closing.wait_for(|closing| *closing).await;
    }

    async fn all_ended(&self) {
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            // Register before the check: no notification between check and await is missed.
            ended.as_mut().enable();
            if self.running.load(Ordering::Acquire) == 0 {
                return;
            }
            ended.await;
        }
    }
}
