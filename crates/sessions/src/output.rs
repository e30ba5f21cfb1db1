//! What an adapter makes of a CLI's lines: events, words for the CLI, questions for a human, and how the turn ends.

use crate::event::{self, Event, Kind, Place};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// A line that nobody understands is shown up to this size, and only counted beyond.
const RAW_BYTES_MAX: usize = 64 * 1024;

/// Events that may be held back for `init`, in bytes. Beyond that they are sent without waiting for it.
const EARLY_BYTES_MAX: usize = 64 * 1024;

/// How the turn stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum End {
    #[default]
    Open,
    /// The CLI has said how it ends, but its exit may have more to say about that.
    Held(Held),
    /// The terminal event stands; nothing follows.
    Told,
}

/// How a turn will end unless its CLI changes its mind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Held {
    Result,
    Failure(String),
}

/// Something an agent wants to do and a human has to allow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ask {
    /// The agent's own name for its question.
    pub(crate) id: String,
    pub(crate) tool: String,
    pub(crate) input: Value,
}

/// Collects what lines become. The place of events is counted here, so that they are written once, ready to be sent.
pub(crate) struct Output {
    turn: u64,
    pub(crate) next_seq: u64,
    pub(crate) events: Vec<u8>,
    /// Notices that came before `init`, as JSON without a place: `init` is the first event of a turn.
    pub(crate) early: Vec<Box<RawValue>>,
    /// An event of the turn has been told, so notices are not held back any more.
    pub(crate) is_open: bool,
    pub(crate) end: End,
    /// The agent's own id of the conversation.
    pub(crate) sdk_id: Option<String>,
    /// That conversation is not there any more.
    pub(crate) is_lost: bool,
    pub(crate) unknown_lines: u64,
    /// For the CLI's standard input, in order.
    pub(crate) said: Vec<u8>,
    /// Nothing more is going to be said.
    pub(crate) hushed: bool,
    pub(crate) asks: Vec<Ask>,
    /// Questions that the agent has taken back.
    pub(crate) taken_back: Vec<String>,
}

impl Output {
    pub(crate) fn new(turn: u64, next_seq: u64) -> Output {
        Output {
            turn,
            next_seq,
            events: Vec::new(),
            early: Vec::new(),
            is_open: false,
            end: End::Open,
            sdk_id: None,
            is_lost: false,
            unknown_lines: 0,
            said: Vec::new(),
            hushed: false,
            asks: Vec::new(),
            taken_back: Vec::new(),
        }
    }

    pub(crate) fn is_told(&self) -> bool {
        self.end == End::Told
    }

    /// Emits an event. Nothing follows a terminal one, and a notice before `init` is emitted after it.
    pub(crate) fn tell(&mut self, event: &Event<'_>) {
        if self.is_told() {
            return;
        }
        if !self.is_open && event.is_early() && self.hold_back(event) {
            return;
        }
        self.is_open = true;
        let early = std::mem::take(&mut self.early);
        let (before, after) = if event.is_init() { (&[][..], &early[..]) } else { (&early[..], &[][..]) };
        before.iter().for_each(|early| self.append(early));
        self.append(event);
        after.iter().for_each(|early| self.append(early));
        if event.kind.is_terminal() {
            self.end = End::Told;
        }
    }

    /// Whether there is room for it.
    fn hold_back(&mut self, event: &Event<'_>) -> bool {
        let Ok(text) = serde_json::value::to_raw_value(event) else { return false };
        let held: usize = self.early.iter().map(|event| event.get().len()).sum();
        let has_room = held + text.get().len() <= EARLY_BYTES_MAX;
        if has_room {
            self.early.push(text);
        }
        has_room
    }

    fn append(&mut self, event: &impl Serialize) {
        event::append(&mut self.events, event, Some(Place { turn: self.turn, seq: Some(self.next_seq) }));
        self.next_seq += 1;
    }

    /// The conversation has this id. One that would be an option where it is an argument is none.
    pub(crate) fn converses(&mut self, id: &str) {
        if self.sdk_id.as_deref() != Some(id) && !id.is_empty() && !id.starts_with('-') {
            self.sdk_id = Some(id.to_owned());
        }
    }

    /// The turn is over and went well.
    pub(crate) fn succeed(&mut self, raw: Option<&RawValue>) {
        let event = Event {
            session_id: self.sdk_id.clone().map(Into::into),
            unknown_lines: self.unknown_lines,
            raw: raw.map(std::borrow::Cow::Borrowed),
            ..Event::new(Kind::Result)
        };
        self.tell(&event);
    }

    /// The turn is over unless something comes after all.
    pub(crate) fn hold(&mut self, held: Held) {
        if !self.is_told() {
            self.end = End::Held(held);
        }
    }

    pub(crate) fn fail(&mut self, message: impl Into<String>) {
        self.hold(Held::Failure(message.into()));
    }

    /// It goes on: what seemed to be the end was none.
    pub(crate) fn go_on(&mut self) {
        if !self.is_told() {
            self.end = End::Open;
        }
    }

    /// A line that means nothing to us: "counted and kept as raw, never fatal".
    pub(crate) fn unknown(&mut self, line: &str) {
        self.unknown_lines += 1;
        if line.len() > RAW_BYTES_MAX {
            return;
        }
        let raw = match serde_json::from_str::<Box<RawValue>>(line) {
            Ok(raw) => Some(raw),
            Err(_) => serde_json::value::to_raw_value(line).ok(),
        };
        self.tell(&Event { raw: raw.map(std::borrow::Cow::Owned), ..Event::new(Kind::Raw) });
    }

    /// A message for the CLI, as a line of JSON.
    pub(crate) fn say(&mut self, message: &Value) {
        self.said.extend_from_slice(message.to_string().as_bytes());
        self.said.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Type and place of each event.
    fn told(out: &Output) -> Vec<String> {
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
    fn a_notice_before_init_is_told_after_it() {
        let mut out = Output::new(1, 5);
        out.tell(&Event::notice("warning", "one"));
        out.unknown("no json");
        assert_eq!((told(&out), out.next_seq), (vec![], 5));
        out.tell(&init());
        out.tell(&Event::notice("warning", "two"));
        assert_eq!(told(&out), ["5 init", "6 one", "7 raw", "8 two"]);
    }

    #[test]
    fn a_turn_without_init_loses_no_notice() {
        let mut out = Output::new(1, 1);
        out.tell(&Event::notice("warning", "one"));
        out.tell(&Event::error("failed"));
        assert_eq!(told(&out), ["1 one", "2 failed"]);
        assert!(out.is_told());
    }

    #[test]
    fn a_flood_before_init_is_told_without_waiting_for_it() {
        let mut out = Output::new(1, 1);
        let line = "x".repeat(EARLY_BYTES_MAX / 4);
        for _ in 0..4 {
            out.tell(&Event::notice("warning", line.clone()));
        }
        out.tell(&init());
        let lines = told(&out);
        assert_eq!((lines.len(), lines[4].as_str()), (5, "5 init"));
    }
}
