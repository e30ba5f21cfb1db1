//! `session.queue_stats`: queued messages, unread events, and whether a client is connected.

use super::SESSION_ID;
use crate::face::Face;
use crate::http::rpc::{self, Failure, Params};
use crate::session::Session;
use serde_json::{Value, json};
use std::sync::Arc;

pub(in crate::methods) fn queue_stats(face: &Arc<Face>, params: &Params<'_>) -> Result<Value, Failure> {
    let id = params.required("sessionId", SESSION_ID)?;
    let session = face.session(id).ok_or_else(|| rpc::application("Session not found"))?;
    Ok(stats(&session))
}

pub(in crate::methods) fn stats(session: &Session) -> Value {
    let stats = session.queue_stats();
    json!({
        "userPending": stats.user_pending,
        "responsePending": stats.response_pending,
        "clientConnected": stats.client_connected,
    })
}
