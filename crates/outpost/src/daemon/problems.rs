//! Publishes problems of the engine to `status`, `ps`, `doctor` and the supervisor.

use super::faces::{self, ComponentRegistry};
use outpost_engine::Engine;
use std::sync::Arc;
use std::time::Duration;

/// The shortest interval between two status messages to the supervisor.
const STATUS_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// Publishes how many processes are stalled because their output cannot be recorded, as on a full disk.
pub(crate) async fn watch_stalls(engine: Engine, registry: Arc<ComponentRegistry>) {
    let mut stalls = engine.stalls();
    if engine.stalled() > 0 {
        stalls.mark_changed();
    }
    while stalls.changed().await.is_ok() {
        let reason = stalls.borrow_and_update().clone();
        let outcome = match engine.stalled() {
            0 => Ok(()),
            processes => Err(format!("fails, {processes} processes wait: {reason}")),
        };
        registry.set_outcome("recording", outcome);
        notify_status(&engine, &registry).await;
        tokio::time::sleep(STATUS_INTERVAL_MIN).await;
    }
}

/// Publishes that there is no keeper, or that processes of an earlier worker could not be taken over.
pub(crate) async fn watch_degradation(engine: Engine, registry: Arc<ComponentRegistry>) {
    let mut lacks = engine.lacks();
    let mut shown = outpost_engine::Lacks::default();
    while lacks.wait_for(|lacks| *lacks != shown).await.is_ok() {
        shown = lacks.borrow_and_update().clone();
        let keeper = shown.keeper.as_ref().map(|reason| {
            format!("cannot be started ({reason}); if the worker is killed before, every process is lost")
        });
        let untaken = (shown.unadopted > 0).then(|| {
            let count = shown.unadopted;
            format!("{count} of an earlier worker run and cannot be taken over yet; raise the descriptor limit or free disk space")
        });
        registry.set_outcome("keeper", keeper.map_or(Ok(()), Err));
        registry.set_outcome("processes", untaken.map_or(Ok(()), Err));
        notify_status(&engine, &registry).await;
        tokio::time::sleep(STATUS_INTERVAL_MIN).await;
    }
}

/// Sends the list of problems to the supervisor as `STATUS=`.
pub(crate) async fn notify_status(engine: &Engine, registry: &ComponentRegistry) {
    let _stopping = engine.show_status(&faces::status_text(&registry.problems())).await;
}
