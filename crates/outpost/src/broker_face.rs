//! The broker face in the worker: its socket, the approver socket, and what the operator has settled about both.

use crate::config::{self, Config};
use crate::paths::Paths;
use crate::roles;
use clap::Args;
use outpost_approvals::{Approvals, Settings as Desk};
use outpost_broker::{
    ASKPASS_NAME, ASKPASS_SOCKET, AskPassword, Askpass, Rates, Server, Settings, Shape, Window,
};
use outpost_engine::{Engine, ResourceLimit};
use outpost_sys::spawn::{CPU_LIMIT, FILE_SIZE_LIMIT, MEMORY_LIMIT};
use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixListener;

/// The longest path that a socket can be bound by as it is.
const SOCKET_BYTES_MAX: usize = 107;

/// Flags of `serve` about the broker, which the worker gets again.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Flags {
    /// The configuration file [default: $XDG_CONFIG_HOME/outpost/outpost.toml]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// How long a question waits for a human, in seconds [default: 60]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) ask_timeout: Option<u64>,
    /// How long an approved command may run, in seconds [default: 300]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) run_timeout: Option<u64>,
    /// The operator's rules [default: /etc/outpost/rules.toml, or rules.toml beside the configuration]
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: Option<PathBuf>,
}

impl Flags {
    /// As the worker is told them.
    pub(crate) fn arguments(&self) -> Vec<CString> {
        let path = |path: &PathBuf| path.display().to_string();
        let number = |number: u64| number.to_string();
        let flags = [
            ("--config", self.config.as_ref().map(path)),
            ("--ask-timeout", self.ask_timeout.map(number)),
            ("--run-timeout", self.run_timeout.map(number)),
            ("--rules", self.rules.as_ref().map(path)),
        ];
        let given = flags.into_iter().filter_map(|(flag, value)| Some(format!("{flag}={}", value?)));
        given.filter_map(|flag| CString::new(flag).ok()).collect()
    }

    /// With paths that mean the same to a process that begins elsewhere.
    pub(crate) fn absolute(mut self) -> Flags {
        for path in [&mut self.config, &mut self.rules].into_iter().flatten() {
            if let Ok(absolute) = std::path::absolute(&*path) {
                *path = absolute;
            }
        }
        self
    }

    pub(crate) fn load(&self) -> Result<Config, String> {
        Config::load(&self.config.clone().unwrap_or_else(config::default_file))
    }
}

/// What the worker does about a broker that has begun.
pub(crate) struct Begun {
    /// Of sockets that were made.
    pub(crate) announced: Vec<String>,
    /// The socket outside our directories, to be removed at the end.
    pub(crate) shared: Option<PathBuf>,
    /// The queue and the books, which other faces share.
    pub(crate) approvals: Approvals,
}

pub(crate) struct BrokerFace<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) paths: &'a Paths,
    pub(crate) flags: &'a Flags,
}

impl BrokerFace<'_> {
    /// Begins with the sockets that the keeper holds, or makes them.
    pub(crate) async fn begin(&self, own: &mut HashMap<u8, OwnedFd>) -> Result<Begun, String> {
        let config = self.flags.load()?;
        let desk = Desk {
            dir: self.paths.approvals(),
            rules: self
                .flags
                .rules
                .clone()
                .or(config.approvals.rules.clone())
                .unwrap_or_else(config::default_rules),
            approvers: approvers(&config.approvals.approvers)?,
            hook: config.approvals.notify.clone(),
        };
        if !desk.approvers.is_empty() && config.approvals.socket.is_none() {
            return Err(
                "[approvals] names approvers, and they cannot reach the socket in our private directory: \
                        say with `socket` where they can"
                    .into(),
            );
        }
        let approvals = Approvals::open(desk, &[outpost_broker::SCHEMA, outpost_sessions::SCHEMA]);
        let approvals = approvals.map_err(|error| error.to_string())?;
        let mut settings = settings(self.flags, &config);
        let mut passwords = None;
        if let Some(program) = config.broker.askpass.clone().or_else(own_askpass) {
            let (askpass, listener) = askpass(&self.paths.runtime, AskPassword::Program(program))?;
            (settings.askpass, passwords) = (Some(askpass), Some(listener));
        }
        let server = Server::new(self.engine.clone(), approvals.clone(), settings);
        if let Some(listener) = passwords {
            tokio::spawn(server.serve_askpass(listener));
        }
        let mut announced = Vec::new();
        let (path, try_it) = (self.paths.broker_socket(), "try: outpost mcp");
        let broker =
            self.listener(own, roles::BROKER_SOCKET, "broker", &path, try_it, &mut announced).await?;
        let (path, try_it) = (self.paths.approvals_socket(), "try: outpost approve");
        let approver =
            self.listener(own, roles::APPROVALS_SOCKET, "approve", &path, try_it, &mut announced).await?;
        let shared = self.shared(own, config.approvals.socket.as_deref(), &mut announced).await?;
        // First of all: approvers shall not see a question vanish and come back.
        server.resume().await;
        tokio::spawn(server.serve(broker));
        tokio::spawn(outpost_approvals::serve(approver, approvals.clone()));
        let path =
            shared.as_ref().and_then(|listener| Some(listener.local_addr().ok()?.as_pathname()?.to_owned()));
        if let Some(listener) = shared {
            tokio::spawn(outpost_approvals::serve(listening(listener)?, approvals.clone()));
        }
        Ok(Begun { announced, shared: path, approvals })
    }

    /// The socket that approvers of other users reach.
    async fn shared(
        &self,
        own: &mut HashMap<u8, OwnedFd>,
        socket: Option<&Path>,
        announced: &mut Vec<String>,
    ) -> Result<Option<StdListener>, String> {
        if let Some(held) = own.remove(&roles::SHARED_APPROVALS_SOCKET) {
            return Ok(Some(held.into()));
        }
        let Some(socket) = socket else { return Ok(None) };
        let listener =
            bind_shared(socket).map_err(|why| format!("[approvals] socket {}: {why}", socket.display()))?;
        let copy = listener.try_clone().map_err(|error| error.to_string())?;
        self.engine
            .hold(roles::SHARED_APPROVALS_SOCKET, copy.into())
            .await
            .map_err(|error| error.to_string())?;
        announced.push(format!(
            "approve  {0}  try as another user: outpost approve --socket {0}",
            socket.display()
        ));
        Ok(Some(listener))
    }

    async fn listener(
        &self,
        own: &mut HashMap<u8, OwnedFd>,
        role: u8,
        name: &str,
        path: &Path,
        try_it: &str,
        announced: &mut Vec<String>,
    ) -> Result<UnixListener, String> {
        if let Some(socket) = own.remove(&role) {
            return listening(StdListener::from(socket));
        }
        let listener = crate::socket::bind(path)?;
        let copy = listener.try_clone().map_err(|error| error.to_string())?;
        self.engine.hold(role, copy.into()).await.map_err(|error| error.to_string())?;
        announced.push(format!("{name:<8} {}  {try_it}", path.display()));
        listening(listener)
    }
}

