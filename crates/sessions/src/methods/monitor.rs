//! `monitor.sessions`: all sessions with their queue statistics.

use super::session::list::{on_blocking_thread, summary};
use super::session::queue_stats::stats;
use crate::face::Face;
use crate::http::rpc::Failure;
use crate::session::Session;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::sync::Arc;

pub(super) async fn sessions(face: &Arc<Face>, id: Option<&RawValue>) -> Result<Vec<u8>, Failure> {
    on_blocking_thread(face, id, |face| {
        let detail = |session: &Arc<Session>| {
            let mut detail = summary(session);
            detail["queue"] = stats(session);
            detail
        };
        let sessions: Vec<Value> = face.all().iter().map(detail).collect();
        let total = sessions.len();
        json!({ "sessions": sessions, "totalSessions": total, "uptime": face.started_at.elapsed().as_secs() })
    })
    .await
}
