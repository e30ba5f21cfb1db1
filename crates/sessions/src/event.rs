//! What a client is told of a turn: one event, as it stands on a server-sent stream and in the record of the turn.

use serde::Serialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// The types of the contract, and ours: `approval` for a question that a human is asked, `raw` for a line of a CLI that
/// nobody here understands.
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

/// One event. Members that are not set are absent.
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
    /// The question, in an `approval`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) approval: Option<Cow<'a, str>>,
    /// How it stands: `asked`, `allowed`, `denied`, `expired`, `withdrawn`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) state: Option<&'static str>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) cause: Option<Cause>,
    /// Lines of the CLI that nobody here understands, told with the end.
    #[serde(rename = "unknownLines", skip_serializing_if = "is_zero")]
    pub(crate) unknown_lines: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) raw: Option<Cow<'a, RawValue>>,
}

/// Why a turn failed, besides the message that says it in words.
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

    /// Something to know that ends nothing.
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

    /// The event that a turn begins with.
    pub(crate) fn is_init(&self) -> bool {
        self.kind == Kind::System && self.subtype.as_deref() == Some("init")
    }

    /// A CLI may write it before `init`, and it can wait for `init`.
    pub(crate) fn is_early(&self) -> bool {
        matches!(self.kind, Kind::System | Kind::Raw) && !self.is_init()
    }

    pub(crate) fn error(message: impl Into<Cow<'a, str>>) -> Event<'a> {
        Event { message: Some(message.into()), ..Event::new(Kind::Error) }
    }
}

/// Appends an event in the framing of a stream: `data: ` and two line ends. JSON has no bare line ends.
pub(crate) fn append(out: &mut Vec<u8>, event: &impl Serialize, place: Option<Place>) {
    out.extend_from_slice(b"data: ");
    let begin = out.len();
    if serde_json::to_writer(&mut *out, event).is_err() {
        out.truncate(begin);
        out.extend_from_slice(br#"{"type":"error","message":"an event could not be written"}"#);
    }
    if let Some(place) = place {
        out.pop();
        place.append(out);
        out.push(b'}');
    }
    out.extend_from_slice(b"\n\n");
}

/// Where an event stands: which message of the session it answers, and its number within the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) turn: u64,
    /// None for what is only said to one client.
    pub(crate) seq: Option<u64>,
}

impl Place {
    fn append(self, out: &mut Vec<u8>) {
        use std::io::Write;
        let written = match self.seq {
            Some(seq) => write!(out, ",\"turn\":{},\"seq\":{seq}", self.turn),
            None => write!(out, ",\"turn\":{}", self.turn),
        };
        debug_assert!(written.is_ok(), "writing to memory does not fail");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_stands_on_one_line_with_its_place_last() {
        let mut out = Vec::new();
        append(&mut out, &Event::partial("a\nb \u{2028}"), Some(Place { turn: 2, seq: Some(7) }));
        append(&mut out, &Event::new(Kind::Ping), None);
        let queued = Event { position: Some(1), ..Event::new(Kind::Queued) };
        append(&mut out, &queued, Some(Place { turn: 3, seq: None }));
        let expected = "data: {\"type\":\"partial\",\"content\":\"a\\nb \u{2028}\",\"turn\":2,\"seq\":7}\n\n\
            data: {\"type\":\"ping\"}\n\ndata: {\"type\":\"queued\",\"position\":1,\"turn\":3}\n\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn the_cause_of_an_error_stands_beside_its_message() {
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
