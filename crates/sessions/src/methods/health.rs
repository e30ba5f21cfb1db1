//! `health.check`: liveness and a few numbers. Its cost does not depend on the number of idle sessions.

use crate::face::Face;
use serde_json::{Map, Value, json};
use std::sync::Arc;

pub(super) fn check(face: &Arc<Face>) -> Value {
    let (sessions, busy) = face.counts();
    let mut by_status = Map::new();
    for (status, count) in [("idle", sessions.saturating_sub(busy)), ("busy", busy)] {
        if count > 0 {
            by_status.insert(status.into(), count.into());
        }
    }
    let rss = face.rss.mb();
    let clis: Map<String, Value> = face
        .clis
        .all()
        .into_iter()
        .map(|(cli, found)| {
            let known = match found {
                Some(found) => json!({ "found": true, "path": found.program, "version": found.version }),
                None => json!({ "found": false }),
            };
            (cli.name().to_owned(), known)
        })
        .collect();
    json!({
        "ok": true,
        "sessions": sessions,
        "sessionsByStatus": by_status,
        "uptime": face.started_at.elapsed().as_secs(),
        // The daemon has no such heap. codecast-daemon derives these values from the RSS too.
        "memory": { "rss": rss, "heapUsed": rss / 2, "heapTotal": rss },
        "rustVersion": env!("OUTPOST_RUSTC_VERSION"),
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "clis": clis,
    })
}
