//! What all connections share: the engine, the environment commands start from, and what this host can enforce.

use outpost_engine::Engine;
use outpost_sandbox::Host;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::{Semaphore, watch};

/// Commands that run at once. Others wait for their turn.
const COMMANDS_MAX: usize = 1024;

/// What a server is started with.
pub struct Settings {
    pub directory: PathBuf,
    pub environment: Vec<(OsString, OsString)>,
    /// Where it is written down which names are held on the host for confined commands.
    pub state: PathBuf,
    /// Directories of ours, which no confined command sees.
    pub private: Vec<PathBuf>,
}

impl Settings {
    /// With the directory and the environment of this process.
    pub fn own(state: PathBuf, private: Vec<PathBuf>) -> std::io::Result<Settings> {
        let directory = std::env::current_dir()?;
        Ok(Settings { directory, environment: std::env::vars_os().collect(), state, private })
    }
}

pub struct Server {
    /// None until it has begun: an answer that needs none does not wait for it.
    engine: watch::Receiver<Option<Engine>>,
    pub(crate) directory: PathBuf,
    pub(crate) environment: Vec<(OsString, OsString)>,
    pub(crate) turns: Arc<Semaphore>,
    pub(crate) private: Vec<PathBuf>,
    state: PathBuf,
    host: OnceLock<Host>,
    connections: AtomicU64,
}

impl Server {
    pub fn new(engine: watch::Receiver<Option<Engine>>, settings: Settings) -> Arc<Server> {
        Arc::new(Server {
            engine,
            directory: settings.directory,
            environment: settings.environment,
            turns: Arc::new(Semaphore::new(COMMANDS_MAX)),
            private: settings.private,
            state: settings.state,
            host: OnceLock::new(),
            connections: AtomicU64::new(0),
        })
    }

    /// The engine, once it has begun; none when it never will.
    pub(crate) async fn engine(&self) -> Option<Engine> {
        self.engine.clone().wait_for(Option::is_some).await.ok().and_then(|engine| engine.clone())
    }

    /// Takes the engine away, if it has begun: no command starts any more.
    pub async fn stop(&self) -> Option<Engine> {
        self.turns.close();
        self.engine().await
    }

    /// What this host can enforce. Found out once, which takes a moment.
    pub(crate) fn host(&self) -> &Host {
        self.host.get_or_init(|| {
            outpost_sandbox::sweep(&self.state);
            Host::probe(&self.state)
        })
    }

    pub(crate) fn variable(&self, name: &str) -> Option<&OsString> {
        self.environment.iter().find(|(variable, _)| variable == name).map(|(_, value)| value)
    }

    pub(crate) fn home(&self) -> Option<PathBuf> {
        self.variable("HOME").filter(|home| !home.is_empty()).map(PathBuf::from)
    }

    /// Names the scope of one connection's processes.
    pub(crate) fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed)
    }
}
