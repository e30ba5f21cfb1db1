//! The methods `session.*`, one file each, and the parameters they share.

pub(super) mod create;
pub(super) mod destroy;
pub(super) mod interrupt;
pub(super) mod list;
mod project_path;
pub(super) mod queue_stats;
pub(super) mod reconnect;
pub(super) mod resume;
pub(super) mod send;
pub(super) mod set_mode;
pub(super) mod set_model;
mod skills;

use crate::face::Face;
use crate::http::rpc::{self, Failure, Params};
use crate::session::Session;
use serde_json::Value;
use std::sync::Arc;

/// The required params of methods that take only a session.
const SESSION_ID: &[&str] = &["sessionId"];

/// The session of a request. `names` lists all required params of the method, for the error text.
fn find(face: &Face, params: &Params<'_>, names: &[&str]) -> Result<Arc<Session>, Failure> {
    let id = params.required("sessionId", names)?;
    face.session(id).ok_or_else(|| rpc::no_session(id))
}

/// An optional string; null counts as absent.
fn optional<'a>(params: &Params<'a>, name: &str) -> Result<Option<&'a str>, Failure> {
    match params.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Failure::invalid_params(format!("Invalid param: {name} is not a string"))),
    }
}

/// An optional string that becomes an argument of a CLI. Refuses text that the CLI would parse as an option.
fn optional_argument<'a>(params: &Params<'a>, name: &str) -> Result<Option<&'a str>, Failure> {
    let text = optional(params, name)?.filter(|text| !text.is_empty());
    match text.is_some_and(|text| text.starts_with('-') || text.chars().any(char::is_control)) {
        true => Err(Failure::invalid_params(format!("Invalid param: {name} is not a name"))),
        false => Ok(text),
    }
}

fn invalid_mode() -> Failure {
    rpc::application("Invalid mode")
}
