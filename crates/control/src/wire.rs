//! The messages of the control socket: requests, replies and events. Member names are the wire format.

mod status;

pub use status::{Faces, Listening, PendingApprovals, Problem, Status, StatusQuery, Usage};

use outpost_wire::base64;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Longest request line.
pub const LINE_BYTES_MAX: usize = 8 * 1024 * 1024;

#[derive(Debug, Deserialize)]
pub struct Request<'a> {
    pub id: u64,
    #[serde(borrow)]
    pub method: Cow<'a, str>,
    #[serde(borrow, default)]
    pub params: Option<&'a RawValue>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Failure {
    pub kind: String,
    pub message: String,
}

impl Failure {
    /// The kind of a failure because the daemon or its worker is stopping.
    pub const STOPPING: &str = "stopping";

    pub fn is_stopping(&self) -> bool {
        self.kind == Failure::STOPPING
    }
}

/// Any message of the daemon: a reply (with `id`) or an event of a process (with `process`).
#[derive(Debug, Deserialize)]
pub struct Message {
    pub id: Option<u64>,
    pub result: Option<serde_json::Value>,
    pub error: Option<Failure>,
    pub process: Option<String>,
    pub seq: Option<u64>,
    pub time: Option<u64>,
    pub stream: Option<String>,
    pub data: Option<String>,
    pub exit: Option<ExitStatus>,
    #[serde(rename = "firstSeq")]
    pub first_seq: Option<u64>,
    /// The disk has no room for the output of the process, or has room again.
    pub stalled: Option<bool>,
    /// False when another connection took over the input of the process.
    pub writer: Option<bool>,
}

/// An argument, a variable or a path of arbitrary bytes. UTF-8 is a JSON string, anything else `{"base64": …}`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OsText(pub OsString);

