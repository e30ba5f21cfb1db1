//! The types of the control socket.

use outpost_wire::base64;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The longest request.
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
    /// The kind of a refusal by a daemon, or a worker of it, that is ending and takes no more orders.
    pub const STOPPING: &str = "stopping";

    pub fn is_stopping(&self) -> bool {
        self.kind == Failure::STOPPING
    }
}

/// Anything the daemon sends: an answer (`id`) or something of a process (`process`).
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
    /// The disk has no room for its output, or has again.
    pub stalled: Option<bool>,
    /// False when somebody else has taken the input of the process over.
    pub writer: Option<bool>,
}

/// An argument, a variable or a path: any bytes. Text goes as a string, anything else as `{"base64": …}`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Word(pub OsString);

impl<T: Into<OsString>> From<T> for Word {
    fn from(text: T) -> Word {
        Word(text.into())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Spelled<'a> {
    Text(Cow<'a, str>),
    Bytes { base64: String },
}

impl Serialize for Word {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.to_str() {
            Some(text) => Spelled::Text(text.into()),
            None => Spelled::Bytes { base64: encoded(self.0.as_bytes()) },
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Word, D::Error> {
        match Spelled::deserialize(deserializer)? {
            Spelled::Text(text) => Ok(Word(text.into_owned().into())),
            Spelled::Bytes { base64: text } => {
                let bytes = base64::decode(text.as_bytes());
                Ok(Word(OsString::from_vec(bytes.ok_or_else(|| D::Error::custom("not base64"))?)))
            }
        }
    }
}

/// Bytes as members of a message carry them.
pub fn encoded(bytes: &[u8]) -> String {
    let mut text = Vec::new();
    base64::append(&mut text, bytes);
    String::from_utf8(text).unwrap_or_default()
}

/// How a process ended: one of the two, or neither when nobody knows.
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
    pub command: Vec<Word>,
    /// The daemon's own without one.
    pub environment: Option<Vec<(Word, Word)>>,
    /// Variables that are set besides, and before others of the same name.
    pub added: Vec<(Word, Word)>,
    pub directory: Option<Word>,
    pub terminal: Option<TerminalSize>,
    pub stdin: bool,
    pub new_session: bool,
    pub replace: bool,
    pub sandbox: Option<Sandbox>,
    /// It ends, with everything it started, when the connection that attaches to it with `owns` does.
    pub ends_with_client: bool,
}

/// What a command may do, in the words of the exec face's policies.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    pub policy: SandboxPolicy,
    #[serde(default)]
    pub network: bool,
    /// Directories besides the working directory, with `WorkspaceWrite`.
    #[serde(default)]
    pub writable: Vec<Word>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SandboxPolicy {
    /// Everything can be read, nothing written.
    ReadOnly,
    /// The working directory, `/tmp` and `$TMPDIR` can be written too.
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

/// Names a process: the engine's number, the id it was given, or its address.
#[derive(Debug, Serialize, Deserialize)]
pub struct Which {
    pub process: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Attach {
    pub process: String,
    pub after: u64,
    /// Instead of `after`: begin so many bytes before the end, and somewhat earlier.
    pub tail_bytes: Option<u64>,
    /// Asks for its input, which one connection at a time has. It goes with the connection.
    pub write: Option<Write>,
    /// A process that ends with its client has this one as such.
    pub owns: bool,
}

/// How much somebody wants the input of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Write {
    IfFree,
    /// Whoever has it loses it, and is told.
    Steal,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attached {
    pub process: String,
    pub first_seq: u64,
    pub last_seq: u64,
    /// Where the next byte of input goes.
    pub stdin_accepted: u64,
    pub running: bool,
    /// Of its terminal; none where it has pipes.
    #[serde(default)]
    pub size: Option<TerminalSize>,
    #[serde(default)]
    pub terminal: bool,
    /// Whether this connection has the input now, and if it asked for it and has not: why.
    #[serde(default)]
    pub writer: bool,
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
    /// A name, with or without `SIG`.
    pub signal: String,
    /// Also its process group.
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

/// How the daemon is to be stopped.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Stop {
    /// How long processes have to end after SIGTERM; as configured without one.
    pub grace_ms: Option<u64>,
}

/// How each process ended that ran when the daemon was stopped.
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
    /// None when it could not be ended, or its exit not be recorded.
    pub exit: Option<ExitStatus>,
    /// Its tree was killed, because the grace time was over.
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
    /// Of an exit without code and signal: why it is not known.
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
    /// The name that tells it from processes with the same id.
    pub fn address(&self) -> String {
        address(&self.face, &self.scope, &self.id)
    }
}

/// `FACE/SCOPE/ID`, or `FACE/ID` where there is no scope.
pub fn address(face: &str, scope: &str, id: &str) -> String {
    match scope {
        "" => format!("{face}/{id}"),
        scope => format!("{face}/{scope}/{id}"),
    }
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
    /// It was stopped, and is there for its processes only.
    #[serde(default)]
    pub keeping: bool,
    /// The worker's command line.
    #[serde(default)]
    pub arguments: Vec<String>,
    #[serde(default)]
    pub worker: Option<Usage>,
    #[serde(default)]
    pub keeper: Option<Usage>,
    /// Output and indexes on disk.
    #[serde(default)]
    pub journal_bytes: u64,
    #[serde(default, flatten)]
    pub faces: Faces,
}

/// What one of our own processes takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    pub rss_bytes: u64,
    pub age_ms: u64,
}

/// How much waits for a human. What it is, only an approver is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    pub questions: usize,
    /// For how long the oldest has.
    pub oldest_ms: u64,
}

/// What is left of a daemon that was stopped.
#[derive(Debug, Serialize, Deserialize)]
pub struct Kept {
    /// How many processes it stays for; without any it ends.
    pub processes: usize,
}

/// What the faces have, where there are some.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Faces {
    pub listening: Vec<Listening>,
    /// None where there is nobody to ask.
    pub waiting: Option<Waiting>,
    pub sessions: usize,
    pub busy_sessions: usize,
    pub config_file: Option<String>,
    /// Where approvals live and what that protects against.
    pub approvals_mode: Option<String>,
    /// What cannot work now and is retried.
    pub problems: Vec<Problem>,
}

/// A part of the daemon that cannot work now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    pub component: String,
    /// What fails, and why.
    pub message: String,
    /// When it was first seen, in milliseconds since 1970.
    pub since_ms: u64,
}

/// Where a face is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listening {
    pub face: String,
    pub address: String,
    /// A command that shows that it works.
    pub hint: String,
}

/// One key of the configuration, as it is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// With its tables, `broker.ask_timeout_s`.
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

/// All of them, without secrets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    pub file: String,
    pub settings: Vec<Setting>,
}

/// What came of reading the configuration again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reloaded {
    pub file: String,
    /// Keys that have another value now, and such that will after a restart.
    pub changed: Vec<String>,
    pub needs_restart: Vec<String>,
}

/// How a relay face stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RelayState {
    Serving,
    /// It was told to stop and to keep its processes: they run on, and nobody is served.
    Keeping,
}

/// A new life for a relay face that keeps its processes.
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
    /// Of the new binary, absolute.
    pub path: String,
}
