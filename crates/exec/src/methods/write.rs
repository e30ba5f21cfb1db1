//! `command/exec/write`: bytes for a command's standard input, and its end.

use super::{command, ended};
use crate::command::Input;
use crate::connection::Connection;
use crate::wire::{CommandExecWriteParams, Empty, Failure, OVERLOADED};
use base64::engine::general_purpose::STANDARD;
use base64::{DecodeError, Engine as _};

/// "write's `{}` means queued, not delivered".
pub(super) fn write(connection: &Connection, params: CommandExecWriteParams) -> Result<Empty, Failure> {
    if params.delta_base64.is_none() && !params.close_stdin {
        return Err(Failure::invalid_params("command/exec/write requires deltaBase64 or closeStdin"));
    }
    let decoded = STANDARD.decode(params.delta_base64.unwrap_or_default());
    let bytes = decoded.map_err(|error| {
        Failure::invalid_params(format!("invalid deltaBase64: {}", decode_error_text(error)))
    })?;
    let command = command(connection, &params.process_id)?;
    if command.has_ended() {
        return Err(ended(&params.process_id));
    }
    let Some(stdin) = &command.stdin else {
        return Err(Failure::invalid_request("stdin streaming is not enabled for this command/exec"));
    };
    if stdin.is_closed() {
        return match bytes.is_empty() {
            true => Ok(Empty {}),
            false => Err(Failure::invalid_request("stdin is already closed")),
        };
    }
    let Some(room) = connection.take_stdin_room(bytes.len()) else {
        return Err(Failure::new(OVERLOADED, "Server overloaded; retry later."));
    };
    stdin.queue(Input { bytes, close: params.close_stdin, room })?;
    Ok(Empty {})
}

/// The original's texts; those of the current base64 crate differ.
fn decode_error_text(error: DecodeError) -> String {
    match error {
        DecodeError::InvalidByte(at, byte) => format!("Invalid symbol {byte}, offset {at}."),
        DecodeError::InvalidLength(len) => format!("Invalid input length: {len}"),
        DecodeError::InvalidLastSymbol { offset, symbol, .. } => {
            format!("Invalid last symbol {symbol}, offset {offset}.")
        }
        DecodeError::InvalidPadding => "Invalid padding".into(),
    }
}
