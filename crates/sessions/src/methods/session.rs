//! `session.create`, `resume`, `destroy`, `set_mode`, `set_model`, `interrupt`, `queue_stats`.

use crate::agents::{Cli, Mode};
use crate::confine::Sandbox;
use crate::face::Face;
use crate::resuming;
use crate::rpc::{Failure, INVALID_PARAMS, Params, missing};
use crate::session::Session;
use crate::{paths, skills};
use serde_json::{Value, json};
use std::sync::Arc;

const SESSION: &[&str] = &["sessionId"];

fn find(face: &Face, params: &Params<'_>, names: &[&str]) -> Result<Arc<Session>, Failure> {
    let id = params.required("sessionId", names)?;
    face.session(id).ok_or_else(|| Failure::no_session(id))
}

/// A member that may be absent or null, but not something else.
fn optional<'a>(params: &Params<'a>, name: &str) -> Result<Option<&'a str>, Failure> {
    match params.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Failure::new(INVALID_PARAMS, format!("Invalid param: {name} is not a string"))),
    }
}

/// The same for what becomes an argument of a CLI: nothing that it would take for an option.
fn word<'a>(params: &Params<'a>, name: &str) -> Result<Option<&'a str>, Failure> {
    let text = optional(params, name)?.filter(|text| !text.is_empty());
    match text.is_some_and(|text| text.starts_with('-') || text.chars().any(char::is_control)) {
        true => Err(Failure::new(INVALID_PARAMS, format!("Invalid param: {name} is not a name"))),
        false => Ok(text),
    }
}

pub(super) async fn create(face: &Arc<Face>, params: &Params<'_>) -> Result<Value, Failure> {
    let given = params.required("path", &["path"])?.to_owned();
    let mode = match optional(params, "mode")? {
        None => Mode::Auto,
        Some(name) => Mode::from_name(name).ok_or_else(invalid_mode)?,
    };
    let cli = match optional(params, "cli_type")? {
        None => Cli::Claude,
        Some(name) => Cli::from_name(name).ok_or_else(|| {
            Failure::application(format!("Invalid cli_type: {name}; use claude, codex, gemini or opencode"))
        })?,
    };
    let model = word(params, "model")?.map(str::to_owned);
    let sandbox =
        match params.get("sandbox") {
            None | Some(Value::Null) => None,
            Some(asked) => Some(Sandbox::from_json(asked.clone()).map_err(|reason| {
                Failure::new(INVALID_PARAMS, format!("Invalid param: sandbox: {reason}"))
            })?),
        };
    if face.is_full() {
        return Err(Failure::application("Too many sessions; destroy some first"));
    }
    let source = face.settings().skills.clone();
    let prepared = tokio::task::spawn_blocking(move || {
        let path = paths::project(&given, &outpost_sys::user::home().unwrap_or_default())?;
        let synced = skills::sync(&source, &path, cli);
        if synced.copied > 0 || !synced.failed.is_empty() {
            tracing::info!(project = %path.display(), ?synced, "Skills synced: {} files", synced.copied);
        }
        Ok::<_, String>(path)
    });
    let path = prepared.await.map_err(|error| Failure::application(error.to_string()))?;
    let path = path.map_err(Failure::application)?;
    let id = face.create(path, cli, mode, model, sandbox).await?;
    Ok(json!({ "sessionId": id }))
}

fn invalid_mode() -> Failure {
    Failure::application("Invalid mode")
}

pub(super) async fn resume(face: &Arc<Face>, params: &Params<'_>) -> Result<Value, Failure> {
    let id = params.required("sessionId", SESSION)?;
    let sdk_id = word(params, "sdkSessionId")?;
    let Some(session) = face.session(id) else {
        return Ok(json!({ "ok": false, "fallback": false }));
    };
    let mut is_fresh = false;
    if let Some(sdk_id) = sdk_id {
        is_fresh = resuming::is_lost(face, &session, sdk_id).await;
        session.state().resume((!is_fresh).then(|| sdk_id.to_owned()));
        face.save(&session).await?;
    }
    session.state().is_deserted = false;
    Ok(json!({ "ok": true, "fallback": is_fresh }))
}

pub(super) async fn destroy(face: &Arc<Face>, params: &Params<'_>) -> Result<Value, Failure> {
    let id = params.required("sessionId", SESSION)?;
    Ok(json!({ "ok": face.destroy(id).await? }))
}

pub(super) async fn set_mode(face: &Arc<Face>, params: &Params<'_>) -> Result<Value, Failure> {
    let names = &["sessionId", "mode"];
    params.required("sessionId", names)?;
    let mode = params.required("mode", names)?;
    let session = find(face, params, names)?;
    session.state().mode = Mode::from_name(mode).ok_or_else(invalid_mode)?;
    face.save(&session).await?;
    Ok(json!({ "ok": true }))
}

/// `null` takes the override back.
pub(super) async fn set_model(face: &Arc<Face>, params: &Params<'_>) -> Result<Value, Failure> {
    let names = &["sessionId", "model"];
    params.required("sessionId", names)?;
    if !params.has("model") {
        return Err(missing(names));
    }
    let model = word(params, "model")?.map(str::to_owned);
    let session = find(face, params, names)?;
    session.state().model = model;
    face.save(&session).await?;
    Ok(json!({ "ok": true }))
}

pub(super) async fn interrupt(face: &Arc<Face>, params: &Params<'_>) -> Result<Value, Failure> {
    let session = find(face, params, SESSION)?;
    Ok(json!({ "ok": true, "interrupted": face.interrupt(&session).await? }))
}

pub(super) fn queue_stats(face: &Arc<Face>, params: &Params<'_>) -> Result<Value, Failure> {
    let id = params.required("sessionId", SESSION)?;
    let session = face.session(id).ok_or_else(|| Failure::application("Session not found"))?;
    Ok(super::list::queue(&session))
}
