//! The schema of `outpost.toml`. Every key has a default, and flags of `serve` override the file.

mod effective;
mod file;

pub(crate) use effective::{Effective, needs_restart};
pub(crate) use file::read;

use crate::listen::ListenAddress;
use crate::log::Format;
use outpost_approvals::rules::RuleFiles;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The whole file. A missing key is `None`. The JSON form of the default value lists every known key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Config {
    pub(crate) processes: Processes,
    pub(crate) exec: Exec,
    pub(crate) broker: Broker,
    pub(crate) approvals: Approvals,
    pub(crate) sessions: Sessions,
    pub(crate) log: Log,
    pub(crate) metrics: Metrics,
}

/// `[processes]`: applies to every face except a relay, which has flags of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Processes {
    /// Bytes of output kept on disk per process and for all processes. Beyond that the oldest output is dropped.
    pub(crate) output_bytes_max: Option<u64>,
    pub(crate) journal_bytes_max: Option<u64>,
    /// Bytes of input that may be queued for one process.
    pub(crate) input_bytes_max: Option<u64>,
    /// Processes that may run at the same time.
    pub(crate) running_max: Option<usize>,
    /// How long the record of an exited process is kept, and how many such records.
    pub(crate) ended_kept_s: Option<u64>,
    pub(crate) ended_max: Option<usize>,
    /// Delay between recording output and fsync. 0 leaves write-back to the kernel.
    pub(crate) sync_s: Option<u64>,
    /// Time between SIGTERM and SIGKILL when the daemon stops.
    pub(crate) stop_grace_s: Option<u64>,
}

/// `[exec]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Exec {
    /// The TCP address for websockets, in addition to the Unix socket.
    pub(crate) websocket: Option<ListenAddress>,
}

/// `[broker]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Broker {
    /// How long a question waits for an answer.
    pub(crate) ask_timeout_s: Option<u64>,
    /// How long a command may run.
    pub(crate) run_timeout_s: Option<u64>,
    /// Requests that one client may make per minute; 0 is no limit.
    pub(crate) requests_per_minute: Option<usize>,
    /// Questions of one client that may be pending; 0 is no limit.
    pub(crate) pending_max: Option<usize>,
    /// The longest pause after three denials in a row; 0 is no pause.
    pub(crate) pause_max_s: Option<u64>,
    /// How long the broker denies a repeated request without asking again; 0 is never.
    pub(crate) denied_for_s: Option<u64>,
    pub(crate) stages_max: Option<usize>,
    /// How far a request's timestamp may be behind or ahead of the daemon's clock.
    pub(crate) clock_behind_s: Option<u64>,
    pub(crate) clock_ahead_s: Option<u64>,
    /// The program that prompts the user for sudo's password.
    pub(crate) askpass: Option<PathBuf>,
    /// Whether the broker kills a command when its client disconnects.
    pub(crate) end_with_client: Option<bool>,
    pub(crate) cpu_seconds_max: Option<u64>,
    pub(crate) memory_bytes_max: Option<u64>,
    pub(crate) file_bytes_max: Option<u64>,
}

/// `[approvals]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Approvals {
    pub(crate) rules: Option<PathBuf>,
    /// Approvers besides root.
    pub(crate) approvers: Option<Vec<String>>,
    /// The socket for these users. The runtime directory is not accessible to them.
    pub(crate) socket: Option<PathBuf>,
    /// A program that the daemon runs for each new question.
    pub(crate) notify: Option<Vec<String>>,
}

