//! `outpost.toml`: what an operator settles for good. Everything has a default, and flags of `serve` go before it.

mod effective;
mod file;

pub(crate) use effective::{Effective, needs_restart};
pub(crate) use file::read;

use crate::listen::Listen;
use crate::log::Format;
use outpost_approvals::rules::Sources;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The whole file. A key that is not there is none; which keys there are is what this says as JSON.
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

/// `[processes]`: of every face but a relay, which has flags of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Processes {
    /// What is kept on disk of one process's output, and of all; beyond, the oldest is dropped.
    pub(crate) output_bytes_max: Option<u64>,
    pub(crate) journal_bytes_max: Option<u64>,
    /// Input that may wait for one process.
    pub(crate) input_bytes_max: Option<u64>,
    /// Processes at once.
    pub(crate) running_max: Option<usize>,
    /// For how long an ended process can still be read, and how many of them.
    pub(crate) ended_kept_s: Option<u64>,
    pub(crate) ended_max: Option<usize>,
    /// How long after it was recorded output is synced to the disk; 0 leaves it to the kernel.
    pub(crate) sync_s: Option<u64>,
    /// How long processes have to end after SIGTERM when the daemon stops.
    pub(crate) stop_grace_s: Option<u64>,
}

/// `[exec]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Exec {
    /// Where it listens for websockets besides its socket.
    pub(crate) websocket: Option<Listen>,
}

/// `[broker]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Broker {
    /// How long a question waits for an answer.
    pub(crate) ask_timeout_s: Option<u64>,
    /// How long a command may run.
    pub(crate) run_timeout_s: Option<u64>,
    /// Requests of one client within a minute; 0 is no limit.
    pub(crate) requests_per_minute: Option<usize>,
    /// Questions of one client that may wait; 0 is no limit.
    pub(crate) pending_max: Option<usize>,
    /// The longest pause after three denials in a row, and how long what was denied is not asked about again; 0 is none.
    pub(crate) pause_max_s: Option<u64>,
    pub(crate) denied_for_s: Option<u64>,
    pub(crate) stages_max: Option<usize>,
    /// How far a request's clock may be behind and ahead of ours.
    pub(crate) clock_behind_s: Option<u64>,
    pub(crate) clock_ahead_s: Option<u64>,
    /// A program that asks for the password that sudo may want.
    pub(crate) askpass: Option<PathBuf>,
    /// Whether a command ends when its client leaves.
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
    /// Users besides root who may decide.
    pub(crate) approvers: Option<Vec<String>>,
    /// Where those reach us.
    pub(crate) socket: Option<PathBuf>,
    /// A program that is told of each question.
    pub(crate) notify: Option<Vec<String>>,
}

/// `[sessions]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Sessions {
    /// Where it listens.
    pub(crate) listen: Option<Listen>,
    /// For those who come from elsewhere; without them one of our own is made.
    pub(crate) tls_cert: Option<PathBuf>,
    pub(crate) tls_key: Option<PathBuf>,
    /// How long a turn may take, and how long its agent may be silent; 0 is no limit.
    pub(crate) turn_timeout_s: Option<u64>,
    pub(crate) silence_timeout_s: Option<u64>,
    /// How long an agent's question waits for an answer.
    pub(crate) ask_timeout_s: Option<u64>,
    /// How long a process of claude waits for the next message; 0 is a process per turn.
    pub(crate) claude_keep_s: Option<u64>,
    pub(crate) sessions_max: Option<usize>,
    /// What new sessions' projects get, where they have none of their own.
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
    /// Variables it gets, and such of the daemon's that it does not.
    pub(crate) env: Option<BTreeMap<String, String>>,
    pub(crate) drop_env: Option<Vec<String>>,
}

/// `[log]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Log {
    /// As `OUTPOST_LOG` has it, which goes before it.
    pub(crate) level: Option<String>,
    pub(crate) format: Option<Format>,
    /// What the log of a daemon in the background may have before it is begun anew; the one before is kept.
    pub(crate) file_bytes_max: Option<u64>,
}

/// `[metrics]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Metrics {
    /// Where they can be read; nowhere without it.
    pub(crate) listen: Option<Listen>,
}

