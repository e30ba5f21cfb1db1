//! `session.interrupt`: ends the running turn and cancels the queued ones. The turn stops in `turn::running`.

use super::{SESSION_ID, find};
use crate::face::Face;
use crate::http::rpc::{Failure, Params};
use serde_json::{Value, json};
use std::sync::Arc;

pub(in crate::methods) async fn interrupt(face: &Arc<Face>, params: &Params<'_>) -> Result<Value, Failure> {
    let session = find(face, params, SESSION_ID)?;
    Ok(json!({ "ok": true, "interrupted": face.interrupt(&session).await? }))
}
