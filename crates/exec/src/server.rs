//! What all connections share: the engine, the environment commands start from, and what this host can enforce.

use crate::policy::Ready;
use outpost_engine::{Engine, Environment};
use outpost_sandbox::{Host, Private, Probed};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use tokio::sync::{Semaphore, watch};

/// Commands that run at once. Others wait for their turn.
const COMMANDS_MAX: usize = 1024;

/// A variable that tells commands why they reach nobody.
pub(crate) const NETWORK_DISABLED: (&str, &str) = ("CODEX_SANDBOX_NETWORK_DISABLED", "1");

/// What a server is started with.
pub struct Settings {
    pub directory: PathBuf,
    pub environment: Vec<(OsString, OsString)>,
    /// Where it is written down which names are held on the host for confined commands.
    pub state: PathBuf,
    /// What is the daemon's own, which no confined command sees.
    pub private: Private,
}

impl Settings {
    /// With the directory and the environment of this process.
    pub fn own(state: PathBuf, private: Private) -> std::io::Result<Settings> {
        let directory = std::env::current_dir()?;
        Ok(Settings { directory, environment: std::env::vars_os().collect(), state, private })
    }
}

pub struct Server {
    /// None until it has begun: an answer that needs none does not wait for it.
    engine: watch::Receiver<Option<Engine>>,
    pub(crate) directory: PathBuf,
    environment: Environment,
    /// The same for commands that reach nobody.
    environment_offline: Environment,
    pub(crate) turns: Arc<Semaphore>,
    pub(crate) private: Private,
    state: PathBuf,
    host: Probed,
    /// What earlier servers left on the host has been removed.
    swept: Once,
    /// Confinements for commands that read everything and write nothing, without and with a network.
    plain: [Mutex<Option<Known>>; 2],
    connections: AtomicU64,
}

impl Server {
    pub fn new(engine: watch::Receiver<Option<Engine>>, settings: Settings) -> Arc<Server> {
        // Each name once.
        let variables: BTreeMap<OsString, OsString> = settings.environment.into_iter().collect();
        let (name, value) = NETWORK_DISABLED;
        let others = variables.clone().into_iter().filter(|(known, _)| known != name);
        Arc::new(Server {
            engine,
            directory: settings.directory,
            environment_offline: others.chain([(name.into(), value.into())]).collect(),
            environment: variables.into_iter().collect(),
            turns: Arc::new(Semaphore::new(COMMANDS_MAX)),
            private: settings.private,
            host: Probed::new(settings.state.clone()),
            state: settings.state,
            swept: Once::new(),
            plain: [Mutex::new(None), Mutex::new(None)],
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

    /// What this host can enforce. Blocking: takes a moment until it is known.
    pub(crate) fn host(&self) -> outpost_sandbox::Result<Arc<Host>> {
        self.swept.call_once(|| outpost_sandbox::sweep(&self.state));
        self.host.get()
    }

    /// The confinement that most commands have.
    pub(crate) fn plain(&self, network: bool) -> Plain<'_> {
        let [without, with] = &self.plain;
        let kept = if network { with } else { without };
        // What is there to be hidden is part of it.
        Plain { kept, present: self.private.existing() }
    }

    /// What commands start from, if they ask for nothing else.
    pub(crate) fn environment(&self, no_network: bool) -> &Environment {
        if no_network { &self.environment_offline } else { &self.environment }
    }

    pub(crate) fn variable(&self, name: &str) -> Option<&OsStr> {
        self.environment.get(name)
    }

    pub(crate) fn home(&self) -> Option<PathBuf> {
        self.variable("HOME").filter(|home| !home.is_empty()).map(PathBuf::from)
    }

    /// Names the scope of one connection's processes.
    pub(crate) fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed)
    }
}

/// A confinement, and which of our own directories there were when it was made.
type Known = (Vec<PathBuf>, Ready);

/// A place for the confinement that most commands have, as long as what it hides does not change.
pub(crate) struct Plain<'a> {
    kept: &'a Mutex<Option<Known>>,
    present: Vec<PathBuf>,
}

impl Plain<'_> {
    pub(crate) fn get(&self) -> Option<Ready> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.as_ref().filter(|(present, _)| *present == self.present).map(|(_, ready)| ready.clone())
    }

    pub(crate) fn keep(self, ready: &Ready) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        *kept = Some((self.present, ready.clone()));
    }
}
