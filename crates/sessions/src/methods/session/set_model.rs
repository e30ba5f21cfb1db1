//! `session.set_model`: overrides the model from the next turn on.

use super::{find, optional_argument};
use crate::face::Face;
use crate::http::rpc::{Failure, Params, missing};
use serde_json::{Value, json};
use std::sync::Arc;

/// A null model removes the override.
pub(in crate::methods) async fn set_model(face: &Arc<Face>, params: &Params<'_>) -> Result<Value, Failure> {
    let names = &["sessionId", "model"];
    params.required("sessionId", names)?;
    if !params.has("model") {
        return Err(missing(names));
    }
    let model = optional_argument(params, "model")?.map(str::to_owned);
    let session = find(face, params, names)?;
    session.state().model = model;
    face.save(&session).await?;
    Ok(json!({ "ok": true }))
}
