//! The face itself: what its connections share, and the loop that accepts them.

use crate::connection;
use crate::environment::Environment;
use crate::metrics::Metrics;
use outpost_engine::Engine;
use outpost_wire::SharedLoad;
use std::path::PathBuf;
use std::sync::Arc;
use subtle::ConstantTimeEq;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, mpsc, watch};

/// Connections served at once; more wait in the backlog.
const CONNECTIONS_MAX: usize = 4096;
/// Requests that wait for the disk at once, of all connections.
const FILE_REQUESTS_MAX: usize = 32;
/// Requests that run git at once.
const GIT_REQUESTS_MAX: usize = 8;

/// What a relay is started with.
pub struct Config {
    /// Every request carries it.
    pub token: Vec<u8>,
    pub version: String,
    /// The environment that children get, before their own.
    pub environment: Vec<(std::ffi::OsString, std::ffi::OsString)>,
    pub home: Option<PathBuf>,
}

/// What all connections share.
pub struct Relay {
    pub(crate) engine: Engine,
    pub(crate) version: String,
    pub(crate) environment: Environment,
    pub(crate) home: Option<PathBuf>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) file_turns: Arc<Semaphore>,
    pub(crate) git_turns: Arc<Semaphore>,
    pub(crate) load: SharedLoad,
    token: Vec<u8>,
    shutdown: mpsc::Sender<()>,
    /// True once connections are to end.
    closing: watch::Sender<bool>,
}

impl Relay {
    /// A relay over an engine, and the notice that a client has asked the daemon to stop.
    pub fn new(engine: Engine, config: Config) -> (Arc<Relay>, mpsc::Receiver<()>) {
        let (shutdown, stops) = mpsc::channel(1);
        let relay = Relay {
            metrics: Arc::new(Metrics::new(engine.clone())),
            engine,
            version: config.version,
            environment: Environment::new(config.environment),
            home: config.home,
            file_turns: Arc::new(Semaphore::new(FILE_REQUESTS_MAX)),
            git_turns: Arc::new(Semaphore::new(GIT_REQUESTS_MAX)),
            load: SharedLoad::default(),
            token: config.token,
            shutdown,
            closing: watch::Sender::new(false),
        };
        (Arc::new(relay), stops)
    }

    pub fn metrics(&self) -> Arc<Metrics> {
        self.metrics.clone()
    }

    /// Asks the login shell for its PATH, so that children find what a person would find.
    pub fn begin(self: &Arc<Relay>) {
        let relay = self.clone();
        tokio::spawn(async move { relay.environment.extract_login_path().await });
    }

    /// In constant time. An empty token opens nothing.
    pub(crate) fn is_authentic(&self, auth: &str) -> bool {
        !auth.is_empty() && bool::from(auth.as_bytes().ct_eq(&self.token))
    }

    /// A client wants the daemon to stop.
    pub(crate) fn ask_to_stop(&self) {
        let _asked_already = self.shutdown.try_send(());
    }

    /// Ends all connections, without a word.
    pub fn close(&self) {
        self.closing.send_replace(true);
    }

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

/// Offers metrics until the relay closes. Counts only. "Bind it to a trusted interface (loopback)": hosts that reach another
/// address need no token, as with the original.
pub async fn serve_metrics(listener: TcpListener, relay: Arc<Relay>) {
    let (metrics, engine) = (relay.metrics(), relay.engine.clone());
    let door = outpost_metrics::Door {
        peers: outpost_wire::Peers::new(move |group| engine.standing_of_group(group)).of_drop_in(),
        token: relay.token.clone().into(),
        is_open_to_hosts: true,
    };
    tokio::select! {
        () = outpost_metrics::serve(listener, door, move || metrics.render()) => {}
        () = relay.closing() => {}
    }
}