/// Everybody can connect; who may decide is what the kernel says about the other end.
fn bind_shared(socket: &Path) -> Result<StdListener, String> {
    const STICKY: u32 = 0o1000;
    // One that is longer would be bound by another name, which says nothing when it is to be removed.
    if !socket.is_absolute() || socket.as_os_str().len() > SOCKET_BYTES_MAX {
        return Err(format!("not an absolute path of at most {SOCKET_BYTES_MAX} bytes"));
    }
    let dir = socket.parent().unwrap_or(socket);
    let of = std::fs::metadata(dir).map_err(|error| format!("its directory: {error}"))?;
    let owned = [0, outpost_sys::limits::effective_uid()].contains(&of.uid());
    if !owned || (of.mode() & 0o022 != 0 && of.mode() & STICKY == 0) {
        return Err("others could put a socket of theirs in its place; choose a directory that only this user or root \
                    can change"
            .into());
    }
    let listener = crate::socket::bind_if_free(socket).map_err(|error| error.to_string())?;
    let set = std::fs::set_permissions(socket, PermissionsExt::from_mode(0o666));
    set.map_err(|error| error.to_string())?;
    Ok(listener)
}

fn listening(listener: StdListener) -> Result<UnixListener, String> {
    let made = listener.set_nonblocking(true).and_then(|()| UnixListener::from_std(listener));
    made.map_err(|error| error.to_string())
}

/// Users by name, looked up once: numbers in another form of writing are no names.
fn approvers(names: &[String]) -> Result<Vec<u32>, String> {
    let find = |name: &String| match outpost_sys::user::by_name(name) {
        Ok(Some(user)) => Ok(user.uid),
        Ok(None) => Err(format!("approvers: this host has no user {name:?}")),
        Err(errno) => Err(format!("approvers: {name:?}: {errno}")),
    };
    names.iter().map(find).collect()
}

fn settings(flags: &Flags, config: &Config) -> Settings {
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
        ask_patience: config::seconds(flags.ask_timeout, broker.ask_timeout_s, default.ask_patience),
        run_patience: config::seconds(flags.run_timeout, broker.run_timeout_s, default.run_patience),
        window: Window {
            past: config::seconds(broker.clock_behind_s, None, default.window.past),
            future: config::seconds(broker.clock_ahead_s, None, default.window.future),
        },
        shape: Shape { stages_max: broker.stages_max.unwrap_or(default.shape.stages_max), ..default.shape },
        rates: Rates {
            per_minute: count(broker.requests_per_minute, rates.per_minute),
            pending: count(broker.pending_max, rates.pending),
            pause_max: wait(broker.pause_max_s, rates.pause_max),
            denied_for: wait(broker.denied_for_s, rates.denied_for),
        },
        limits: limits.into_iter().flatten().collect(),
        agent: own_agent(),
        ends_with_client: broker.end_with_client.unwrap_or(false),
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

/// What sudo runs to ask for a password, and the socket that this asks on, both in one directory.
pub(crate) fn askpass(dir: &Path, who: AskPassword) -> Result<(Askpass, UnixListener), String> {
    let link = dir.join(ASKPASS_NAME);
    let fail = |error: std::io::Error| format!("{}: {error}", link.display());
    let binary = std::env::current_exe().map_err(fail)?;
    let _not_there = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(binary, &link).map_err(fail)?;
    let listener = listening(crate::socket::bind(&dir.join(ASKPASS_SOCKET))?)?;
    Ok((Askpass { who, link }, listener))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_in_the_example_are_the_defaults() {
        let [example, default] = [config::tests::example(), Config::default()].map(|config| {
            let Settings { ask_patience, run_patience, window, shape, rates, ends_with_client, .. } =
                settings(&Flags::default(), &config);
            (ask_patience, run_patience, window, shape, rates, ends_with_client)
        });
        assert_eq!(example, default);
    }
}
