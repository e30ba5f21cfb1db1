//! State shared by all connections: the engine, the base environment of commands, and the sandbox features of this host.

use crate::policy::PreparedSandbox;
use outpost_engine::{Engine, Environment};
use outpost_sandbox::{PrivatePaths, SandboxBuilder};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Semaphore, watch};

/// Limit of concurrent commands. Further commands wait.
const COMMANDS_MAX: usize = 1024;

/// Variable that informs commands that the network is off.
pub(crate) const NETWORK_DISABLED: (&str, &str) = ("CODEX_SANDBOX_NETWORK_DISABLED", "1");

/// What a server is started with.
pub struct Settings {
    pub directory: PathBuf,
    pub environment: Vec<(OsString, OsString)>,
    /// Directory in which placeholders on the host for confined commands are recorded.
    pub state: PathBuf,
    /// The daemon's own paths, hidden from confined commands.
    pub private: PrivatePaths,
}

impl Settings {
    /// With the directory and the environment of this process.
    pub fn own(state: PathBuf, private: PrivatePaths) -> std::io::Result<Settings> {
        let directory = std::env::current_dir()?;
        Ok(Settings { directory, environment: std::env::vars_os().collect(), state, private })
    }
}

pub struct Server {
    /// `None` until the engine has started: replies that do not need it are not delayed.
    engine: watch::Receiver<Option<Engine>>,
    pub(crate) directory: PathBuf,
    environment: Environment,
    /// The base environment of commands without network.
    environment_offline: Environment,
    pub(crate) command_slots: Arc<Semaphore>,
    pub(crate) sandboxes: SandboxBuilder,
    /// Cached sandboxes for read-only commands, without and with network.
    plain: [Mutex<Option<CachedSandbox>>; 2],
    connections: AtomicU64,
}

impl Server {
    pub fn new(engine: watch::Receiver<Option<Engine>>, settings: Settings) -> Arc<Server> {
        // Duplicate names collapse.
        let variables: BTreeMap<OsString, OsString> = settings.environment.into_iter().collect();
        let (name, value) = NETWORK_DISABLED;
        let others = variables.clone().into_iter().filter(|(known, _)| known != name);
        Arc::new(Server {
            engine,
            directory: settings.directory,
            environment_offline: others.chain([(name.into(), value.into())]).collect(),
            environment: variables.into_iter().collect(),
            command_slots: Arc::new(Semaphore::new(COMMANDS_MAX)),
            sandboxes: SandboxBuilder::new(settings.state, settings.private),
            plain: [Mutex::new(None), Mutex::new(None)],
            connections: AtomicU64::new(0),
        })
    }

    /// Waits for the engine; `None` if it cannot start.
    pub(crate) async fn engine(&self) -> Option<Engine> {
        self.engine.clone().wait_for(Option::is_some).await.ok().and_then(|engine| engine.clone())
    }

    /// Refuses further commands and returns the engine, if it has started.
    pub async fn stop(&self) -> Option<Engine> {
        self.command_slots.close();
        self.engine().await
    }

    /// The cache slot of the read-only sandbox, which most commands use.
    pub(crate) fn plain(&self, network: bool) -> SandboxCacheSlot<'_> {
        let [without, with] = &self.plain;
        let kept = if network { with } else { without };
        // The set of existing private paths is part of the cache key.
        SandboxCacheSlot { kept, present: self.sandboxes.hidden() }
    }

    /// The base environment of commands.
    pub(crate) fn environment(&self, no_network: bool) -> &Environment {
        if no_network { &self.environment_offline } else { &self.environment }
    }

    pub(crate) fn variable(&self, name: &str) -> Option<&OsStr> {
        self.environment.get(name)
    }

    pub(crate) fn home(&self) -> Option<PathBuf> {
        self.variable("HOME").filter(|home| !home.is_empty()).map(PathBuf::from)
    }

    /// Number of a new connection; the scope of its processes.
    pub(crate) fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed)
    }
}

/// A prepared sandbox and the private paths that existed when it was built.
type CachedSandbox = (Vec<PathBuf>, PreparedSandbox);

/// Cache slot of the read-only sandbox; valid while the set of hidden paths is unchanged.
pub(crate) struct SandboxCacheSlot<'a> {
    kept: &'a Mutex<Option<CachedSandbox>>,
    present: Vec<PathBuf>,
}

impl SandboxCacheSlot<'_> {
    pub(crate) fn get(&self) -> Option<PreparedSandbox> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.as_ref().filter(|(present, _)| *present == self.present).map(|(_, ready)| ready.clone())
    }

    pub(crate) fn keep(self, ready: &PreparedSandbox) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        *kept = Some((self.present, ready.clone()));
    }
}
