//! Where a turn stands, as the worker after this one finds it.

use crate::agents::{Agent, Call};
use crate::asking::Pending;
use crate::kept::Kept;
use crate::lines::Position;
use crate::output::End;
use crate::session::{Session, Stage, Turn};
use crate::turn_log::last_mark;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Where a turn stands, on disk, for the worker after this one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Mark {
    pub(crate) first_seq: u64,
    pub(crate) next_seq: u64,
    /// Of events.
    pub(crate) bytes: u64,
    pub(crate) end: End,
    /// Whose process answers it: its own, or that of an earlier turn which has waited for it.
    pub(crate) process: u64,
    pub(crate) from: Position,
    /// The agent has said what it says at the beginning.
    pub(crate) is_begun: bool,
    /// Bytes for the CLI's standard input so far, and whether it was closed.
    pub(crate) said: u64,
    pub(crate) hushed: bool,
    /// What is said next, at that place. Perhaps it was already: the engine knows.
    pub(crate) unsaid: String,
    /// Whether its standard input is anything but empty. An older version gave messages as arguments.
    pub(crate) speaks: bool,
    /// What it began with, and as its agent says.
    #[serde(default)]
    pub(crate) conversation: Option<String>,
    pub(crate) sdk_id: Option<String>,
    pub(crate) unknown_lines: u64,
    /// Notices that wait for `init`. A mark of an older version has none.
    #[serde(default)]
    pub(crate) early: Vec<Box<RawValue>>,
    pub(crate) stderr_tail: String,
    pub(crate) questions: Vec<Pending>,
    pub(crate) agent: Agent,
}

impl Mark {
    /// Of a turn that has not begun, with the process that waits for it if there is one.
    pub(crate) fn begin(turn: &Turn, call: Call, kept: Option<&Kept>, conversation: Option<String>) -> Mark {
        Mark {
            first_seq: turn.first_seq,
            next_seq: turn.first_seq,
            bytes: 0,
            end: End::Open,
            process: kept.map_or(turn.number, |kept| kept.process),
            from: kept.map(|kept| kept.from).unwrap_or_default(),
            is_begun: false,
            said: kept.map_or(0, |kept| kept.said),
            hushed: false,
            unsaid: String::new(),
            speaks: true,
            conversation: conversation.clone(),
            sdk_id: conversation,
            unknown_lines: 0,
            early: Vec::new(),
            stderr_tail: String::new(),
            questions: Vec::new(),
            agent: call.agent,
        }
    }

    /// Whether this question of the queue is one of its agent's.
    pub(crate) fn asks(&self, question: &str) -> bool {
        self.questions.iter().any(|pending| pending.question == question)
    }
}

/// Whether a turn that is not over yet is answered by the process of this name.
pub(crate) fn needs(session: &Session, process: &str) -> bool {
    let open = session.state().turns.iter().find(|turn| turn.stage != Stage::Over).map(|turn| turn.number);
    open.is_some_and(|turn| process_of(session, turn).to_string() == process)
}

/// The turn whose process answers this one.
pub(crate) fn process_of(session: &Session, turn: u64) -> u64 {
    last_mark(&session.dir, turn).map_or(turn, |mark: Mark| mark.process)
}
