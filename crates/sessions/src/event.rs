//! One event of a turn, as it is in a server-sent stream and in the event log.

use serde::Serialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// The event types of the contract, and two of ours. `approval` reports a permission question. `raw` carries a line of
/// the CLI that the adapter does not understand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    System,
    Partial,
    Text,
    ToolUse,
    Approval,
    Raw,
    Result,
    Error,
    Interrupted,
    Queued,
    Ping,
}

impl Kind {
    /// "Exactly one terminal event per turn."
    pub(crate) fn is_terminal(self) -> bool {
        matches!(self, Kind::Result | Kind::Error | Kind::Interrupted)
    }
}

/// One event. Unset members are omitted.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Event<'a> {
    #[serde(rename = "type")]
    pub(crate) kind: Kind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) subtype: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) session_id: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tool: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) input: Option<Cow<'a, RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) position: Option<usize>,
    /// The id of the question, in an `approval`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) approval: Option<Cow<'a, str>>,
    /// The state of the question: `asked`, `allowed`, `denied`, `expired`, `withdrawn`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) state: Option<&'static str>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) cause: Option<Cause>,
    /// How many lines of the CLI the adapter did not understand. Only in terminal events.
    #[serde(rename = "unknownLines", skip_serializing_if = "is_zero")]
    pub(crate) unknown_lines: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) raw: Option<Cow<'a, RawValue>>,
}

/// Machine-readable cause of a failed turn, beside the message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Cause {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cli: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) signal: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) stderr: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl<'a> Event<'a> {
    pub(crate) fn new(kind: Kind) -> Event<'a> {
        Event {
            kind,
            subtype: None,
            session_id: None,
            model: None,
            content: None,
            tool: None,
            input: None,
            message: None,
            position: None,
            approval: None,
            state: None,
            cause: None,
            unknown_lines: 0,
            raw: None,
        }
    }

    pub(crate) fn partial(content: impl Into<Cow<'a, str>>) -> Event<'a> {
        Event { content: Some(content.into()), ..Event::new(Kind::Partial) }
    }

    pub(crate) fn text(content: impl Into<Cow<'a, str>>) -> Event<'a> {
        Event { content: Some(content.into()), ..Event::new(Kind::Text) }
    }

    pub(crate) fn tool(tool: impl Into<Cow<'a, str>>) -> Event<'a> {
        Event { tool: Some(tool.into()), ..Event::new(Kind::ToolUse) }
    }

    /// A notice, which does not end the turn.
    pub(crate) fn notice(subtype: &'static str, message: impl Into<Cow<'a, str>>) -> Event<'a> {
        Event { subtype: Some(subtype.into()), message: Some(message.into()), ..Event::new(Kind::System) }
    }

    pub(crate) fn init(
        session_id: impl Into<Cow<'a, str>>,
        model: Option<impl Into<Cow<'a, str>>>,
    ) -> Event<'a> {
        Event {
            subtype: Some("init".into()),
            session_id: Some(session_id.into()),
            model: model.map(Into::into),
            ..Event::new(Kind::System)
        }
    }

    /// Whether this is the first event of a turn.
    pub(crate) fn is_init(&self) -> bool {
        self.kind == Kind::System && self.subtype.as_deref() == Some("init")
    }

    /// Whether a CLI may write it before `init`. Such an event is held back until `init`.
    pub(crate) fn is_early(&self) -> bool {
        matches!(self.kind, Kind::System | Kind::Raw) && !self.is_init()
    }

    pub(crate) fn error(message: impl Into<Cow<'a, str>>) -> Event<'a> {
        Event { message: Some(message.into()), ..Event::new(Kind::Error) }
    }
}

/// Appends an event in the framing of server-sent events: `data: `, JSON and an empty line. JSON has no bare line
/// feeds.
pub(crate) fn append(out: &mut Vec<u8>, event: &impl Serialize, position: Option<EventPosition>) {
    out.extend_from_slice(b"data: ");
    let begin = out.len();
    if serde_json::to_writer(&mut *out, event).is_err() {
        out.truncate(begin);
        out.extend_from_slice(br#"{"type":"error","message":"an event could not be written"}"#);
    }
    if let Some(position) = position {
        out.pop();
        position.append(out);
        out.push(b'}');
    }
    out.extend_from_slice(b"\n\n");
}

/// The turn of an event, and its number within the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventPosition {
    pub(crate) turn: u64,
    /// `None` for events of one stream only, which are not in the log.
    pub(crate) seq: Option<u64>,
}

impl EventPosition {
    fn append(self, out: &mut Vec<u8>) {
        use std::io::Write;
        let written = match self.seq {
            Some(seq) => write!(out, ",\"turn\":{},\"seq\":{seq}", self.turn),
            None => write!(out, ",\"turn\":{}", self.turn),
        };
        debug_assert!(written.is_ok(), "a write to memory does not fail");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_with_its_position_last() {
        let mut out = Vec::new();
        append(&mut out, &Event::partial("a\nb \u{2028}"), Some(EventPosition { turn: 2, seq: Some(7) }));
        append(&mut out, &Event::new(Kind::Ping), None);
        let queued = Event { position: Some(1), ..Event::new(Kind::Queued) };
        append(&mut out, &queued, Some(EventPosition { turn: 3, seq: None }));
        let expected = "data: {\"type\":\"partial\",\"content\":\"a\\nb \u{2028}\",\"turn\":2,\"seq\":7}\n\n\
            data: {\"type\":\"ping\"}\n\ndata: {\"type\":\"queued\",\"position\":1,\"turn\":3}\n\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn the_cause_of_an_error_is_beside_its_message() {
        let cause = Cause { cli: Some("claude"), exit_code: Some(1), ..Cause::default() };
        let mut out = Vec::new();
        append(&mut out, &Event { cause: Some(cause), ..Event::error("it broke") }, None);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "data: {\"type\":\"error\",\"message\":\"it broke\",\"cli\":\"claude\",\"exitCode\":1}\n\n"
        );
    }
}
