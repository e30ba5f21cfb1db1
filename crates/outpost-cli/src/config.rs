//! The schema of `outpost.toml`. Every key has a default, and flags of `serve` override the file.

mod approvals;
mod effective;
mod file;

pub use effective::{Effective, needs_restart};
pub(crate) use file::read;

use crate::listen::ListenAddress;
use crate::log::Format;
use outpost_approvals::rules::RuleFiles;
use outpost_sessions::{AgentSettings, Cli};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time between SIGTERM and SIGKILL when the daemon stops, unless the configuration or the client sets another.
pub const STOP_GRACE: Duration = Duration::from_secs(10);

/// The default address of the sessions face, as of the daemon that it replaces.
pub const SESSIONS_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9100);

/// The whole file. A missing key is `None`. The JSON form of the default value lists every known key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    pub processes: Processes,
    pub exec: Exec,
    pub broker: Broker,
    pub approvals: Approvals,
    pub sessions: Sessions,
    pub log: Log,
    pub metrics: Metrics,
}

/// `[processes]`: applies to every face except a relay, which has flags of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Processes {
    /// Bytes of output kept on disk per process and for all processes. Beyond that the oldest output is dropped.
    pub output_bytes_max: Option<u64>,
    pub journal_bytes_max: Option<u64>,
    /// Bytes of input that may be queued for one process.
    pub input_bytes_max: Option<u64>,
    /// Processes that may run at the same time.
    pub running_max: Option<usize>,
    /// How long the record of an exited process is kept, and how many such records.
    pub ended_kept_s: Option<u64>,
    pub ended_max: Option<usize>,
    /// Delay between recording output and fsync. 0 leaves write-back to the kernel.
    pub sync_s: Option<u64>,
    /// Time between SIGTERM and SIGKILL when the daemon stops.
    pub stop_grace_s: Option<u64>,
}

/// `[exec]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Exec {
    /// The TCP address for websockets, in addition to the Unix socket.
    pub websocket: Option<ListenAddress>,
}

/// `[broker]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Broker {
    /// How long a question waits for an answer.
    pub ask_timeout_s: Option<u64>,
    /// How long a command may run.
    pub run_timeout_s: Option<u64>,
    /// Requests that one client may make per minute; 0 is no limit.
    pub requests_per_minute: Option<usize>,
    /// Questions of one client that may be pending; 0 is no limit.
    pub pending_max: Option<usize>,
    /// The longest pause after three denials in a row; 0 is no pause.
    pub pause_max_s: Option<u64>,
    /// How long the broker denies a repeated request without asking again; 0 is never.
    pub denied_for_s: Option<u64>,
    pub stages_max: Option<usize>,
    /// How far a request's timestamp may be behind or ahead of the daemon's clock.
    pub clock_behind_s: Option<u64>,
    pub clock_ahead_s: Option<u64>,
    /// The program that prompts the user for sudo's password.
    pub askpass: Option<PathBuf>,
    /// Whether the broker kills a command when its client disconnects.
    pub end_with_client: Option<bool>,
    pub cpu_seconds_max: Option<u64>,
    pub memory_bytes_max: Option<u64>,
    pub file_bytes_max: Option<u64>,
}

/// `[approvals]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Approvals {
    pub rules: Option<PathBuf>,
    /// Approvers besides root.
    pub approvers: Option<Vec<String>>,
    /// The socket for these users. The runtime directory is not accessible to them.
    pub socket: Option<PathBuf>,
    /// A program that the daemon runs for each new question.
    pub notify: Option<Vec<String>>,
}

/// `[sessions]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sessions {
    pub listen: Option<ListenAddress>,
    /// Certificate and key for remote clients. Without them the daemon generates its own.
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    /// How long a turn may run, and how long its agent may write no output; 0 is no limit.
    pub turn_timeout_s: Option<u64>,
    pub silence_timeout_s: Option<u64>,
    /// How long an agent's question waits for an answer.
    pub ask_timeout_s: Option<u64>,
    /// How long a claude process stays for the next message; 0 starts one process per turn.
    pub claude_keep_s: Option<u64>,
    pub sessions_max: Option<usize>,
    /// Skills that are copied into projects of new sessions that have none.
    pub skills: Option<PathBuf>,
    pub claude: AgentTable,
    pub codex: AgentTable,
    pub gemini: AgentTable,
    pub opencode: AgentTable,
}

impl Sessions {
    /// The agent tables as settings of the sessions crate.
    pub fn agents(&self) -> HashMap<Cli, AgentSettings> {
        let agents = [
            (Cli::Claude, &self.claude),
            (Cli::Codex, &self.codex),
            (Cli::Gemini, &self.gemini),
            (Cli::Opencode, &self.opencode),
        ];
        agents.into_iter().map(|(cli, table)| (cli, table.settings())).collect()
    }
}

/// `[sessions.claude]` and the like
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentTable {
    pub program: Option<PathBuf>,
    /// Environment variables to set, and variables of the daemon to remove.
    pub env: Option<BTreeMap<String, String>>,
    pub drop_env: Option<Vec<String>>,
}

