//! The end of the daemon's processes: their grace time, what cuts it short, and the report of how each ended.

use crate::orders::{Asked, Reply};
use outpost_control::exit_status;
use outpost_control::wire::{StopReport, StoppedProcess};
use outpost_engine::{Engine, Notice, Stopped};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// How long processes may take to end after SIGTERM, unless the configuration or the caller says otherwise.
pub(crate) const GRACE: Duration = Duration::from_secs(10);

/// Time for a report to reach its client before the worker exits.
const REPORT_FLUSH: Duration = Duration::from_millis(20);

/// Clients that wait for the report.
pub(crate) type Replies = Vec<Reply<StopReport>>;

/// Stops every process and reports how each ended. Another signal to the keeper, or a stop without a grace time, kills what
/// is left at once.
pub(crate) async fn stop_processes(
    engine: &Engine,
    grace: Duration,
    notices: &mut watch::Receiver<Option<Notice>>,
    orders: &mut mpsc::Receiver<Asked>,
    mut replies: Replies,
) -> Result<(), String> {
    let running = engine.running();
    if running > 0 && !grace.is_zero() {
        tracing::info!(
            processes = running,
            grace_s = grace.as_secs_f32(),
            "stopping: processes get SIGTERM; a second signal, or `outpost stop --grace 0`, kills them at once"
        );
    }
    let hurry = hurry(notices, orders, &mut replies);
    let stopped = engine.stop_processes(grace, hurry).await.map_err(|error| error.to_string())?;
    for stopped in &stopped {
        let (id, exit, killed) = (&stopped.key.id, stopped.exit.map(|exit| exit.how), stopped.killed);
        tracing::info!(process = %stopped.slot, id, ?exit, killed, "stopped");
    }
    let report = StopReport { processes: stopped.iter().map(describe).collect() };
    let is_awaited = !replies.is_empty();
    for reply in replies {
        let _gone = reply.send(Ok(report.clone()));
    }
    if is_awaited {
        tokio::time::sleep(REPORT_FLUSH).await;
    }
    Ok(())
}

/// Completes when the grace time is to be cut short. Never completes when no more can be asked.
async fn hurry(
    notices: &mut watch::Receiver<Option<Notice>>,
    orders: &mut mpsc::Receiver<Asked>,
    replies: &mut Replies,
) {
    // Each side can end while the other goes on: the control socket without clients, the engine with its keeper.
    let (mut notified, mut ordered) = (true, true);
    loop {
        tokio::select! {
            changed = notices.changed(), if notified => match changed {
                Ok(()) if *notices.borrow_and_update() == Some(Notice::Shutdown) => return,
                Ok(()) => {}
                Err(_) => notified = false,
            },
            order = orders.recv(), if ordered => match order {
                Some(Asked::End { grace, reply }) => {
                    replies.extend(reply);
                    if grace.is_some_and(|grace| grace.is_zero()) {
                        return;
                    }
                }
                // The sender sees that the daemon is ending.
                Some(_) => {}
                None => ordered = false,
            },
            else => std::future::pending().await,
        }
    }
}

fn describe(stopped: &Stopped) -> StoppedProcess {
    StoppedProcess {
        process: stopped.slot.to_string(),
        face: stopped.key.face.clone(),
        id: stopped.key.id.clone(),
        exit: stopped.exit.map(exit_status),
        killed: stopped.killed,
    }
}
