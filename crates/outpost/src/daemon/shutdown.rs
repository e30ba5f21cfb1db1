//! Stops the daemon's processes at shutdown: grace time, forced stop, and the report of each exit.

use super::control_handler::{Reply, WorkerCommand};
use outpost_control::exit_status;
use outpost_control::wire::{StopReport, StoppedProcess};
use outpost_engine::{Engine, Notice, Stopped};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Time for a report to reach its client before the worker exits.
const REPORT_FLUSH: Duration = Duration::from_millis(20);

/// Clients that wait for the report.
pub(crate) type Replies = Vec<Reply<StopReport>>;

/// Stops every process and reports each exit. A second signal to the keeper, or a stop with zero grace time, kills the
/// remaining processes at once.
pub(crate) async fn stop_processes(
    engine: &Engine,
    grace: Duration,
    notices: &mut watch::Receiver<Option<Notice>>,
    commands: &mut mpsc::Receiver<WorkerCommand>,
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
    let forced = forced_stop(notices, commands, &mut replies);
    let stopped = engine.stop_processes(grace, forced).await.map_err(|error| error.to_string())?;
    for stopped in &stopped {
        let (id, exit, killed) = (&stopped.key.id, stopped.exit.map(|exit| exit.cause), stopped.killed);
        tracing::info!(process = %stopped.slot, id, ?exit, killed, "stopped");
    }
    let report = StopReport { processes: stopped.iter().map(describe).collect() };
    let has_clients = !replies.is_empty();
    for reply in replies {
        let _client_gone = reply.send(Ok(report.clone()));
    }
    if has_clients {
        tokio::time::sleep(REPORT_FLUSH).await;
    }
    Ok(())
}

/// Completes at a request to end the grace time. Pends for ever once both channels are closed.
async fn forced_stop(
    notices: &mut watch::Receiver<Option<Notice>>,
    commands: &mut mpsc::Receiver<WorkerCommand>,
    replies: &mut Replies,
) {
    // Each channel can close before the other: the control socket's, and the keeper's notices from the engine.
    let (mut notices_open, mut commands_open) = (true, true);
    loop {
        tokio::select! {
            changed = notices.changed(), if notices_open => match changed {
                Ok(()) if *notices.borrow_and_update() == Some(Notice::Shutdown) => return,
                Ok(()) => {}
                Err(_) => notices_open = false,
            },
            command = commands.recv(), if commands_open => match command {
                Some(WorkerCommand::StopAll { grace, reply }) => {
                    replies.extend(reply);
                    if grace.is_some_and(|grace| grace.is_zero()) {
                        return;
                    }
                }
                // Dropping the reply makes the sender see that the daemon is stopping.
                Some(_) => {}
                None => commands_open = false,
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
