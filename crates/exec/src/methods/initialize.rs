//! `initialize`: the client's name, and the notifications it has opted out of.

use crate::connection::Connection;
use crate::server::Server;
use crate::wire::{Failure, InitializeParams};
use serde::Serialize;
use std::path::PathBuf;

/// Release of the original that this face implements. Clients parse it from the user agent.
const VERSION: &str = "0.124.0";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Initialized {
    user_agent: String,
    codex_home: PathBuf,
    platform_family: &'static str,
    platform_os: &'static str,
}

pub(super) fn initialize(connection: &Connection, params: &InitializeParams) -> Result<Initialized, Failure> {
    let mut state = connection.state();
    if state.initialized {
        return Err(Failure::invalid_request("Already initialized"));
    }
    let name = &params.client_info.name;
    if !name.bytes().all(|byte| byte == b'\t' || (byte >= b' ' && byte != 0x7f)) {
        let text = format!("Invalid clientInfo.name: '{name}'. Must be a valid HTTP header value.");
        return Err(Failure::invalid_request(text));
    }
    let opted_out =
        params.capabilities.as_ref().and_then(|wants| wants.opt_out_notification_methods.as_deref());
    state.opted_out_of_deltas =
        opted_out.unwrap_or_default().iter().any(|method| method == "command/exec/outputDelta");
    state.initialized = true;
    Ok(Initialized {
        user_agent: user_agent(&connection.server, name, &params.client_info.version),
        codex_home: codex_home(&connection.server),
        platform_family: std::env::consts::FAMILY,
        platform_os: std::env::consts::OS,
    })
}

fn user_agent(server: &Server, name: &str, version: &str) -> String {
    let (system, architecture) = (operating_system(), std::env::consts::ARCH);
    format!("{name}/{VERSION} ({system}; {architecture}) {} ({name}; {version})", terminal(server))
}

/// The name and version of the distribution, as in `Debian 12.0.0`.
fn operating_system() -> String {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let field = |name: &str| {
        let value = release.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        Some(value.trim_matches('"').to_owned()).filter(|value| !value.is_empty())
    };
    let name = field("NAME").and_then(|name| name.split(' ').next().map(str::to_owned));
    let version = field("VERSION_ID").unwrap_or_else(|| "0".into());
    let parts: Vec<&str> = version.split('.').chain(["0", "0"]).take(3).collect();
    format!("{} {}", name.unwrap_or_else(|| "Linux".into()), parts.join("."))
}

fn terminal(server: &Server) -> String {
    let variable = |name: &str| {
        let value = server.variable(name)?.to_str()?.trim();
        (!value.is_empty()).then(|| value.to_owned())
    };
    match (variable("TERM_PROGRAM"), variable("TERM_PROGRAM_VERSION")) {
        (Some(program), Some(version)) => format!("{program}/{version}"),
        (Some(program), None) => program,
        (None, _) => variable("TERM").filter(|term| term != "dumb").unwrap_or_else(|| "unknown".into()),
    }
}

fn codex_home(server: &Server) -> PathBuf {
    match server.variable("CODEX_HOME").filter(|home| !home.is_empty()) {
        Some(home) => PathBuf::from(home),
        None => server.home().unwrap_or_else(|| PathBuf::from("/")).join(".codex"),
    }
}
