//! A CLI that costs as little as one can: deltas as fast as they can be written.

use crate::Result;
use std::io::Write;

/// Called so, this program is that CLI.
pub(crate) const AGENT_NAME: &str = "claude";

const DELTA: &str = "{\"type\":\"stream_event\",\"event\":{\"type\":\"content_block_delta\",\"delta\":{\"text\":\"word \"}}}\n";

pub(crate) fn run() -> Result<()> {
    let message = std::env::args().skip_while(|argument| argument != "-p").nth(1).unwrap_or_default();
    let count = message.strip_prefix("events ").and_then(|count| count.parse().ok()).unwrap_or(1);
    let mut out = std::io::stdout().lock();
    out.write_all(b"{\"type\":\"system\",\"subtype\":\"init\",\"session_id\":\"s\",\"model\":\"m\"}\n")?;
    let piece = DELTA.repeat(512);
    let mut left: usize = count;
    while left > 0 {
        let now = left.min(512);
        out.write_all(piece.as_bytes().get(..now * DELTA.len()).unwrap_or_default())?;
        left -= now;
    }
    out.write_all(b"{\"type\":\"result\",\"session_id\":\"s\"}\n")?;
    Ok(out.flush()?)
}
