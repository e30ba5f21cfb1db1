//! `outpost.toml`: what an operator settles for good. Everything has a default, and flags of `serve` go before it.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The whole file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    #[serde(default)]
    pub(crate) broker: Broker,
    #[serde(default)]
    pub(crate) approvals: Approvals,
    #[serde(default)]
    pub(crate) sessions: Sessions,
}

/// `[broker]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Approvals {
    pub(crate) rules: Option<PathBuf>,
    /// Users besides root who may decide.
    #[serde(default)]
    pub(crate) approvers: Vec<String>,
    /// Where those reach us.
    pub(crate) socket: Option<PathBuf>,
    /// A program that is told of each question.
    pub(crate) notify: Option<Vec<String>>,
}

/// `[sessions]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Sessions {
    /// Where it listens.
    pub(crate) listen: Option<SocketAddr>,
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AgentTable {
    pub(crate) program: Option<PathBuf>,
    /// Variables it gets, and such of the daemon's that it does not.
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) drop_env: Vec<String>,
}

impl Config {
    /// A file that is not there has nothing to say; one that cannot be understood is an error with its place in it.
    pub(crate) fn load(path: &Path) -> Result<Config, String> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Config::default()),
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// Where an operator's files are looked for.
fn dir() -> PathBuf {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    match (absolute("XDG_CONFIG_HOME"), std::env::home_dir()) {
        (Some(dir), _) => dir.join("outpost"),
        (None, Some(home)) => home.join(".config/outpost"),
        (None, None) => "/etc/outpost".into(),
    }
}

pub(crate) fn default_file() -> PathBuf {
    dir().join("outpost.toml")
}

/// Root's rules go before one's own: whoever has those cannot be overruled by who only has a home.
pub(crate) fn default_rules() -> PathBuf {
    let system = Path::new("/etc/outpost/rules.toml");
    if system.exists() { system.to_owned() } else { dir().join("rules.toml") }
}

pub(crate) fn seconds(first: Option<u64>, second: Option<u64>, default: Duration) -> Duration {
    first.or(second).map_or(default, Duration::from_secs)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The example with every key in force.
    pub(crate) fn example() -> Config {
        let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        let in_force = |line: &'static str| {
            let key = line.strip_prefix("# ");
            key.filter(|key| key.split_once(" = ").is_some_and(|(name, _)| is_name(name))).unwrap_or(line)
        };
        let text: Vec<&str> =
            include_str!("../../../docs/outpost.example.toml").lines().map(in_force).collect();
        toml::from_str(&text.join("\n")).unwrap()
    }

    #[test]
    fn the_example_has_every_key_and_is_understood() {
        let config = format!("{:?}", example());
        assert!(!config.contains("None") && !config.contains("[]"), "{config}");
    }

    #[test]
    fn a_mistake_is_told_with_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("outpost.toml");
        assert_eq!(Config::load(&file), Ok(Config::default()));
        std::fs::write(&file, "[broker]\nask_timeout_s = 5\n[approvals]\napprovers = [\"alice\"]\n").unwrap();
        let config = Config::load(&file).unwrap();
        assert_eq!((config.broker.ask_timeout_s, config.approvals.approvers.len()), (Some(5), 1));
        std::fs::write(&file, "[broker]\nask_timeout = 5\n").unwrap();
        let error = Config::load(&file).unwrap_err();
        assert!(
            error.contains("line 2, column 1") && error.contains("unknown field `ask_timeout`"),
            "{error}"
        );
    }
}
