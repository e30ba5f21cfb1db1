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

/// The durable state of a turn, which the running turn owns and changes in place. The serialized names belong to the
/// format on disk.
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
    #[serde(rename = "from")]
    pub(crate) output_position: LinePosition,
    /// The adapter has sent the message to the CLI.
    #[serde(rename = "is_begun")]
    pub(crate) is_started: bool,
    /// Offset of the next byte for the CLI's standard input, and whether it was closed.
    #[serde(rename = "said")]
    pub(crate) stdin_offset: u64,
    #[serde(rename = "hushed")]
    pub(crate) stdin_closed: bool,
    /// Input at that offset. The worker may have written it already; the engine drops duplicates by offset.
    #[serde(rename = "unsaid")]
    pub(crate) stdin_unsent: String,
    /// False if an older version passed the message as an argument.
    #[serde(rename = "speaks")]
    pub(crate) uses_stdin: bool,
    /// The conversation at the start of the turn. Absent in checkpoints of older versions.
    #[serde(rename = "conversation", default)]
    pub(crate) initial_conversation_id: Option<String>,
    /// The conversation that the CLI reported.
    #[serde(rename = "sdk_id")]
    pub(crate) conversation_id: Option<String>,
    pub(crate) unknown_lines: u64,
    /// Notices held back for `init`. Absent in checkpoints of older versions.
    #[serde(rename = "early", default)]
    pub(crate) early_events: Vec<Box<RawValue>>,
    pub(crate) stderr_tail: String,
    pub(crate) questions: Vec<PendingPermission>,
    /// Parser state of the CLI's adapter.
    #[serde(rename = "agent")]
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
            uses_stdin: true,
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
            json!({ "agent": "claude", "converses": true, "stays": false, "is_busy": true, "calls": [["c", "Bash"]] }),
            json!({ "agent": "codex", "told": 3, "complaint": "retry" }),
            json!({
                "agent": "app_server", "thread": "t", "changes": [["i", {}]], "complaint": null,
                "plain": { "told": 0, "complaint": null },
            }),
            json!({ "agent": "gemini", "calls": [], "complaint": null, "spoken": text, "is_new": true }),
            json!({ "agent": "opencode", "begun": true, "part": "p", "told": 2 }),
            json!({
                "agent": "acp", "cli": "opencode", "session": "s", "is_prompted": true, "spoken": text, "calls": [],
                "options": [["1", "once", "reject"]], "failure": null,
            }),
        ];
        let ends = [
            json!("open"),
            json!("told"),
            json!({ "held": "result" }),
            json!({ "held": { "failure": "no" } }),
        ];
        for (adapter, end) in adapters.iter().flat_map(|adapter| ends.iter().map(move |end| (adapter, end))) {
            let stored = json!({
                "first_seq": 3, "next_seq": 5, "bytes": 120, "end": end, "process": 1,
                "from": { "after": 7, "skip": 2, "is_passing": false, "stderr_after": 4 },
                "is_begun": true, "said": 11, "hushed": true, "unsaid": "x\n", "speaks": true,
                "conversation": "a", "sdk_id": "b", "unknown_lines": 1, "early": [{ "type": "system" }],
                "stderr_tail": "e", "agent": adapter,
                "questions": [{ "ask": { "id": "q", "tool": "Bash", "input": {} }, "question": "u" }],
            });
            let checkpoint: TurnCheckpoint = serde_json::from_str(&stored.to_string()).unwrap();
            let written: Value = serde_json::from_str(&serde_json::to_string(&checkpoint).unwrap()).unwrap();
            assert_eq!(written, stored);
        }
    }
}
