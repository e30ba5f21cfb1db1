//! `session.destroy`: ends all processes of a session and removes it.

use super::SESSION_ID;
use crate::face::Face;
use crate::http::rpc::{Failure, Params};
use serde_json::{Value, json};
use std::sync::Arc;

pub(in crate::methods) async fn destroy(face: &Arc<Face>, params: &Params<'_>) -> Result<Value, Failure> {
    let id = params.required("sessionId", SESSION_ID)?;
    Ok(json!({ "ok": face.destroy(id).await? }))
}
