//! `command/exec/resize`: a new size for a command's terminal.

use super::{command, ended};
use crate::command::{Command, size};
use crate::connection::Connection;
use crate::wire::{CommandExecResizeParams, Empty, Failure, Id};
use outpost_engine::Size;
use outpost_wire::Closed;
use std::sync::Arc;

pub(super) async fn resize(
    connection: &Arc<Connection>,
    id: Id,
    params: &CommandExecResizeParams,
) -> Result<(), Closed> {
    let checked = size(params.size).and_then(|size| Ok((command(connection, &params.process_id)?, size)));
    let (command, size) = match checked {
        Ok(checked) => checked,
        Err(failure) => return connection.reply::<()>(&id, &Err(failure)).await,
    };
    let (connection, process_id) = (connection.clone(), params.process_id.clone());
    // A command that is about to start has no terminal yet; other requests must not wait for it.
    tokio::spawn(async move {
        let outcome = apply(&command, &process_id, size).await;
        let _peer_gone = connection.reply(&id, &outcome).await;
    });
    Ok(())
}

async fn apply(command: &Command, process_id: &str, size: Size) -> Result<Empty, Failure> {
    let process =
        command.started().await.filter(|_| !command.has_ended()).ok_or_else(|| ended(process_id))?;
    match process.resize(size) {
        Ok(()) => Ok(Empty {}),
        Err(outpost_engine::Error::NoTerminal) if command.terminal => Err(ended(process_id)),
        Err(outpost_engine::Error::NoTerminal) => {
            let text = "failed to resize PTY: process is not attached to a PTY";
            Err(Failure::invalid_request(text))
        }
        Err(error) => Err(Failure::invalid_request(format!("failed to resize PTY: {error}"))),
    }
}
