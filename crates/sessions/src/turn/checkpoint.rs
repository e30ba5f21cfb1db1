//! The checkpoint of a turn: the durable state from which the next worker continues it.

use super::output::TurnEnd;
use super::output_lines::LinePosition;
use super::permissions::PendingPermission;
use super::warm_pool::WarmProcess;
use crate::agents::{Adapter, Invocation};
use crate::session::{Session, Stage, Turn};
use crate::store::turn_log::read_checkpoint;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The durable state of a turn, which the running turn owns and changes in place.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct TurnCheckpoint {
    pub(crate) first_seq: u64,
    pub(crate) next_seq: u64,
    /// Size of the valid events in the log.
    pub(crate) bytes: u64,
    pub(crate) end: TurnEnd,
    /// The turn whose process answers this one: itself, or an earlier turn if a warm process is reused.
    pub(crate) process: u64,
    /// How far the process's output was processed.
    pub(crate) output_position: LinePosition,
    /// The adapter has sent the message to the CLI.
    pub(crate) is_started: bool,
    /// Offset of the next byte for the CLI's standard input, and whether it was closed.
    pub(crate) stdin_offset: u64,
    pub(crate) stdin_closed: bool,
    /// Input at that offset. The worker may have written it already; the engine drops duplicates by offset.
    pub(crate) stdin_unsent: String,
    /// The conversation at the start of the turn.
    pub(crate) initial_conversation_id: Option<String>,
    /// The conversation that the CLI reported.
    pub(crate) conversation_id: Option<String>,
    pub(crate) unknown_lines: u64,
    /// Notices held back for `init`.
    pub(crate) early_events: Vec<Box<RawValue>>,
    pub(crate) stderr_tail: String,
    pub(crate) questions: Vec<PendingPermission>,
    /// Parser state of the CLI's adapter.
    pub(crate) adapter: Adapter,
}

impl TurnCheckpoint {
    /// The checkpoint of a turn that has not started. `warm` is the process it reuses.
    pub(crate) fn new(
        turn: &Turn,
        invocation: Invocation,
        warm: Option<&WarmProcess>,
        conversation_id: Option<String>,
    ) -> TurnCheckpoint {
        TurnCheckpoint {
            first_seq: turn.first_seq,
            next_seq: turn.first_seq,
            process: warm.map_or(turn.number, |warm| warm.process),
            output_position: warm.map(|warm| warm.output_position).unwrap_or_default(),
            stdin_offset: warm.map_or(0, |warm| warm.stdin_offset),
            initial_conversation_id: conversation_id.clone(),
            conversation_id,
            adapter: invocation.adapter,
            ..TurnCheckpoint::default()
        }
    }

    /// Whether the turn has emitted an event.
    pub(crate) fn has_events(&self) -> bool {
        self.next_seq > self.first_seq
    }

    /// Whether the question with this id belongs to the turn.
    pub(crate) fn has_question(&self, id: &str) -> bool {
        self.questions.iter().any(|pending| pending.question_id == id)
    }
}

/// Whether an unfinished turn of the session uses the process with this key id.
pub(crate) fn uses(session: &Session, process: &str) -> bool {
    let open =
        session.state().turns.iter().find(|turn| turn.stage != Stage::Finished).map(|turn| turn.number);
    open.is_some_and(|turn| process_of(session, turn).to_string() == process)
}

/// The turn whose process answers this one.
pub(crate) fn process_of(session: &Session, turn: u64) -> u64 {
    read_checkpoint(&session.dir, turn).map_or(turn, |checkpoint: TurnCheckpoint| checkpoint.process)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Workers of other versions read and write the same form.
    #[test]
    fn the_format_on_disk_is_stable() {
        let text = json!({ "text": "t", "is_long": false });
        let adapters = [
            json!({ "agent": "claude", "stream_json_input": true, "keeps_process": false, "is_busy": true, "tool_calls": [["c", "Bash"]] }),
            json!({ "agent": "codex", "emitted_bytes": 3, "last_error": "retry" }),
            json!({
                "agent": "app_server", "thread": "t", "changes": [["i", {}]], "last_error": null,
                "exec": { "emitted_bytes": 0, "last_error": null },
            }),
            json!({ "agent": "gemini", "tool_calls": [], "last_error": null, "text": text, "is_new": true }),
            json!({ "agent": "opencode", "init_emitted": true, "part": "p", "emitted_bytes": 2 }),
            json!({
                "agent": "acp", "cli": "opencode", "session": "s", "is_prompted": true, "spoken": text, "calls": [],
                "options": [["1", "once", "reject"]], "failure": null,
            }),
        ];
        let ends = [
            json!("open"),
            json!("final"),
            json!({ "provisional": "result" }),
            json!({ "provisional": { "failure": "no" } }),
        ];
        for (adapter, end) in adapters.iter().flat_map(|adapter| ends.iter().map(move |end| (adapter, end))) {
            let stored = json!({
                "first_seq": 3, "next_seq": 5, "bytes": 120, "end": end, "process": 1,
                "output_position": { "after": 7, "skip": 2, "in_oversized_line": false, "stderr_after": 4 },
                "is_started": true, "stdin_offset": 11, "stdin_closed": true, "stdin_unsent": "x\n",
                "initial_conversation_id": "a", "conversation_id": "b", "unknown_lines": 1,
                "early_events": [{ "type": "system" }],
                "stderr_tail": "e", "adapter": adapter,
                "questions": [{ "request": { "id": "q", "tool": "Bash", "input": {} }, "question_id": "u" }],
            });
            let checkpoint: TurnCheckpoint = serde_json::from_str(&stored.to_string()).unwrap();
            let written: Value = serde_json::from_str(&serde_json::to_string(&checkpoint).unwrap()).unwrap();
            assert_eq!(written, stored);
        }
    }
}
