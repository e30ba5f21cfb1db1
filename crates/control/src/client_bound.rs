//! Processes that end with their client: tracks which of them have a client and kills those that have none.

use outpost_engine::{Engine, Ladder, Process, Reach, Signal, Slot};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The key scope of client-bound processes. A new worker recognizes the processes of its predecessor by it.
pub(crate) const SCOPE: &str = "exec";

/// How long a client may take to attach, including the time to reconnect to a new worker.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);

/// Time between SIGHUP and SIGKILL.
const GRACE: Duration = Duration::from_secs(3);

/// The client-bound processes that have an attached client.
#[derive(Default)]
pub(crate) struct ClientBound {
    slots: Mutex<HashSet<Slot>>,
}

impl ClientBound {
    fn lock(&self) -> MutexGuard<'_, HashSet<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a client attached. Only for client-bound processes.
    pub(crate) fn client_attached(&self, process: &Process) {
        self.lock().insert(process.slot());
    }

    /// Kills the process, because its client disconnected.
    pub(crate) async fn client_left(&self, process: &Process) {
        self.lock().remove(&process.slot());
        hang_up(process).await;
    }

    /// Kills the process if no client attaches in time.
    pub(crate) fn await_client(self: &Arc<ClientBound>, process: Process) {
        let client_bound = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                _exit = process.finished() => {}
                () = tokio::time::sleep(ATTACH_TIMEOUT) => {
                    if !client_bound.lock().contains(&process.slot()) {
                        hang_up(&process).await;
                    }
                }
            }
        });
    }

    /// Takes over the processes of the previous worker. Their clients are about to reconnect, or are gone.
    pub(crate) async fn adopt(self: &Arc<ClientBound>, engine: &Engine, face: &str) {
        let processes = engine.list().await;
        let is_client_bound = |process: &Process| process.key().face == face && process.key().scope == SCOPE;
        let is_running = |process: &Process| process.status().exit().is_none();
        for process in processes.into_iter().filter(|process| is_client_bound(process) && is_running(process))
        {
            self.await_client(process);
        }
    }
}

async fn hang_up(process: &Process) {
    let ladder = Ladder { signal: Signal::HUP, reach: Reach::Tree, grace: GRACE, escalate: true };
    if let Err(error) = process.kill_and_wait(ladder).await {
        tracing::warn!(process = %process.slot(), %error, "cannot kill a command whose client disconnected");
    }
}
