//! What an adapter produces from the lines of a CLI: events, input for the CLI, permission requests, and the turn's end.

use super::checkpoint::TurnCheckpoint;
use crate::agents::{Adapter, PermissionDecision, TurnRequest};
use crate::event::{self, Event, EventPosition, Kind};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// An unknown line up to this size becomes a `raw` event; a longer one is only counted.
const RAW_BYTES_MAX: usize = 64 * 1024;

/// Maximum number of bytes of events that are held back for `init`. Beyond it, they are sent before `init`.
const EARLY_BYTES_MAX: usize = 64 * 1024;

/// Whether the turn has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TurnEnd {
    #[default]
    Open,
    /// The CLI reported its result, but its exit status can still change it.
    Provisional(Verdict),
    /// The terminal event was emitted. No event follows.
    Final,
}

/// The result that a CLI reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Result,
    Failure(String),
}

/// A tool use for which the agent needs a permission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PermissionRequest {
    /// The CLI's id of the request.
    pub(crate) id: String,
    pub(crate) tool: String,
    pub(crate) input: Value,
}

/// The state of a turn: its checkpoint, and what the adapter has produced since the checkpoint was last written. Events
/// are numbered and encoded here, once, ready to be sent.
pub(crate) struct Output {
    turn: u64,
    pub(crate) checkpoint: TurnCheckpoint,
    pub(crate) events: Vec<u8>,
    /// The conversation no longer exists.
    pub(crate) conversation_lost: bool,
    pub(crate) permission_requests: Vec<PermissionRequest>,
    /// Ids of requests that the agent cancelled.
    pub(crate) cancelled_requests: Vec<String>,
}

impl Output {
    pub(crate) fn new(turn: u64, checkpoint: TurnCheckpoint) -> Output {
        Output {
            turn,
            checkpoint,
            events: Vec::new(),
            conversation_lost: false,
            permission_requests: Vec::new(),
            cancelled_requests: Vec::new(),
        }
    }

    /// For lines outside of a turn: events are numbered from `next_seq` on.
    pub(crate) fn detached(next_seq: u64) -> Output {
        Output::new(0, TurnCheckpoint { first_seq: next_seq, next_seq, ..TurnCheckpoint::default() })
    }

    /// Lets the adapter start the turn.
    pub(crate) fn start(&mut self, request: &TurnRequest) {
        self.with_adapter(|adapter, out| adapter.start(request, out));
    }

    /// Lets the adapter parse a line.
    pub(crate) fn on_line(&mut self, line: &[u8], request: &TurnRequest) {
        self.with_adapter(|adapter, out| adapter.on_line(line, request, out));
    }

    /// Lets the adapter send a decision.
    pub(crate) fn on_decision(&mut self, request: &PermissionRequest, decision: &PermissionDecision) {
        self.with_adapter(|adapter, out| adapter.on_decision(request, decision, out));
    }

    /// Moves the adapter out for the call, because it is part of the checkpoint that it changes.
    fn with_adapter(&mut self, call: impl FnOnce(&mut Adapter, &mut Output)) {
        let mut adapter = std::mem::take(&mut self.checkpoint.adapter);
        call(&mut adapter, self);
        self.checkpoint.adapter = adapter;
    }

    pub(crate) fn is_final(&self) -> bool {
        self.checkpoint.end == TurnEnd::Final
    }

    /// Emits an event. No event follows a terminal one. A notice before `init` is emitted after it.
    pub(crate) fn emit(&mut self, event: &Event<'_>) {
        if self.is_final() {
            return;
        }
        if !self.checkpoint.has_events() && event.is_early() && self.hold_back(event) {
            return;
        }
        let early = std::mem::take(&mut self.checkpoint.early_events);
        let (before, after) = if event.is_init() { (&[][..], &early[..]) } else { (&early[..], &[][..]) };
        before.iter().for_each(|early| self.append(early));
        self.append(event);
        after.iter().for_each(|early| self.append(early));
        if event.kind.is_terminal() {
            self.checkpoint.end = TurnEnd::Final;
        }
    }

    /// Returns false if the event does not fit into the limit.
    fn hold_back(&mut self, event: &Event<'_>) -> bool {
        let Ok(text) = serde_json::value::to_raw_value(event) else { return false };
        let held: usize = self.checkpoint.early_events.iter().map(|event| event.get().len()).sum();
        let has_room = held + text.get().len() <= EARLY_BYTES_MAX;
        if has_room {
            self.checkpoint.early_events.push(text);
        }
        has_room
    }

