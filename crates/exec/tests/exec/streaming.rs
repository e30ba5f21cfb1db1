//! Commands that stream while they run: deltas, input, terminals, and requests that control them.

mod control;
mod deltas;
mod input;
mod stuck;
mod terminal;

use crate::table::{sh, with};
use base64::Engine;
use serde_json::{Value, json};

/// A script with its own id, whose output streams.
pub(crate) fn streamed(process: &str, script: &str) -> Value {
    with(sh(script), json!({"processId": process, "streamStdoutStderr": true}))
}

/// The same with input.
pub(crate) fn fed(process: &str, script: &str) -> Value {
    with(streamed(process, script), json!({"streamStdin": true}))
}

/// On a terminal.
pub(crate) fn on_terminal(process: &str, script: &str) -> Value {
    with(sh(script), json!({"processId": process, "tty": true}))
}

pub(crate) fn base64(bytes: impl AsRef<[u8]>) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// Params of a write.
pub(crate) fn input(process: &str, bytes: impl AsRef<[u8]>) -> Value {
    json!({"processId": process, "deltaBase64": base64(bytes)})
}
