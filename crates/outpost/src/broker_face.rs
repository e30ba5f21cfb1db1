//! The broker face in the worker: its socket, and what the operator has settled about it.

use crate::announced::Announced;
use crate::config::{self, Config};
use crate::failure::Failure;
use crate::paths::Paths;
use crate::roles;
use crate::socket::{self, listening};
use clap::Args;
use outpost_approvals::Approvals;
use outpost_broker::{ASKPASS_SOCKET, AskPassword, Askpass, Rates, Server, Settings, Shape, Window};
use outpost_engine::{Engine, ResourceLimit};
use outpost_sys::spawn::{CPU_LIMIT, FILE_SIZE_LIMIT, MEMORY_LIMIT};
use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;

/// Flags of `serve` about the broker, which the worker gets again.
#[derive(Args, Clone, Debug, Default)]
#[group(skip)]
pub(crate) struct Flags {
    /// How long a question waits for a human, in seconds [default: 60]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) ask_timeout: Option<u64>,
    /// How long an approved command may run, in seconds [default: 300]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) run_timeout: Option<u64>,
    /// The operator's rules; where /etc/outpost exists, only rules there can allow [default: rules.toml beside the configuration]
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: Option<PathBuf>,
}

impl Flags {
    /// As the worker is told them.
    pub(crate) fn arguments(&self) -> Vec<CString> {
        let path = |path: &PathBuf| path.display().to_string();
        let number = |number: u64| number.to_string();
        let flags = [
            ("--ask-timeout", self.ask_timeout.map(number)),
            ("--run-timeout", self.run_timeout.map(number)),
            ("--rules", self.rules.as_ref().map(path)),
        ];
        let given = flags.into_iter().filter_map(|(flag, value)| Some(format!("{flag}={}", value?)));
        given.filter_map(|flag| CString::new(flag).ok()).collect()
    }
}

pub(crate) struct BrokerFace<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) paths: &'a Paths,
    pub(crate) config: &'a Config,
}

impl BrokerFace<'_> {
    /// Begins with the socket that the keeper holds, or makes it. Its questions wait again when this returns.
    pub(crate) async fn begin(
        &self,
        approvals: &Approvals,
        own: &mut HashMap<u8, OwnedFd>,
        announced: &mut Announced,
    ) -> Result<Arc<Server>, Failure> {
        let mut settings = settings(self.paths, self.config);
        let mut passwords = None;
        // The guard needs no password, and takes nothing from its environment.
        let askpass_program = || self.config.broker.askpass.clone().or_else(own_askpass);
        if let Some(program) = (!self.paths.is_guard).then(askpass_program).flatten() {
            let (askpass, listener) = askpass(&self.paths.runtime, AskPassword::Program(program))?;
            (settings.askpass, passwords) = (Some(askpass), Some(listener));
        }
        let path = self.paths.broker_socket();
        let (listener, is_new) =
            socket::held(self.engine, own, roles::BROKER_SOCKET, || socket::bind_face(self.paths, &path))
                .await?;
        let listener = listening(listener)?;
        let server = Server::new(self.engine.clone(), approvals.clone(), settings);
        if let Some(listener) = passwords {
            tokio::spawn(server.serve_askpass(listener));
        }
        announced.add(is_new, "broker", path.display(), "outpost ask -- id -u");
        server.resume().await;
        tokio::spawn(server.clone().serve(listener));
        own.remove(&roles::BROKER_SOCKET);
        Ok(server)
    }
}

pub(crate) fn settings(paths: &Paths, config: &Config) -> Settings {
    let (broker, default) = (&config.broker, Settings::default());
    let rates = Rates::default();
    let count = |given: Option<usize>, default: Option<usize>| {
        given.map_or(default, |given| Some(given).filter(|given| *given > 0))
    };
    let wait = |given: Option<u64>, default: Option<Duration>| {
        given.map_or(default, |given| Some(Duration::from_secs(given)).filter(|given| !given.is_zero()))
    };
    let limit =
        |resource, most: Option<u64>| most.map(|most| ResourceLimit { resource, soft: most, hard: most });
    let limits = [
        limit(CPU_LIMIT, broker.cpu_seconds_max),
        limit(MEMORY_LIMIT, broker.memory_bytes_max),
        limit(FILE_SIZE_LIMIT, broker.file_bytes_max),
    ];
    Settings {
        ask_patience: config::seconds(broker.ask_timeout_s, default.ask_patience),
        run_patience: config::seconds(broker.run_timeout_s, default.run_patience),
        window: Window {
            past: config::seconds(broker.clock_behind_s, default.window.past),
            future: config::seconds(broker.clock_ahead_s, default.window.future),
        },
        shape: Shape { stages_max: broker.stages_max.unwrap_or(default.shape.stages_max), ..default.shape },
        rates: Rates {
            per_minute: count(broker.requests_per_minute, rates.per_minute),
            pending: count(broker.pending_max, rates.pending),
            pause_max: wait(broker.pause_max_s, rates.pause_max),
            denied_for: wait(broker.denied_for_s, rates.denied_for),
        },
        limits: limits.into_iter().flatten().collect(),
        agent: if paths.is_guard { None } else { own_agent() },
        ends_with_client: broker.end_with_client.unwrap_or(false),
        any_user: paths.is_guard,
        guard: (!paths.is_guard).then(|| paths.guard.clone()),
        ..default
    }
}

/// The SSH agent of this process, if it is a socket of this user's.
pub(crate) fn own_agent() -> Option<String> {
    let path = std::env::var("SSH_AUTH_SOCK").ok()?;
    let of = std::fs::metadata(&path).ok()?;
    (of.file_type().is_socket() && of.uid() == outpost_sys::limits::effective_uid()).then_some(path)
}

/// The one that sudo itself would run here.
fn own_askpass() -> Option<PathBuf> {
    std::env::var_os("SUDO_ASKPASS").map(PathBuf::from)
}

/// The socket on which sudo's helper asks for a password.
pub(crate) fn askpass(dir: &Path, who: AskPassword) -> Result<(Askpass, UnixListener), Failure> {
    let socket = dir.join(ASKPASS_SOCKET);
    let listener = listening(crate::socket::bind(&socket)?)?;
    Ok((Askpass { who, socket }, listener))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_in_the_example_are_the_defaults() {
        let defaults = Config::defaults(Path::new("/state"));
        let dirs = crate::paths::Dirs { state_dir: Some("/state".into()), ..Default::default() };
        let paths = dirs.resolve().unwrap();
        let [example, default, settled] =
            [config::tests::example(), Config::default(), defaults].map(|config| {
                let Settings { ask_patience, run_patience, window, shape, rates, ends_with_client, .. } =
                    settings(&paths, &config);
                (ask_patience, run_patience, window, shape, rates, ends_with_client)
            });
        assert_eq!(example, default);
        assert_eq!(settled, default);
    }
}
