//! `session.send`: queues a message and streams the events of its turn.

use crate::event::{Event, EventPosition, Kind};
use crate::face::Face;
use crate::http::event_stream::{EventStream, StreamStart};
use crate::http::flush::FlushCounter;
use crate::http::rpc::{Failure, Params, missing};
use crate::session::Accepted;
use std::sync::Arc;

/// Errors of the session are events of the stream too, as the contract has them.
pub(in crate::methods) async fn send(
    face: &Arc<Face>,
    params: &Params<'_>,
    flushes: &FlushCounter,
) -> Result<EventStream, Failure> {
    let (Some(id), Some(message)) = (params.text("sessionId"), params.text("message")) else {
        return Err(missing(&["sessionId", "message"]));
    };
    let only = |event: Event<'_>, turn: Option<u64>| {
        let position = turn.map(|turn| EventPosition { turn, seq: None });
        EventStream::of(&[(event, position)], flushes)
    };
    let Some(session) = face.session(id) else {
        return Ok(only(Event::error(format!("Session not found: {id}")), None));
    };
    let accepted = match face.send(&session, message).await {
        Ok(accepted) => accepted,
        Err(error) => return Ok(only(Event::error(format!("The message was not taken: {error}")), None)),
    };
    Ok(match accepted {
        Accepted::Live { turn } => EventStream::follow(
            session,
            StreamStart { turn, skip: 0, all_turns: false },
            None,
            flushes,
            face.shutdown.phase(),
        ),
        Accepted::Queued { turn, position } => {
            only(Event { position: Some(position), ..Event::new(Kind::Queued) }, Some(turn))
        }
        Accepted::Full => only(Event::error("The session's queue is full; wait for its answers"), None),
        Accepted::Destroyed => only(Event::error(format!("Session not found: {id}")), None),
    })
}
