//! Processes that end with their client: who has one, and what becomes of it when nobody has.

use outpost_engine::{Engine, Ladder, Process, Reach, Signal, Slot};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The scope of their keys: by it a worker knows those of the one before it.
pub(crate) const SCOPE: &str = "exec";

/// How long a client may take to attach, also when it has to find a new worker first.
const CLIENT_PATIENCE: Duration = Duration::from_secs(10);

/// How long a process may take to end after a hang-up.
const GRACE: Duration = Duration::from_secs(3);

/// Those that have a client now.
#[derive(Default)]
pub(crate) struct Owned {
    slots: Mutex<HashSet<Slot>>,
}

impl Owned {
    fn lock(&self) -> MutexGuard<'_, HashSet<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody has it. Not for processes of another kind.
    pub(crate) fn take(&self, process: &Process) {
        self.lock().insert(process.slot());
    }

    /// Its client is gone: so is what it started.
    pub(crate) async fn abandon(&self, process: &Process) {
        self.lock().remove(&process.slot());
        end(process).await;
    }

    /// Ends a process whose client does not come.
    pub(crate) fn await_client(self: &Arc<Owned>, process: Process) {
        let owned = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ended = process.finished() => {}
                () = tokio::time::sleep(CLIENT_PATIENCE) => {
                    if !owned.lock().contains(&process.slot()) {
                        end(&process).await;
                    }
                }
            }
        });
    }

    /// Those of the worker before us, whose clients are on their way or gone.
    pub(crate) async fn inherit(self: &Arc<Owned>, engine: &Engine, face: &str) {
        let processes = engine.list().await;
        let ours = |process: &Process| process.key().face == face && process.key().scope == SCOPE;
        let alive = |process: &Process| process.status().exit().is_none();
        for process in processes.into_iter().filter(|process| ours(process) && alive(process)) {
            self.await_client(process);
        }
    }
}

async fn end(process: &Process) {
    let ladder = Ladder { signal: Signal::HUP, reach: Reach::Tree, grace: GRACE, escalate: true };
    if let Err(error) = process.kill_and_wait(ladder).await {
        tracing::warn!(process = %process.slot(), %error, "a command whose client left cannot be ended");
    }
}
