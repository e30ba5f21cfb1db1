//! `session.reconnect`: returns undelivered events, or streams all events after a cursor.

use super::SESSION_ID;
use crate::event::Event;
use crate::face::Face;
use crate::http::event_stream::{self, EventStream};
use crate::http::flush::FlushCounter;
use crate::http::rpc::{self, Failure, Params};
use crate::methods::Reply;
use serde_json::Value;
use serde_json::value::RawValue;
use std::sync::Arc;

/// Without a cursor, returns the events that no client has received. With one, streams all events after it.
pub(in crate::methods) async fn reconnect(
    face: &Arc<Face>,
    params: &Params<'_>,
    request_id: Option<&RawValue>,
    flushes: &FlushCounter,
) -> Result<Reply, Failure> {
    let id = params.required("sessionId", SESSION_ID)?;
    let session = face.session(id);
    let cursor =
        match params.get("cursor") {
            None | Some(Value::Null) => None,
            Some(cursor) => Some(cursor.as_u64().ok_or_else(|| {
                Failure::invalid_params("Invalid param: cursor is the seq of an event, or 0")
            })?),
        };
    match (session, cursor) {
        (None, None) => Ok(buffered(&[], request_id)),
        (None, Some(_)) => Err(rpc::no_session(id)),
        (Some(session), None) => Ok(buffered(&event_stream::unread(&session).await, request_id)),
        (Some(session), Some(cursor)) => {
            let (start, first_kept) = event_stream::start_after(&session, cursor);
            let gap = first_kept.map(|first| {
                let message = format!("Events {} to {} are not kept any more", cursor + 1, first - 1);
                Event::notice("gap", message)
            });
            Ok(Reply::Stream(EventStream::follow(session, start, gap, flushes, face.shutdown.phase())))
        }
    }
}

/// Inserts the events as they are in the log, without parsing them.
fn buffered(events: &[u8], request_id: Option<&RawValue>) -> Reply {
    let mut text = [b"{\"result\":{\"bufferedEvents\":[", events, b"]}}"].concat();
    rpc::append_id(&mut text, request_id);
    Reply::Text(text)
}
