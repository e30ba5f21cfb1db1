//! What the engine cannot do now: it is shown by `status`, `ps` and `doctor`, and by a supervisor.

use crate::faces::{self, Board};
use outpost_engine::Engine;
use std::sync::Arc;
use std::time::Duration;

/// How often at most a supervisor gets news.
const NEWS_APART: Duration = Duration::from_secs(1);

/// Shows that processes wait because they cannot be recorded, as on a full disk, and when all go on.
pub(crate) async fn show_stalls(engine: Engine, board: Arc<Board>) {
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
        board.note("recording", outcome);
        tell_supervisor(&engine, &board).await;
        tokio::time::sleep(NEWS_APART).await;
    }
}

/// Shows that there is no keeper, or that processes of an earlier worker could not be taken over.
pub(crate) async fn show_lacks(engine: Engine, board: Arc<Board>) {
    let mut lacks = engine.lacks();
    let mut shown = outpost_engine::Lacks::default();
    while lacks.wait_for(|lacks| *lacks != shown).await.is_ok() {
        shown = lacks.borrow_and_update().clone();
        let keeper = shown.keeper.as_ref().map(|reason| {
            format!("cannot be started ({reason}); if the worker is killed before, every process is lost")
        });
        let untaken = (shown.untaken > 0).then(|| {
            let count = shown.untaken;
            format!("{count} of an earlier worker run and cannot be taken over yet; raise the descriptor limit or free disk space")
        });
        board.note("keeper", keeper.map_or(Ok(()), Err));
        board.note("processes", untaken.map_or(Ok(()), Err));
        tell_supervisor(&engine, &board).await;
        tokio::time::sleep(NEWS_APART).await;
    }
}

/// Tells a supervisor what cannot work now, and when all does.
pub(crate) async fn tell_supervisor(engine: &Engine, board: &Board) {
    let _stopping = engine.say(&faces::status_text(&board.problems())).await;
}
