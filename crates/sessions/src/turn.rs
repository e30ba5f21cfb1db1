//! Turns: a message goes to a CLI, and the CLI's output becomes events up to exactly one terminal event.
//!
//! [`run_turns`] is the runner of a session. It opens the turn's log, launches the CLI (`launch`) or reuses a warm process
//! (`warm_pool`), and follows its output (`running`). After each batch of output, the turn writes its events, its
//! `checkpoint` and the input for the CLI, in this order. So a turn survives the death of its worker at any point.

pub(crate) mod agent_dirs;
pub(crate) mod checkpoint;
mod deadlines;
pub(crate) mod launch;
pub(crate) mod output;
pub(crate) mod output_lines;
pub(crate) mod permission_quota;
mod permissions;
pub(crate) mod placeholder_files;
mod running;
pub(crate) mod sandbox;
mod terminal_event;
pub(crate) mod terminate;
pub(crate) mod warm_pool;

use crate::Result;
use crate::face::Face;
use crate::session::{Session, Stop, Turn};
use crate::store::retention;
use checkpoint::process_of;
use deadlines::EXIT_GRACE;
use std::sync::Arc;
use terminate::terminate;
use tracing::Instrument;

/// Runs the turns of a session in order, until none is left.
pub(crate) async fn run_turns(face: Arc<Face>, session: Arc<Session>, first: Turn) {
    let mut next = Some(first);
    while let Some(turn) = next {
        let number = turn.number;
        let span = tracing::info_span!("turn", session = session.id, turn = number);
        if let Err(error) = run(&face, &session, turn).instrument(span).await {
            tracing::error!(session = session.id, turn = number, %error, "cannot write the log of a turn");
            retention::fail_turn(&session, number, &error);
            // Without a log, the output of the process is lost.
            let process = launch::key(&session, process_of(&session, number));
            if let Some(process) = face.engine.find(&process).await {
                terminate(&process).await;
            }
        }
        retention::finish_turn(&face, &session, number).await;
        next = if face.shutdown.is_stopping() { session.release_runner() } else { session.advance_runner() };
    }
    face.runner_stopped(&session);
    session.changed();
}

async fn run(face: &Arc<Face>, session: &Arc<Session>, turn: Turn) -> Result<()> {
    reset_stop(session, turn.number);
    let mut stop = session.stop.subscribe();
    let (mut running, known) = running::open(face, session, turn).await?;
    let process = match known {
        Some(process) if !running.is_started() && running.is_cancelled() => {
            running.end_interrupted().await?;
            terminate(&process).await;
            return Ok(());
        }
        Some(process) => process,
        None if running.is_final() => return Ok(()),
        None if running.is_cancelled() => return running.end_interrupted().await,
        None => match running.launch().await {
            Ok(process) => process,
            Err(failure) => return running.end_not_launched(&failure).await,
        },
    };
    if running.is_final() {
        // Publish first: clients do not wait for the exit of the process.
        running.publish(None).await?;
        if !running.keeps_process() {
            let _too_long = tokio::time::timeout(EXIT_GRACE, process.exited()).await;
        }
        terminate(&process).await;
        return Ok(());
    }
    running.start(&process).await?;
    running.resume_questions().await;
    let followed = running.follow(&process, &mut stop).await;
    if followed.is_err() {
        // The log cannot be written, so no answer could reach the CLI.
        running.withdraw_questions().await;
        running.erase_resolved();
    }
    match followed? {
        Some(ended) => {
            running.finish(ended).await?;
            // Descendants that the CLI left behind must not outlive the turn.
            let _none_left = process.kill_tree().await;
        }
        None => warm_pool::keep(face, running.into_warm_process()),
    }
    Ok(())
}

/// Clears a stop request of an earlier turn. Sets one if this turn is cancelled already, perhaps by an earlier worker.
fn reset_stop(session: &Session, turn: u64) {
    let state = session.state();
    let is_cancelled = state.turn(turn).is_none_or(|turn| turn.is_cancelled);
    session.stop.send_if_modified(|stop| match (*stop, is_cancelled) {
        (Some(Stop::Interrupted), false) => stop.take().is_some(),
        (None, true) => stop.replace(Stop::Interrupted).is_none(),
        _ => false,
    });
}
