//! `session.send` and `session.reconnect`: what answers with events.

use super::Reply;
use crate::event::{Event, Kind, Place};
use crate::face::Face;
use crate::rpc::{self, Failure, INVALID_PARAMS, Params, missing};
use crate::session::Accepted;
use crate::stream::{self, EventStream, Flushed, Start};
use serde_json::Value;
use serde_json::value::RawValue;
use std::sync::Arc;

/// A message goes to its session, and its answer comes back as a stream. What is wrong with the session is told there too.
pub(super) async fn send(
    face: &Arc<Face>,
    params: &Params<'_>,
    flushed: &Flushed,
) -> Result<EventStream, Failure> {
    let (Some(id), Some(message)) = (params.text("sessionId"), params.text("message")) else {
        return Err(missing(&["sessionId", "message"]));
    };
    let say = |event: Event<'_>, turn: Option<u64>| {
        let place = turn.map(|turn| Place { turn, seq: None });
        EventStream::of(&[(event, place)], flushed)
    };
    let Some(session) = face.session(id) else {
        return Ok(say(Event::error(format!("Session not found: {id}")), None));
    };
    let accepted = match face.send(&session, message).await {
        Ok(accepted) => accepted,
        Err(error) => return Ok(say(Event::error(format!("The message was not taken: {error}")), None)),
    };
    Ok(match accepted {
        Accepted::Live { turn } => EventStream::follow(
            session,
            Start { turn, skip: 0, is_all: false },
            None,
            flushed,
            face.shutdown.phase(),
        ),
        Accepted::Queued { turn, position } => {
            say(Event { position: Some(position), ..Event::new(Kind::Queued) }, Some(turn))
        }
        Accepted::Full => say(Event::error("The session's queue is full; wait for its answers"), None),
        Accepted::Gone => say(Event::error(format!("Session not found: {id}")), None),
    })
}

/// Without a cursor: what nobody has been handed, at once. With one: everything after that event, and what comes.
pub(super) async fn reconnect(
    face: &Arc<Face>,
    params: &Params<'_>,
    answers: Option<&RawValue>,
    flushed: &Flushed,
) -> Result<Reply, Failure> {
    let id = params.required("sessionId", &["sessionId"])?;
    let session = face.session(id);
    let cursor = match params.get("cursor") {
        None | Some(Value::Null) => None,
        Some(cursor) => Some(cursor.as_u64().ok_or_else(|| {
            Failure::new(INVALID_PARAMS, "Invalid param: cursor is the seq of an event, or 0")
        })?),
    };
    match (session, cursor) {
        (None, None) => Ok(buffered(&[], answers)),
        (None, Some(_)) => Err(Failure::no_session(id)),
        (Some(session), None) => Ok(buffered(&stream::unread(&session).await, answers)),
        (Some(session), Some(cursor)) => {
            let (start, first_kept) = stream::start_after(&session, cursor);
            let gap = first_kept.map(|first| {
                let message = format!("Events {} to {} are not kept any more", cursor + 1, first - 1);
                Event::notice("gap", message)
            });
            Ok(Reply::Stream(EventStream::follow(session, start, gap, flushed, face.shutdown.phase())))
        }
    }
}

/// The events are copied as they stand in their records.
fn buffered(events: &[u8], answers: Option<&RawValue>) -> Reply {
    let mut text = [b"{\"result\":{\"bufferedEvents\":[", events, b"]}}"].concat();
    rpc::append_id(&mut text, answers);
    Reply::Text(text)
}
