//! `session.list` and `monitor.sessions`. Made on a thread of its own: there may be thousands, and others wait.

use crate::face::Face;
use crate::rpc::{self, Failure};
use crate::session::Session;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::sync::Arc;

fn summary(session: &Session) -> Value {
    let state = session.state();
    json!({
        "sessionId": session.id,
        "path": session.path.to_string_lossy(),
        "status": state.status(),
        "mode": state.mode.name(),
        "cliType": session.cli.name(),
        "sdkSessionId": state.sdk_id,
        "model": state.model,
        // Always as many digits, so that they sort as they come.
        "createdAt": format!("{:.3}", session.created.at),
        "lastActivityAt": format!("{:.3}", state.active),
    })
}

pub(super) fn queue(session: &Session) -> Value {
    let stats = session.queue_stats();
    json!({
        "userPending": stats.user_pending,
        "responsePending": stats.response_pending,
        "clientConnected": stats.client_connected,
    })
}

pub(super) async fn list(face: &Arc<Face>, id: Option<&RawValue>) -> Result<Vec<u8>, Failure> {
    elsewhere(face, id, |face| {
        let sessions: Vec<Value> = face.all().iter().map(|session| summary(session)).collect();
        json!({ "sessions": sessions })
    })
    .await
}

pub(super) async fn monitor(face: &Arc<Face>, id: Option<&RawValue>) -> Result<Vec<u8>, Failure> {
    elsewhere(face, id, |face| {
        let detail = |session: &Arc<Session>| {
            let mut detail = summary(session);
            detail["queue"] = queue(session);
            detail
        };
        let sessions: Vec<Value> = face.all().iter().map(detail).collect();
        let total = sessions.len();
        json!({ "sessions": sessions, "totalSessions": total, "uptime": face.began.elapsed().as_secs() })
    })
    .await
}

async fn elsewhere(
    face: &Arc<Face>,
    id: Option<&RawValue>,
    make: impl FnOnce(&Face) -> Value + Send + 'static,
) -> Result<Vec<u8>, Failure> {
    let (face, id) = (face.clone(), id.map(ToOwned::to_owned));
    let made = tokio::task::spawn_blocking(move || rpc::answer(Ok(make(&face)), id.as_deref(), &[]));
    made.await.map_err(|error| Failure::application(error.to_string()))
}
