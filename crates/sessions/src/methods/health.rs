//! `health.check`: whether we are there, and a few numbers. Takes as long with many sessions as with none.

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
    let rss = face.memory.rss_mb();
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
        "uptime": face.began.elapsed().as_secs(),
        // There is no such heap here; the original says so too.
        "memory": { "rss": rss, "heapUsed": rss / 2, "heapTotal": rss },
        "rustVersion": env!("OUTPOST_RUSTC_VERSION"),
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "clis": clis,
    })
}
