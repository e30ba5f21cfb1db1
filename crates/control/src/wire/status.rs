//! The method `status`: the state of the daemon and its faces.

use super::RelayState;
use serde::{Deserialize, Serialize};

/// The parameters of `status`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusQuery {
    /// Reply once the faces have been started, so that the state of each is known.
    pub await_faces: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub version: String,
    pub worker_pid: u32,
    pub keeper_pid: u32,
    pub processes: usize,
    pub running: usize,
    #[serde(default)]
    pub relay: Option<RelayState>,
    /// The daemon was stopped and only keeps its processes.
    #[serde(default)]
    pub keeping: bool,
    /// The worker's command line.
    #[serde(default)]
    pub arguments: Vec<String>,
    #[serde(default)]
    pub worker: Option<Usage>,
    #[serde(default)]
    pub keeper: Option<Usage>,
    /// Size of journals and indexes on disk.
    #[serde(default)]
    pub journal_bytes: u64,
    #[serde(default, flatten)]
    pub faces: Faces,
}

/// Resources of the keeper or the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    pub rss_bytes: u64,
    pub age_ms: u64,
}

/// Counts of questions that wait for an approver. Their content is only for approvers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PendingApprovals {
    pub questions: usize,
    /// Age of the oldest question.
    pub oldest_ms: u64,
}

/// The state of the faces.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Faces {
    pub listening: Vec<Listening>,
    /// `None` in a daemon without approvals.
    pub waiting: Option<PendingApprovals>,
    pub sessions: usize,
    pub busy_sessions: usize,
    pub config_file: Option<String>,
    /// Personal or guard mode, with what each protects against.
    pub approvals_mode: Option<String>,
    /// Components that fail and are being retried.
    pub problems: Vec<Problem>,
    /// The worker has just been restarted, and its faces have not been started yet: the other fields are incomplete.
    pub starting: bool,
}

/// A component of the daemon that fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    pub component: String,
    /// What fails, with the cause.
    pub message: String,
    /// Time of the first failure, in milliseconds since 1970.
    pub since_ms: u64,
}

/// The address on which a face listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listening {
    pub face: String,
    pub address: String,
    /// An example command for this face.
    pub hint: String,
}
