//! `session.create`: checks the parameters, copies skills into the project, and adds the session.

use super::project_path::{self, ProjectError};
use super::{invalid_mode, optional, optional_argument, skills};
use crate::agents::{Cli, Mode};
use crate::face::Face;
use crate::http::rpc::{self, Failure, Params};
use crate::turn::sandbox::{InvalidSandbox, Sandbox};
use serde_json::{Value, json};
use std::sync::Arc;

pub(in crate::methods) async fn create(face: &Arc<Face>, params: &Params<'_>) -> Result<Value, Failure> {
    let given = params.required("path", &["path"])?.to_owned();
    let mode = match optional(params, "mode")? {
        None => Mode::Auto,
        Some(name) => Mode::from_name(name).ok_or_else(invalid_mode)?,
    };
    let cli = match optional(params, "cli_type")? {
        None => Cli::Claude,
        Some(name) => Cli::from_name(name).ok_or_else(|| invalid_cli(name))?,
    };
    let model = optional_argument(params, "model")?.map(str::to_owned);
    let sandbox = match params.get("sandbox") {
        None | Some(Value::Null) => None,
        Some(given) => {
            let invalid =
                |reason: InvalidSandbox| Failure::invalid_params(format!("Invalid param: sandbox: {reason}"));
            Some(Sandbox::from_json(given.clone()).map_err(invalid)?)
        }
    };
    if face.is_full() {
        return Err(rpc::application("Too many sessions; destroy some first"));
    }
    let source = face.settings().skills.clone();
    let prepared = tokio::task::spawn_blocking(move || {
        let path = project_path::project(&given, &outpost_sys::user::home().unwrap_or_default())?;
        let synced = skills::sync(&source, &path, cli);
        if synced.copied > 0 || !synced.failed.is_empty() {
            tracing::info!(project = %path.display(), ?synced, "Skills synced: {} files", synced.copied);
        }
        Ok::<_, ProjectError>(path)
    });
    let path = prepared.await.map_err(|error| rpc::application(error.to_string()))?;
    let path = path.map_err(|error| rpc::application(error.to_string()))?;
    let id = face.create(path, cli, mode, model, sandbox).await?;
    Ok(json!({ "sessionId": id }))
}

fn invalid_cli(name: &str) -> Failure {
    let names = Cli::ALL.map(Cli::name);
    let names = names.join(", ");
    let (others, last) = names.rsplit_once(", ").unwrap_or(("", &names));
    rpc::application(format!("Invalid cli_type: {name}; use {others} or {last}"))
}
