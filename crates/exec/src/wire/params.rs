//! Parameters of each method. The type names equal the original's, so that serde's error texts do too.

use super::{PermissionProfile, SandboxPolicy};
use serde::Deserialize;
use std::collections::HashMap;
use std::path::PathBuf;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InitializeParams {
    pub(crate) client_info: ClientInfo,
    pub(crate) capabilities: Option<InitializeCapabilities>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClientInfo {
    pub(crate) name: String,
    #[serde(rename = "title")]
    _title: Option<String>,
    pub(crate) version: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InitializeCapabilities {
    /// Accepted and ignored.
    #[serde(default, rename = "experimentalApi")]
    _experimental_api: bool,
    pub(crate) opt_out_notification_methods: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CommandExecParams {
    pub(crate) command: Vec<String>,
    pub(crate) process_id: Option<String>,
    #[serde(default)]
    pub(crate) tty: bool,
    #[serde(default)]
    pub(crate) stream_stdin: bool,
    #[serde(default)]
    pub(crate) stream_stdout_stderr: bool,
    pub(crate) output_bytes_cap: Option<usize>,
    #[serde(default)]
    pub(crate) disable_output_cap: bool,
    #[serde(default)]
    pub(crate) disable_timeout: bool,
    pub(crate) timeout_ms: Option<i64>,
    pub(crate) cwd: Option<PathBuf>,
    pub(crate) env: Option<HashMap<String, Option<String>>>,
    pub(crate) size: Option<CommandExecTerminalSize>,
    pub(crate) sandbox_policy: Option<SandboxPolicy>,
    pub(crate) permission_profile: Option<PermissionProfile>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct CommandExecTerminalSize {
    pub(crate) rows: u16,
    pub(crate) cols: u16,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CommandExecWriteParams {
    pub(crate) process_id: String,
    pub(crate) delta_base64: Option<String>,
    #[serde(default)]
    pub(crate) close_stdin: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CommandExecResizeParams {
    pub(crate) process_id: String,
    pub(crate) size: CommandExecTerminalSize,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CommandExecTerminateParams {
    pub(crate) process_id: String,
}
