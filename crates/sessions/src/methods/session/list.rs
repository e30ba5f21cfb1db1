//! `session.list`: all sessions, oldest first.

use crate::face::Face;
use crate::http::rpc::{self, Failure};
use crate::session::Session;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::sync::Arc;

pub(in crate::methods) async fn list(face: &Arc<Face>, id: Option<&RawValue>) -> Result<Vec<u8>, Failure> {
    on_blocking_thread(face, id, |face| {
        let sessions: Vec<Value> = face.all().iter().map(|session| summary(session)).collect();
        json!({ "sessions": sessions })
    })
    .await
}

pub(in crate::methods) fn summary(session: &Session) -> Value {
    let state = session.state();
    json!({
        "sessionId": session.id,
        "path": session.path.to_string_lossy(),
        "status": state.status(),
        "mode": state.mode.name(),
        "cliType": session.cli.name(),
        "sdkSessionId": state.conversation_id,
        "model": state.model,
        // A fixed number of digits, so that the text sorts by time.
        "createdAt": format!("{:.3}", session.created.at),
        "lastActivityAt": format!("{:.3}", state.active),
    })
}

/// Builds a response on a blocking thread: a list of thousands of sessions would delay other requests.
pub(in crate::methods) async fn on_blocking_thread(
    face: &Arc<Face>,
    id: Option<&RawValue>,
    build: impl FnOnce(&Face) -> Value + Send + 'static,
) -> Result<Vec<u8>, Failure> {
    let (face, id) = (face.clone(), id.map(ToOwned::to_owned));
    let built = tokio::task::spawn_blocking(move || rpc::answer(Ok(build(&face)), id.as_deref(), &[]));
    built.await.map_err(|error| rpc::application(error.to_string()))
}
