//! `session.resume`: sets the conversation that the next turn continues.

use super::{SESSION_ID, optional_argument};
use crate::agents::conversation_store;
use crate::face::Face;
use crate::http::rpc::{Failure, Params};
use serde_json::{Value, json};
use std::sync::Arc;

pub(in crate::methods) async fn resume(face: &Arc<Face>, params: &Params<'_>) -> Result<Value, Failure> {
    let id = params.required("sessionId", SESSION_ID)?;
    let conversation_id = optional_argument(params, "sdkSessionId")?;
    let Some(session) = face.session(id) else {
        return Ok(json!({ "ok": false, "fallback": false }));
    };
    let mut is_fresh = false;
    if let Some(conversation_id) = conversation_id {
        is_fresh = conversation_store::is_missing(face, &session, conversation_id).await;
        session.state().resume((!is_fresh).then(|| conversation_id.to_owned()));
        face.save(&session).await?;
    }
    session.state().client_gone = false;
    Ok(json!({ "ok": true, "fallback": is_fresh }))
}