/// `[sessions]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Sessions {
    pub(crate) listen: Option<ListenAddress>,
    /// Certificate and key for remote clients. Without them the daemon generates its own.
    pub(crate) tls_cert: Option<PathBuf>,
    pub(crate) tls_key: Option<PathBuf>,
    /// How long a turn may run, and how long its agent may write no output; 0 is no limit.
    pub(crate) turn_timeout_s: Option<u64>,
    pub(crate) silence_timeout_s: Option<u64>,
    /// How long an agent's question waits for an answer.
    pub(crate) ask_timeout_s: Option<u64>,
    /// How long a claude process stays for the next message; 0 starts one process per turn.
    pub(crate) claude_keep_s: Option<u64>,
    pub(crate) sessions_max: Option<usize>,
    /// Skills that are copied into projects of new sessions that have none.
    pub(crate) skills: Option<PathBuf>,
    pub(crate) claude: AgentTable,
    pub(crate) codex: AgentTable,
    pub(crate) gemini: AgentTable,
    pub(crate) opencode: AgentTable,
}

/// `[sessions.claude]` and the like
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct AgentTable {
    pub(crate) program: Option<PathBuf>,
    /// Environment variables to set, and variables of the daemon to remove.
    pub(crate) env: Option<BTreeMap<String, String>>,
    pub(crate) drop_env: Option<Vec<String>>,
}

/// `[log]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Log {
    /// A filter in the syntax of `OUTPOST_LOG`, which overrides it.
    pub(crate) level: Option<String>,
    pub(crate) format: Option<Format>,
    /// Size at which the log of `serve --detach` rotates. One old log file is kept.
    pub(crate) file_bytes_max: Option<u64>,
}

/// `[metrics]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Metrics {
    pub(crate) listen: Option<ListenAddress>,
}

impl Config {
    /// The defaults of all keys whose value can be written in the file.
    pub(crate) fn defaults(state: &Path) -> Config {
        let processes = outpost_engine::Config::new(state);
        let broker = outpost_broker::Settings::default();
        let rates = outpost_broker::RateLimits::default();
        let sessions = outpost_sessions::Settings::new(state);
        let seconds = |time: Duration| Some(time.as_secs());
        Config {
            processes: Processes {
                output_bytes_max: Some(processes.process_bytes_max),
                journal_bytes_max: Some(processes.host_bytes_max),
                input_bytes_max: Some(processes.stdin_waiting_max),
                running_max: Some(processes.processes_max),
                ended_kept_s: seconds(processes.exited_kept),
                ended_max: Some(processes.exited_max),
                sync_s: seconds(processes.sync_interval),
                stop_grace_s: seconds(crate::daemon::shutdown::GRACE),
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
                listen: Some(ListenAddress::At(crate::daemon::sessions_face::DEFAULT_ADDRESS)),
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

    /// Copies the `[processes]` table into the engine's configuration.
    pub(crate) fn limit_engine(&self, engine: &mut outpost_engine::Config) {
        let processes = &self.processes;
        let set = |to: &mut u64, from: Option<u64>| *to = from.unwrap_or(*to);
        set(&mut engine.process_bytes_max, processes.output_bytes_max);
        set(&mut engine.host_bytes_max, processes.journal_bytes_max);
        set(&mut engine.stdin_waiting_max, processes.input_bytes_max);
        engine.processes_max = processes.running_max.unwrap_or(engine.processes_max);
        engine.exited_max = processes.ended_max.unwrap_or(engine.exited_max);
        engine.exited_kept = seconds(processes.ended_kept_s, engine.exited_kept);
        engine.sync_interval = seconds(processes.sync_s, engine.sync_interval);
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

/// The rule files: the given one, or the default, and those of [`SYSTEM_DIR`].
pub(crate) fn rules(file: Option<PathBuf>) -> RuleFiles {
    RuleFiles::new(file.unwrap_or_else(default_rules), Path::new(SYSTEM_DIR))
}

/// For root the system's rules if they exist, else those in the home directory.
fn default_rules() -> PathBuf {
    let system = Path::new(SYSTEM_DIR).join("rules.toml");
    let is_root = outpost_sys::process::effective_uid() == 0;
    if is_root && system.exists() { system } else { dir().join("rules.toml") }
}

pub(crate) fn seconds(given: Option<u64>, default: Duration) -> Duration {
    given.map_or(default, Duration::from_secs)
}

#[cfg(test)]
pub(crate) mod tests;