impl Config {
    /// What holds where nobody says anything, as far as that can be said in the file.
    pub(crate) fn defaults(state: &Path) -> Config {
        let processes = outpost_engine::Config::new(state);
        let broker = outpost_broker::Settings::default();
        let rates = outpost_broker::Rates::default();
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
                stop_grace_s: seconds(crate::stopping::GRACE),
            },
            broker: Broker {
                ask_timeout_s: seconds(broker.ask_patience),
                run_timeout_s: seconds(broker.run_patience),
                requests_per_minute: rates.per_minute,
                pending_max: rates.pending,
                pause_max_s: rates.pause_max.and_then(seconds),
                denied_for_s: rates.denied_for.and_then(seconds),
                stages_max: Some(broker.shape.stages_max),
                clock_behind_s: seconds(broker.window.past),
                clock_ahead_s: seconds(broker.window.future),
                end_with_client: Some(broker.ends_with_client),
                ..Broker::default()
            },
            approvals: Approvals { rules: Some(default_rules()), ..Approvals::default() },
            sessions: Sessions {
                listen: Some(Listen::At(crate::sessions_face::DEFAULT_ADDRESS)),
                turn_timeout_s: Some(0),
                silence_timeout_s: Some(0),
                ask_timeout_s: seconds(sessions.ask_patience),
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

    /// What a daemon cannot begin with, beyond what each value is for itself.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let loopback = |key: &str, listen: Option<Listen>, why: &str| {
            let address = listen.and_then(Listen::address).filter(|address| !address.ip().is_loopback())?;
            Some(format!("{key} = \"{address}\" is not a loopback address; {why}"))
        };
        if self.approvals.approvers.as_ref().is_some_and(|names| !names.is_empty())
            && self.approvals.socket.is_none()
        {
            return Some(
                "[approvals] names approvers, and they cannot reach the socket in our private directory: \
                        say with `socket` where they can"
                    .into(),
            );
        }
        if self.sessions.tls_cert.is_some() != self.sessions.tls_key.is_some() {
            return Some("tls_cert and tls_key go together: give both or none".into());
        }
        if let Some(level) = &self.log.level
            && level.parse::<tracing_subscriber::EnvFilter>().is_err()
        {
            return Some("[log] level: give error, warn, info, debug or trace, or a filter of such".into());
        }
        loopback("[exec] websocket", self.exec.websocket, "reach it from elsewhere over ssh")
            .or_else(|| loopback("[metrics] listen", self.metrics.listen, "it is not encrypted"))
    }

    /// Puts what is settled about processes into an engine's own words.
    pub(crate) fn limit_engine(&self, engine: &mut outpost_engine::Config) {
        let settled = &self.processes;
        let put = |to: &mut u64, from: Option<u64>| *to = from.unwrap_or(*to);
        put(&mut engine.process_bytes_max, settled.output_bytes_max);
        put(&mut engine.host_bytes_max, settled.journal_bytes_max);
        put(&mut engine.stdin_waiting_max, settled.input_bytes_max);
        engine.processes_max = settled.running_max.unwrap_or(engine.processes_max);
        engine.exited_max = settled.ended_max.unwrap_or(engine.exited_max);
        engine.exited_kept = seconds(settled.ended_kept_s, engine.exited_kept);
        engine.sync_interval = seconds(settled.sync_s, engine.sync_interval);
    }
}

/// Where an operator's files are looked for.
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

/// Root's directory for policy. Where it exists, rules that allow count only there.
const SYSTEM_DIR: &str = "/etc/outpost";

/// Where rules come from, given the file that a flag or the configuration names.
pub(crate) fn rules(named: Option<PathBuf>) -> Sources {
    Sources::new(named.unwrap_or_else(default_rules), Path::new(SYSTEM_DIR))
}

/// For root those of the system, if there are any, and else those of its home.
fn default_rules() -> PathBuf {
    let system = Path::new(SYSTEM_DIR).join("rules.toml");
    let is_root = outpost_sys::limits::effective_uid() == 0;
    if is_root && system.exists() { system } else { dir().join("rules.toml") }
}

pub(crate) fn seconds(given: Option<u64>, default: Duration) -> Duration {
    given.map_or(default, Duration::from_secs)
}

#[cfg(test)]
pub(crate) mod tests;
