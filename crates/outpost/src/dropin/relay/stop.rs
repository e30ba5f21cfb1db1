//! `-stop`: sends `server.shutdown` to a running server. Errors are ignored, as in the original.

use outpost_sys::connect::{self, Trust};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

/// How long the server may take to reply.
const TIMEOUT: Duration = Duration::from_secs(10);

/// "a missing or unreachable daemon is a silent no-op … Only a live daemon's response (if any) is echoed to stdout."
pub(super) fn stop(socket: &Path) {
    let Ok(mut server) = connect::connect(socket, Trust::Own) else { return };
    let token = std::env::var("CLAUDE_RPC_TOKEN").unwrap_or_default();
    let request = serde_json::json!({"jsonrpc": "2.0", "id": 1, "method": "server.shutdown", "auth": token});
    let sent = server
        .set_read_timeout(Some(TIMEOUT))
        .and_then(|()| server.write_all(format!("{request}\n").as_bytes()));
    if sent.is_err() {
        return;
    }
    let mut reply = Vec::new();
    let mut piece = [0; 4096];
    // The reply is one line.
    while !reply.contains(&b'\n') {
        match server.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(read) => reply.extend_from_slice(piece.get(..read).unwrap_or_default()),
        }
    }
    let _stdout_closed = std::io::stdout().write_all(&reply);
}