    fn append(&mut self, event: &impl Serialize) {
        let position = EventPosition { turn: self.turn, seq: Some(self.checkpoint.next_seq) };
        event::append(&mut self.events, event, Some(position));
        self.checkpoint.next_seq += 1;
    }

    /// Sets the id of the conversation. Ignores an id that the CLI would parse as an option when it is resumed.
    pub(crate) fn set_conversation_id(&mut self, id: &str) {
        if self.checkpoint.conversation_id.as_deref() != Some(id) && !id.is_empty() && !id.starts_with('-') {
            self.checkpoint.conversation_id = Some(id.to_owned());
        }
    }

    /// Ends the turn with a `result`.
    pub(crate) fn succeed(&mut self, raw: Option<&RawValue>) {
        let event = Event {
            session_id: self.checkpoint.conversation_id.clone().map(Into::into),
            unknown_lines: self.checkpoint.unknown_lines,
            raw: raw.map(std::borrow::Cow::Borrowed),
            ..Event::new(Kind::Result)
        };
        self.emit(&event);
    }

    /// Sets the result that holds unless the exit status or a later line changes it.
    pub(crate) fn end_provisionally(&mut self, verdict: Verdict) {
        if !self.is_final() {
            self.checkpoint.end = TurnEnd::Provisional(verdict);
        }
    }

    /// Ends the turn provisionally with a failure.
    pub(crate) fn fail(&mut self, message: impl Into<String>) {
        self.end_provisionally(Verdict::Failure(message.into()));
    }

    /// Drops a provisional result, because the CLI continues.
    pub(crate) fn reopen(&mut self) {
        if !self.is_final() {
            self.checkpoint.end = TurnEnd::Open;
        }
    }

    /// Handles a line that the adapter does not understand: "counted and kept as raw, never fatal".
    pub(crate) fn unknown_line(&mut self, line: &str) {
        self.checkpoint.unknown_lines += 1;
        if line.len() > RAW_BYTES_MAX {
            return;
        }
        let raw = match serde_json::from_str::<Box<RawValue>>(line) {
            Ok(raw) => Some(raw),
            Err(_) => serde_json::value::to_raw_value(line).ok(),
        };
        self.emit(&Event { raw: raw.map(std::borrow::Cow::Owned), ..Event::new(Kind::Raw) });
    }

    /// Sends a message to the CLI, as one line of JSON.
    pub(crate) fn send_line(&mut self, message: &Value) {
        self.checkpoint.stdin_unsent.push_str(&message.to_string());
        self.checkpoint.stdin_unsent.push('\n');
    }

    /// Sends the message of the turn as plain text, then EOF.
    pub(crate) fn send_message(&mut self, message: &str) {
        self.checkpoint.stdin_unsent.push_str(message);
        self.close_stdin();
    }

    /// Closes the CLI's standard input after the input sent so far.
    pub(crate) fn close_stdin(&mut self) {
        self.checkpoint.stdin_closed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number and the name of each event.
    fn emitted(out: &Output) -> Vec<String> {
        let text = String::from_utf8(out.events.clone()).unwrap();
        let events = text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap());
        let brief = |event: &str| {
            let event: Value = serde_json::from_str(event).unwrap();
            let name = event.get("message").or(event.get("subtype")).unwrap_or(&event["type"]);
            format!("{} {}", event["seq"], name.as_str().unwrap())
        };
        events.map(brief).collect()
    }

    fn init() -> Event<'static> {
        Event::init("id", None::<String>)
    }

    #[test]
    fn a_notice_before_init_is_emitted_after_it() {
        let mut out = Output::detached(5);
        out.emit(&Event::notice("warning", "one"));
        out.unknown_line("no json");
        assert_eq!((emitted(&out), out.checkpoint.next_seq), (vec![], 5));
        out.emit(&init());
        out.emit(&Event::notice("warning", "two"));
        assert_eq!(emitted(&out), ["5 init", "6 one", "7 raw", "8 two"]);
    }

    #[test]
    fn a_turn_without_init_loses_no_notice() {
        let mut out = Output::detached(1);
        out.emit(&Event::notice("warning", "one"));
        out.emit(&Event::error("failed"));
        assert_eq!(emitted(&out), ["1 one", "2 failed"]);
        assert!(out.is_final());
    }

    #[test]
    fn a_flood_before_init_is_emitted_before_it() {
        let mut out = Output::detached(1);
        let line = "x".repeat(EARLY_BYTES_MAX / 4);
        for _ in 0..4 {
            out.emit(&Event::notice("warning", line.clone()));
        }
        out.emit(&init());
        let lines = emitted(&out);
        assert_eq!((lines.len(), lines[4].as_str()), (5, "5 init"));
    }
}
