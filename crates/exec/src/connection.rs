//! One client: its lines, its handshake, and the commands that live and die with it.

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

/// The original has no limit. A line that is longer is no request.
const LINE_BYTES: usize = 64 * 1024 * 1024;

/// What one client may have waiting for the standard input of its commands, beyond what their logs hold.
const STDIN_WAITING_BYTES: usize = 64 * 1024 * 1024;

/// Commands of one client that run or wait for their turn.
const COMMANDS_MAX: usize = 16 * 1024;

pub(crate) struct Connection {
    pub(crate) server: Arc<Server>,
    pub(crate) outbox: Outbox,
    pub(crate) number: u64,
    state: Mutex<State>,
    /// Bytes that may still be queued for standard inputs. Queued input holds its permits until it is dropped.
    stdin_room: Arc<Semaphore>,
    /// Commands that have not been answered.
    running: AtomicUsize,
    /// One has been.
    ended: Notify,
    closing: watch::Sender<bool>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) initialized: bool,
    pub(crate) wants_no_deltas: bool,
    /// By the ids that the client gave them.
    pub(crate) commands: HashMap<String, Arc<Command>>,
}

/// Serves a client until it is gone or has been told everything after its last word, and ends what it started.
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
                Ok(Line::Cut(_) | Line::End) | Err(_) => return Ok(()),
            };
            if !line.trim_ascii().is_empty() {
                self.handle(line).await?;
            }
            // One who floods shall not keep the thread.
            tokio::task::consume_budget().await;
        }
    }

    async fn handle(self: &Arc<Connection>, line: &[u8]) -> Result<(), Closed> {
        match Incoming::parse(line) {
            Incoming::Request { id, method, params } => methods::call(self, id, &method, params).await,
            Incoming::Notification | Incoming::Reply => Ok(()),
            Incoming::Bad(id, failure) => {
                tracing::debug!(%failure.message, "a message that is none");
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

    /// Room for input on its way to a command; none when too much waits.
    pub(crate) fn take_stdin_room(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = u32::try_from(bytes).ok()?;
        self.stdin_room.clone().try_acquire_many_owned(bytes).ok()
    }

    /// Counts a command that begins; false when there are too many.
    pub(crate) fn begin_command(&self) -> bool {
        let fits = |running: usize| Some(running + 1).filter(|sum| *sum <= COMMANDS_MAX);
        self.running.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).is_ok()
    }

    pub(crate) fn end_command(&self) {
        self.running.fetch_sub(1, Ordering::AcqRel);
        self.ended.notify_waiters();
    }

    /// Waits until the client is gone.
    pub(crate) async fn closing(&self) {
        let mut closing = self.closing.subscribe();
        // The sender lives as long as we do.
        let _closed = closing.wait_for(|closing| *closing).await;
    }

    async fn all_ended(&self) {
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            // Registered before we look, so that no notice can be missed between looking and waiting.
            ended.as_mut().enable();
            if self.running.load(Ordering::Acquire) == 0 {
                return;
            }
            ended.await;
        }
    }
}
