//! Standard input of a command: queued in order, delivered at the pace of the command.

use super::Command;
use crate::wire::{Failure, OVERLOADED};
use outpost_engine::{Accepted, Error, Process};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// Limit of queued writes per command; their bytes are limited per connection.
const WRITES_MAX: usize = 16 * 1024;

/// Ends the input of a terminal: a newline and VEOF.
const TERMINAL_END: &[u8] = b"\n\x04";

pub(crate) struct Input {
    pub(crate) bytes: Vec<u8>,
    pub(crate) close: bool,
    /// Share of the connection's limit; released when the bytes are delivered or dropped.
    pub(crate) room: OwnedSemaphorePermit,
}

pub(crate) struct Stdin {
    queue: mpsc::Sender<Input>,
    closed: AtomicBool,
}

impl Stdin {
    pub(super) fn new() -> (Stdin, mpsc::Receiver<Input>) {
        let (queue, queued) = mpsc::channel(WRITES_MAX);
        (Stdin { queue, closed: AtomicBool::new(false) }, queued)
    }

    /// Whether `closeStdin` has been queued.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    pub(crate) fn queue(&self, input: Input) -> Result<(), Failure> {
        let close = input.close;
        match self.queue.try_send(input) {
            Ok(()) => {
                self.closed.fetch_or(close, Ordering::Relaxed);
                Ok(())
            }
            Err(_full) => Err(Failure::new(OVERLOADED, "Server overloaded; retry later.")),
        }
    }
}

/// Delivers queued input in order. A command that does not read blocks only this future.
pub(super) async fn feed(command: &Command, mut queued: mpsc::Receiver<Input>) {
    let Some(process) = command.started().await else { return };
    while let Some(Input { bytes, close, room }) = queued.recv().await {
        deliver(&process, bytes).await;
        drop(room);
        if close {
            close_input(command, &process).await;
        }
    }
}

/// "writing to a process that closed its stdin gives `{}` and the bytes vanish".
async fn deliver(process: &Process, bytes: Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let bytes = Arc::new(bytes);
    loop {
        match process.write_stdin(None, bytes.clone()).await {
            Ok(Accepted::Full { applied, .. }) => {
                if process.stdin_room(applied, bytes.len() as u64).await.is_err() {
                    return;
                }
            }
            Ok(_) | Err(Error::NotRunning | Error::NoStdin) => return,
            Err(error) => {
                return tracing::warn!(process = %process.slot(), %error, "cannot deliver input to a command");
            }
        }
    }
}

async fn close_input(command: &Command, process: &Process) {
    if command.terminal {
        return deliver(process, TERMINAL_END.to_vec()).await;
    }
    match process.close_stdin().await {
        Ok(()) | Err(Error::NotRunning) => {}
        Err(error) => {
            tracing::warn!(process = %process.slot(), %error, "cannot close the input of a command")
        }
    }
}
