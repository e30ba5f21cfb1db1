//! The wire types of the broker's contract, for its server and its clients: one request line, one response line.

#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The sudo-proxy version of this protocol. Its clients display the value and do not interpret it.
pub const VERSION: &str = "1.2.0";

/// "Maximum request size: 1 MB", including the newline.
pub const REQUEST_BYTES_MAX: usize = 1_048_576;

/// "capped the corresponding stream at MAX_OUTPUT_BYTES (16 MiB)"
pub const OUTPUT_BYTES_MAX: usize = 16 * 1024 * 1024;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    #[default]
    Exec,
    Stop,
    Ping,
}

impl Action {
    fn is_exec(&self) -> bool {
        *self == Action::Exec
    }
}

/// "every field except pipeline is optional on the wire"
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    #[serde(default = "fresh_id")]
    pub id: String,
    #[serde(default)]
    pub host: String,
    #[serde(default = "unknown")]
    pub session: String,
    #[serde(default)]
    pub time: String,
    #[serde(default)]
    pub pipeline: Vec<Vec<String>>,
    #[serde(default, skip_serializing_if = "Action::is_exec")]
    pub action: Action,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub reason: String,
    /// "defaults to true (the most-restrictive default ...)"
    #[serde(default = "yes")]
    pub privileged: bool,
    #[serde(default)]
    pub forward_agent: bool,
    /// The client's version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// An extension of Outpost: the absolute working directory. sudo-proxy always uses `/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

fn fresh_id() -> String {
    uuid::Uuid::new_v4().to_string()
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn yes() -> bool {
    true
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Ok,
    Denied,
    /// No human answered in time. A command that exceeds its run time is an `Error`.
    Timeout,
    Error,
}

/// The response. The extensions of Outpost follow the contract's fields: "Clients should ignore unknown fields".
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response {
    pub id: String,
    pub status: Status,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<Stage>,
    /// Base64 of the last stage's output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<String>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub stdout_truncated: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Why it ran: `human`, `rule:NAME`, `grant`, `session`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved_by: Option<String>,
    /// SHA-256 of the pinned request that was decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub timed_out: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// -1 if a signal killed the process.
    pub exit_code: i32,
    /// Base64.
    pub stderr: String,
    #[serde(default, skip_serializing_if = "is_false")]
    pub stderr_truncated: bool,
    /// The name of the signal that killed the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// The executed file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved: Option<Resolved>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolved {
    pub path: String,
    pub sha256: String,
}

impl Response {
    pub fn new(id: &str, status: Status) -> Response {
        Response {
            id: id.to_owned(),
            status,
            stages: Vec::new(),
            stdout: None,
            stdout_truncated: false,
            message: None,
            version: VERSION.to_owned(),
            decision: None,
            approved_by: None,
            digest: None,
            timed_out: false,
        }
    }

    pub fn error(id: &str, message: impl Into<String>) -> Response {
        Response { message: Some(message.into()), ..Response::new(id, Status::Error) }
    }
}

fn is_false(flag: &bool) -> bool {
    !*flag
}
