//! The relay server: state that all connections share, and the accept loops.

use crate::connection;
use crate::environment::Environment;
use crate::metrics::Metrics;
use outpost_engine::Engine;
use outpost_wire::{Peers, SharedLoad, TokenCheck};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, mpsc, watch};

/// Concurrent connections. Further ones wait in the listen backlog.
const CONNECTIONS_MAX: usize = 4096;
/// Concurrent `files.*` requests of all connections.
const FILE_REQUESTS_MAX: usize = 32;
/// Concurrent `git.*` requests of all connections.
const GIT_REQUESTS_MAX: usize = 8;

/// Settings of a relay.
pub struct Config {
    /// The token that every request must carry.
    pub token: Vec<u8>,
    pub version: String,
    /// The base environment of children. A request's `env` overrides it.
    pub environment: Vec<(std::ffi::OsString, std::ffi::OsString)>,
    pub home: Option<PathBuf>,
}

/// State that all connections share.
pub struct Relay {
    pub(crate) engine: Engine,
    pub(crate) version: String,
    pub(crate) environment: Environment,
    pub(crate) home: Option<PathBuf>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) file_permits: Arc<Semaphore>,
    pub(crate) git_permits: Arc<Semaphore>,
    pub(crate) load: SharedLoad,
    token: Vec<u8>,
    shutdown: mpsc::Sender<()>,
    /// Set to true to end all connections.
    closing: watch::Sender<bool>,
}

impl Relay {
    /// Creates a relay. The receiver gets a message when a client requests a shutdown.
    pub fn new(engine: Engine, config: Config) -> (Arc<Relay>, mpsc::Receiver<()>) {
        let (shutdown, shutdown_requests) = mpsc::channel(1);
        let relay = Relay {
            metrics: Arc::new(Metrics::new(engine.clone())),
            engine,
            version: config.version,
            environment: Environment::new(config.environment),
            home: config.home,
            file_permits: Arc::new(Semaphore::new(FILE_REQUESTS_MAX)),
            git_permits: Arc::new(Semaphore::new(GIT_REQUESTS_MAX)),
            load: SharedLoad::default(),
            token: config.token,
            shutdown,
            closing: watch::Sender::new(false),
        };
        (Arc::new(relay), shutdown_requests)
    }

    pub fn metrics(&self) -> Arc<Metrics> {
        self.metrics.clone()
    }

    /// Starts a task that reads PATH from the user's login shell, for the children's environment.
    pub fn start_login_path_extraction(self: &Arc<Relay>) {
        let relay = self.clone();
        tokio::spawn(async move { relay.environment.extract_login_path().await });
    }

    pub(crate) fn is_authorized(&self, auth: &str) -> bool {
        outpost_wire::is_same_secret(auth.as_bytes(), &self.token)
    }

    pub(crate) fn request_shutdown(&self) {
        let _already_requested = self.shutdown.try_send(());
    }

    /// Closes all connections and stops the accept loops.
    pub fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Returns when the relay closes.
    pub(crate) async fn closing(&self) {
        let mut closing = self.closing.subscribe();
        let _relay_gone = closing.wait_for(|closing| *closing).await;
    }
}

/// Accepts connections until the relay closes.
pub async fn serve(listener: UnixListener, relay: Arc<Relay>) {
    tokio::select! {
        () = outpost_wire::accept_all(listener, CONNECTIONS_MAX, |stream| connection::serve(stream, relay.clone())) => {}
        () = relay.closing() => {}
    }
}

/// Serves metrics until the relay closes. "Bind it to a trusted interface (loopback)": as in the original, requests to a
/// non-loopback address need no token.
pub async fn serve_metrics(listener: TcpListener, relay: Arc<Relay>) {
    let (metrics, engine) = (relay.metrics(), relay.engine.clone());
    let peers = Peers::new(move |group| engine.standing_of_group(group)).of_drop_in().admitting_hosts();
    let token = TokenCheck::of(relay.token.clone());
    tokio::select! {
        () = outpost_wire::metrics::serve(listener, peers, token, move || metrics.render()) => {}
        () = relay.closing() => {}
    }
}
