//! The broker face in the worker: its flags, socket and settings.

use super::fd_roles;
use super::listeners::Listeners;
use super::live_config::seconds;
use super::socket::{self, into_tokio};
use crate::failure::Failure;
use outpost_approvals::Approvals;
use outpost_broker::{
    ASKPASS_SOCKET, Askpass, FreshnessWindow, PasswordSource, RateLimits, RequestLimits, Server, Settings,
};
use outpost_cli::config::Config;
use outpost_cli::paths::Paths;
use outpost_engine::{Engine, ResourceLimit};
use outpost_sys::spawn::{CPU_LIMIT, FILE_SIZE_LIMIT, MEMORY_LIMIT};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;

pub(crate) struct BrokerFace<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) paths: &'a Paths,
    pub(crate) config: &'a Config,
}

impl BrokerFace<'_> {
    /// Starts the face on the inherited socket or a new one. Its pending questions are restored when this returns.
    pub(crate) async fn start(
        &self,
        approvals: &Approvals,
        inherited: &mut HashMap<u8, OwnedFd>,
        listeners: &mut Listeners,
    ) -> Result<Arc<Server>, Failure> {
        let mut settings = settings(self.paths, self.config);
        let mut passwords = None;
        // The guard runs as root and needs no password. It does not trust its environment.
        let askpass_program = || self.config.broker.askpass.clone().or_else(own_askpass);
        if let Some(program) = (!self.paths.is_guard).then(askpass_program).flatten() {
            let (askpass, listener) = askpass(&self.paths.runtime, PasswordSource::Program(program))?;
            (settings.askpass, passwords) = (Some(askpass), Some(listener));
        }
        let path = self.paths.broker_socket();
        let (listener, is_new) = socket::acquire(self.engine, inherited, fd_roles::BROKER_SOCKET, || {
            socket::bind_face(self.paths, &path)
        })
        .await?;
        let server = Server::new(self.engine.clone(), approvals.clone(), settings);
        if let Some(listener) = passwords {
            tokio::spawn(server.serve_askpass(listener));
        }
        listeners.add(is_new, "broker", path.display(), "outpost ask -- id -u");
        server.resume().await;
        tokio::spawn(server.clone().serve(listener));
        inherited.remove(&fd_roles::BROKER_SOCKET);
        Ok(server)
    }
}

pub(crate) fn settings(paths: &Paths, config: &Config) -> Settings {
    let (broker, default) = (&config.broker, Settings::default());
    let rates = RateLimits::default();
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
        ask_timeout: seconds(broker.ask_timeout_s, default.ask_timeout),
        run_timeout: seconds(broker.run_timeout_s, default.run_timeout),
        freshness: FreshnessWindow {
            past: seconds(broker.clock_behind_s, default.freshness.past),
            future: seconds(broker.clock_ahead_s, default.freshness.future),
        },
        request_limits: RequestLimits {
            stages_max: broker.stages_max.unwrap_or(default.request_limits.stages_max),
            ..default.request_limits
        },
        rate_limits: RateLimits {
            per_minute: count(broker.requests_per_minute, rates.per_minute),
            pending_max: count(broker.pending_max, rates.pending_max),
            pause_max: wait(broker.pause_max_s, rates.pause_max),
            denied_for: wait(broker.denied_for_s, rates.denied_for),
        },
        resource_limits: limits.into_iter().flatten().collect(),
        ssh_agent: if paths.is_guard { None } else { own_agent() },
        kill_on_disconnect: broker.end_with_client.unwrap_or(false),
        serves_all_users: paths.is_guard,
        guard: (!paths.is_guard).then(|| paths.guard.clone()),
        ..default
    }
}

/// `SSH_AUTH_SOCK` of this process, if it is a socket of this user.
pub(crate) fn own_agent() -> Option<String> {
    let path = std::env::var("SSH_AUTH_SOCK").ok()?;
    let found = std::fs::metadata(&path).ok()?;
    (found.file_type().is_socket() && found.uid() == outpost_sys::process::effective_uid()).then_some(path)
}

/// `SUDO_ASKPASS`, which sudo would run itself.
fn own_askpass() -> Option<PathBuf> {
    std::env::var_os("SUDO_ASKPASS").map(PathBuf::from)
}

/// Binds the socket on which the askpass helper of sudo requests a password.
pub(crate) fn askpass(dir: &Path, source: PasswordSource) -> Result<(Askpass, UnixListener), Failure> {
    let socket = dir.join(ASKPASS_SOCKET);
    let listener = into_tokio(socket::bind(&socket)?)?;
    Ok((Askpass { source, socket }, listener))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_of_the_configuration_are_the_defaults_of_the_broker() {
        let defaults = Config::defaults(Path::new("/state"));
        let dirs = outpost_cli::paths::Dirs { state_dir: Some("/state".into()), ..Default::default() };
        let paths = dirs.resolve().unwrap();
        let [default, explicit] = [Config::default(), defaults].map(|config| {
            let Settings {
                ask_timeout,
                run_timeout,
                freshness,
                request_limits,
                rate_limits,
                kill_on_disconnect,
                ..
            } = settings(&paths, &config);
            (ask_timeout, run_timeout, freshness, request_limits, rate_limits, kill_on_disconnect)
        });
        assert_eq!(explicit, default);
    }
}
