//! `session.set_mode`: sets the permission mode from the next turn on.

use super::{find, invalid_mode};
use crate::agents::Mode;
use crate::face::Face;
use crate::http::rpc::{Failure, Params};
use serde_json::{Value, json};
use std::sync::Arc;

pub(in crate::methods) async fn set_mode(face: &Arc<Face>, params: &Params<'_>) -> Result<Value, Failure> {
    let names = &["sessionId", "mode"];
    params.required("sessionId", names)?;
    let mode = params.required("mode", names)?;
    let session = find(face, params, names)?;
    session.state().mode = Mode::from_name(mode).ok_or_else(invalid_mode)?;
    face.save(&session).await?;
    Ok(json!({ "ok": true }))
}