impl<T: Into<OsString>> From<T> for OsText {
    fn from(text: T) -> OsText {
        OsText(text.into())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum OsTextRepr<'a> {
    Text(Cow<'a, str>),
    Bytes { base64: String },
}

impl Serialize for OsText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.to_str() {
            Some(text) => OsTextRepr::Text(text.into()),
            None => OsTextRepr::Bytes { base64: to_base64(self.0.as_bytes()) },
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for OsText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OsText, D::Error> {
        match OsTextRepr::deserialize(deserializer)? {
            OsTextRepr::Text(text) => Ok(OsText(text.into_owned().into())),
            OsTextRepr::Bytes { base64: text } => {
                let bytes = base64::decode(text.as_bytes());
                Ok(OsText(OsString::from_vec(bytes.ok_or_else(|| D::Error::custom("not base64"))?)))
            }
        }
    }
}

/// Base64, the encoding of bytes in messages.
pub fn to_base64(bytes: &[u8]) -> String {
    let mut text = Vec::new();
    base64::append(&mut text, bytes);
    String::from_utf8(text).unwrap_or_default()
}

/// How a process ended: by `code` or by `signal`. Both are absent if the exit status is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExitStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    pub user_ms: u32,
    pub system_ms: u32,
    pub rss_max_kb: u32,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spawn {
    pub id: String,
    pub command: Vec<OsText>,
    /// `None` for the daemon's own environment.
    pub environment: Option<Vec<(OsText, OsText)>>,
    /// Additional variables; they override those of `environment`.
    pub added: Vec<(OsText, OsText)>,
    pub directory: Option<OsText>,
    pub terminal: Option<TerminalSize>,
    pub stdin: bool,
    pub new_session: bool,
    pub replace: bool,
    pub sandbox: Option<Sandbox>,
    /// The process and its descendants end with the connection that attaches with `owns`.
    pub ends_with_client: bool,
}

/// The sandbox of a command, in terms of the exec face's policies.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    pub policy: SandboxPolicy,
    #[serde(default)]
    pub network: bool,
    /// With `WorkspaceWrite`: writable directories besides the working directory.
    #[serde(default)]
    pub writable: Vec<OsText>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SandboxPolicy {
    /// All files are readable, none writable.
    ReadOnly,
    /// The working directory, `/tmp` and `$TMPDIR` are writable too.
    WorkspaceWrite,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    pub rows: u16,
    pub cols: u16,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spawned {
    pub process: String,
    pub pid: i32,
}

/// Refers to a process by its slot number, its id or its address.
#[derive(Debug, Serialize, Deserialize)]
pub struct ProcessRef {
    pub process: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Attach {
    pub process: String,
    pub after: u64,
    /// Instead of `after`: start at least this many bytes before the end of the output.
    pub tail_bytes: Option<u64>,
    /// Claims the input lock, which one connection at a time holds. It is released with the connection.
    pub write: Option<InputClaim>,
    /// This client owns the process, if the process is client-bound.
    pub owns: bool,
}

/// How to claim the input lock of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum InputClaim {
    IfFree,
    /// Take the lock from its holder, which receives `writer: false`.
    Steal,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attached {
    pub process: String,
    pub first_seq: u64,
    pub last_seq: u64,
    /// The stdin offset of the next byte.
    pub stdin_accepted: u64,
    pub running: bool,
    /// The terminal's size; `None` for a process with pipes.
    #[serde(default)]
    pub size: Option<TerminalSize>,
    #[serde(default)]
    pub terminal: bool,
    /// Whether this connection holds the input lock.
    #[serde(default)]
    pub writer: bool,
    /// Why a requested input lock was not granted.
    #[serde(default)]
    pub read_only_because: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stdin {
    pub process: String,
    pub offset: Option<u64>,
    /// Base64.
    pub data: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StdinApplied {
    pub outcome: StdinOutcome,
    pub applied: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StdinOutcome {
    Applied,
    Duplicate,
    Gap,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resize {
    pub process: String,
    pub size: TerminalSize,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Signal {
    pub process: String,
    /// A name, with or without `SIG`, or a number.
    pub signal: String,
    /// Signal the process group instead of the process only.
    #[serde(default)]
    pub group: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Kill {
    pub process: String,
    pub signal: Option<String>,
    pub grace_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Stop {
    /// Time between SIGTERM and SIGKILL; `None` uses the configured one.
    pub grace_ms: Option<u64>,
}

/// How the processes ended that were running when the daemon was stopped.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StopReport {
    pub processes: Vec<StoppedProcess>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoppedProcess {
    pub process: String,
    pub face: String,
    pub id: String,
    /// `None` if the process could not be killed or its exit could not be recorded.
    pub exit: Option<ExitStatus>,
    /// The process or a descendant outlived the grace time and got SIGKILL.
    pub killed: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Killed {
    pub already_exited: bool,
    pub died: bool,
    pub escalated: bool,
    pub survivors: usize,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessInfo {
    pub process: String,
    pub face: String,
    pub scope: String,
    pub id: String,
    pub pid: i32,
    pub state: String,
    pub exit: Option<ExitStatus>,
    /// Why the exit status is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_unknown_because: Option<String>,
    pub command: Vec<String>,
    pub directory: Option<String>,
    pub terminal: bool,
    pub started_ms: u64,
    pub started_by: String,
    pub rss_bytes: u64,
    #[serde(default)]
    pub cpu_ms: u64,
    pub output_bytes: u64,
    pub kept_bytes: u64,
    pub first_seq: u64,
    pub last_seq: u64,
    pub stdin_accepted: u64,
    pub readers: usize,
    pub stalled: bool,
}

impl ProcessInfo {
    /// Unique among processes with the same id.
    pub fn address(&self) -> String {
        address(&self.face, &self.scope, &self.id)
    }
}

/// `FACE/SCOPE/ID`, or `FACE/ID` without a scope.
pub fn address(face: &str, scope: &str, id: &str) -> String {
    match scope {
        "" => format!("{face}/{id}"),
        scope => format!("{face}/{scope}/{id}"),
    }
}

/// The reply to `keepChildren`.
#[derive(Debug, Serialize, Deserialize)]
pub struct KeepReport {
    /// Number of running processes. At zero the daemon ends.
    pub processes: usize,
}

/// The effective value of one configuration key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Full name, such as `broker.ask_timeout_s`.
    pub key: String,
    pub value: serde_json::Value,
    pub source: SettingSource,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SettingSource {
    Default,
    File,
    Flag,
}

/// The effective configuration, with secrets redacted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    pub file: String,
    pub settings: Vec<Setting>,
}

/// The reply to `reload`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reloaded {
    pub file: String,
    /// Keys with a new value that is in effect.
    pub changed: Vec<String>,
    /// Keys with a new value that takes effect after a restart.
    pub needs_restart: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RelayState {
    Serving,
    /// The relay was stopped with its processes kept: they run, and the relay serves no client.
    Keeping,
}

/// Makes a relay face in state `Keeping` serve again.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WakeRelay {
    pub token: String,
    pub metrics_addr: String,
    pub keep_children: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpgradeBinary {
    /// Absolute path of the new binary.
    pub path: String,
}
