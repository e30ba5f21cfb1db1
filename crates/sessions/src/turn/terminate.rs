//! Ends the process of a CLI with all its descendants.

use outpost_engine::{Ladder, Process, Reach, Signal};
use std::time::Duration;

/// "SIGKILL after 5 seconds if not exited".
const KILL_GRACE: Duration = Duration::from_secs(5);

/// Sends SIGTERM to the process tree, then SIGKILL after [`KILL_GRACE`]. Returns when the process has exited.
pub(crate) async fn terminate(process: &Process) {
    let ladder = Ladder { signal: Signal::TERM, reach: Reach::Tree, grace: KILL_GRACE, escalate: true };
    if let Err(error) = process.kill_and_wait(ladder).await {
        tracing::warn!(%error, "cannot end the process of a CLI");
    }
}

/// Ends the process in a task of its own, while its remaining output is still read.
pub(crate) fn terminate_in_background(process: Process) {
    tokio::spawn(async move { terminate(&process).await });
}