impl AgentTable {
    fn settings(&self) -> AgentSettings {
        AgentSettings {
            program: self.program.clone(),
            env: self.env.clone().unwrap_or_default().into_iter().collect(),
            drop_env: self.drop_env.clone().unwrap_or_default(),
        }
    }
}

/// `[log]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Log {
    /// A filter in the syntax of `OUTPOST_LOG`, which overrides it.
    pub level: Option<String>,
    pub format: Option<Format>,
    /// Size at which the log of `serve --detach` rotates. One old log file is kept.
    pub file_bytes_max: Option<u64>,
}

/// `[metrics]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Metrics {
    pub listen: Option<ListenAddress>,
}

impl Config {
    /// The defaults of all keys whose value can be written in the file. Those of `[processes]` are also the engine's own,
    /// which a test of the daemon checks.
    pub fn defaults(state: &Path) -> Config {
        let broker = outpost_broker::Settings::default();
        let rates = outpost_broker::RateLimits::default();
        let sessions = outpost_sessions::Settings::new(state);
        let seconds = |time: Duration| Some(time.as_secs());
        Config {
            processes: Processes {
                output_bytes_max: Some(256 * 1024 * 1024),
                journal_bytes_max: Some(8 * 1024 * 1024 * 1024),
                input_bytes_max: Some(8 * 1024 * 1024),
                running_max: Some(8192),
                ended_kept_s: Some(24 * 3600),
                ended_max: Some(4096),
                sync_s: Some(5),
                stop_grace_s: seconds(STOP_GRACE),
            },
            broker: Broker {
                ask_timeout_s: seconds(broker.ask_timeout),
                run_timeout_s: seconds(broker.run_timeout),
                requests_per_minute: rates.per_minute,
                pending_max: rates.pending_max,
                pause_max_s: rates.pause_max.and_then(seconds),
                denied_for_s: rates.denied_for.and_then(seconds),
                stages_max: Some(broker.request_limits.stages_max),
                clock_behind_s: seconds(broker.freshness.past),
                clock_ahead_s: seconds(broker.freshness.future),
                end_with_client: Some(broker.kill_on_disconnect),
                ..Broker::default()
            },
            approvals: Approvals { rules: Some(default_rules()), ..Approvals::default() },
            sessions: Sessions {
                listen: Some(ListenAddress::At(SESSIONS_ADDRESS)),
                turn_timeout_s: Some(0),
                silence_timeout_s: Some(0),
                ask_timeout_s: seconds(sessions.ask_timeout),
                sessions_max: Some(sessions.sessions_max),
                skills: Some(sessions.skills),
                ..Sessions::default()
            },
            log: Log {
                level: Some("info".into()),
                format: Some(Format::Text),
                file_bytes_max: Some(16 * 1024 * 1024),
            },
            ..Config::default()
        }
    }

    /// The first error that concerns several keys, or that the type of a value does not exclude.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let loopback = |key: &str, listen: Option<ListenAddress>, why: &str| {
            let address =
                listen.and_then(ListenAddress::address).filter(|address| !address.ip().is_loopback())?;
            Some(format!("{key} = \"{address}\" is not a loopback address; {why}"))
        };
        if self.approvals.approvers.as_ref().is_some_and(|names| !names.is_empty())
            && self.approvals.socket.is_none()
        {
            return Some(
                "[approvals] lists approvers, but they cannot access the socket in the private runtime directory\n\
                 hint: set `socket` to a path that they can access"
                    .into(),
            );
        }
        if self.sessions.tls_cert.is_some() != self.sessions.tls_key.is_some() {
            return Some("tls_cert and tls_key go together: set both or neither".into());
        }
        if let Some(level) = &self.log.level
            && level.parse::<tracing_subscriber::EnvFilter>().is_err()
        {
            return Some(
                "[log] level: expected error, warn, info, debug, trace, or a filter of these".into(),
            );
        }
        loopback("[exec] websocket", self.exec.websocket, "reach it from elsewhere over ssh")
            .or_else(|| loopback("[metrics] listen", self.metrics.listen, "it is not encrypted"))
    }
}

/// The user's configuration directory.
fn dir() -> PathBuf {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    match (absolute("XDG_CONFIG_HOME"), outpost_sys::user::home()) {
        (Some(dir), _) => dir.join("outpost"),
        (None, Some(home)) => home.join(".config/outpost"),
        (None, None) => SYSTEM_DIR.into(),
    }
}

pub(crate) fn default_file() -> PathBuf {
    dir().join("outpost.toml")
}

/// Root's policy directory. If it exists, only rules in it can allow a command.
const SYSTEM_DIR: &str = "/etc/outpost";

/// The rule files: the given one, or the default, and those of `/etc/outpost`.
pub fn rules(file: Option<PathBuf>) -> RuleFiles {
    RuleFiles::new(file.unwrap_or_else(default_rules), Path::new(SYSTEM_DIR))
}

/// For root the system's rules if they exist, else those in the home directory.
fn default_rules() -> PathBuf {
    let system = Path::new(SYSTEM_DIR).join("rules.toml");
    let is_root = outpost_sys::process::effective_uid() == 0;
    if is_root && system.exists() { system } else { dir().join("rules.toml") }
}

#[cfg(test)]
mod tests;
