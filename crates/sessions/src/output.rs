//! What an adapter makes of a CLI's lines: events, words for the CLI, questions for a human, and how the turn ends.

use crate::event::{self, Event, Kind, Place};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// A line that nobody understands is shown up to this size, and only counted beyond.
const RAW_BYTES_MAX: usize = 64 * 1024;

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

    /// Tells an event. Nothing follows a terminal one.
    pub(crate) fn tell(&mut self, event: &Event<'_>) {
        if self.is_told() {
            return;
        }
        event::append(&mut self.events, event, Some(Place { turn: self.turn, seq: Some(self.next_seq) }));
        self.next_seq += 1;
        if event.kind.is_terminal() {
            self.end = End::Told;
        }
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
