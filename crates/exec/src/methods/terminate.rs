//! `command/exec/terminate`: the end of a command and of everything it started.

use super::{command, ended};
use crate::connection::Connection;
use crate::wire::{CommandExecTerminateParams, Empty, Id};
use outpost_wire::Closed;

/// "`{}` as soon as SIGKILL was sent, normally before the command's own response".
pub(super) async fn terminate(
    connection: &Connection,
    id: &Id,
    params: &CommandExecTerminateParams,
) -> Result<(), Closed> {
    let command = match command(connection, &params.process_id) {
        Ok(command) if command.has_ended() || !command.begin_termination() => Err(ended(&params.process_id)),
        found => found,
    };
    match command {
        Ok(command) => {
            command.terminate();
            connection.reply(id, &Ok(Empty {})).await
        }
        Err(failure) => connection.reply::<()>(id, &Err(failure)).await,
    }
}
