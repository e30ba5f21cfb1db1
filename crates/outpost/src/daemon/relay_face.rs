//! The relay face in the worker: resumes from the keeper's descriptors and stops with or without its processes.

use super::fd_roles;
use crate::dropin::relay::{Settings, SocketPaths, VERSION};
use outpost_cli::redact;
use outpost_control::Declined;
use outpost_control::wire::{RelayState, WakeRelay};
use outpost_engine::{Config, Engine, Process};
use outpost_relay::{Relay, serve};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::sync::Arc;
use tokio::net::UnixListener;
use tokio::sync::mpsc;

/// Upper limits of one process's journal and of all journals; the free disk space may lower them.
const PROCESS_BYTES_MAX: u64 = 2 * 1024 * 1024 * 1024;
const HOST_BYTES_MAX: u64 = 8 * 1024 * 1024 * 1024;

/// "The replay buffer retains frames for the life of the process": sets the limits from `-journal-bytes` or from the free
/// disk space.
pub(crate) fn limit_journals(config: &mut Config, settings: &Settings) {
    let free = outpost_sys::file::free_bytes(&config.state_dir).unwrap_or(u64::MAX);
    config.host_bytes_max = HOST_BYTES_MAX.max(settings.journal_bytes).min(free / 2);
    config.process_bytes_max = match settings.journal_bytes {
        0 => PROCESS_BYTES_MAX.min(free / 4),
        bytes => bytes,
    };
}

pub(crate) struct RelayFace {
    engine: Engine,
    settings: Settings,
    serving: Option<Serving>,
    /// Processes were kept, so their records stay for the next daemon.
    keeps_records: bool,
}

struct Serving {
    relay: Arc<Relay>,
    stops: mpsc::Receiver<()>,
}

impl RelayFace {
    /// Continues in the state of the previous worker: serving, or keeping processes for the next daemon.
    pub(crate) fn resume(
        engine: &Engine,
        settings: Settings,
        socket: Option<OwnedFd>,
    ) -> Result<RelayFace, String> {
        let mut face = RelayFace { engine: engine.clone(), settings, serving: None, keeps_records: false };
        if let Some(socket) = socket.filter(|_| face.settings.bound.is_some()) {
            face.start(StdListener::from(socket))?;
        }
        face.keeps_records = face.serving.is_none() && face.settings.keep_children;
        Ok(face)
    }

    pub(crate) fn state(&self) -> RelayState {
        if self.serving.is_some() { RelayState::Serving } else { RelayState::Keeping }
    }

    fn start(&mut self, listener: StdListener) -> Result<(), String> {
        let text = |error: std::io::Error| error.to_string();
        listener.set_nonblocking(true).map_err(text)?;
        let listener = UnixListener::from_std(listener).map_err(text)?;
        redact::learn(&String::from_utf8_lossy(&self.settings.token));
        let config = outpost_relay::Config {
            token: self.settings.token.clone(),
            version: VERSION.into(),
            environment: std::env::vars_os().collect(),
            home: outpost_sys::user::home(),
        };
        let (relay, stops) = Relay::new(self.engine.clone(), config);
        relay.start_login_path_extraction();
        if !["", "none"].contains(&self.settings.metrics_addr.as_str()) {
            tokio::spawn(serve_metrics(self.settings.metrics_addr.clone(), relay.clone()));
        }
        tokio::spawn(serve(listener, relay.clone()));
        self.serving = Some(Serving { relay, stops });
        Ok(())
    }

    /// Completes when a client requests the shutdown. A face that does not serve completes when the last kept process has
    /// exited.
    pub(crate) async fn stop_requested(&mut self) {
        match &mut self.serving {
            Some(serving) => {
                serving.stops.recv().await;
            }
            None if !self.settings.keep_children => {}
            None => {
                for process in self.running().await {
                    let _gone = process.finished().await;
                }
            }
        }
    }

    async fn running(&self) -> Vec<Process> {
        let mut processes = self.engine.list().await;
        processes.retain(|process| process.status().exit().is_none());
        processes
    }

    /// Removes the socket and the token and closes all connections.
    pub(crate) fn stop_serving(&mut self) {
        let Some(serving) = self.serving.take() else { return };
        if let (Ok(paths), Some(bound)) = (self.socket_paths(), self.settings.bound) {
            paths.unbind(bound);
            paths.remove_token(&self.settings.token);
        }
        serving.relay.close();
    }

    fn socket_paths(&self) -> Result<SocketPaths, String> {
        SocketPaths::new(&self.settings.socket)
    }

    /// "-keep-children: … tears down the listener and client connections but leaves spawned children running". Returns true
    /// if processes run, so that the daemon must stay.
    pub(crate) async fn keep_children(&mut self) -> bool {
        self.stop_serving();
        // Without a bound socket the next worker does not serve: it continues to keep processes or to end.
        self.settings.bound = None;
        self.settings.token.clear();
        if let Err(reason) = self.hand_over(None).await {
            tracing::error!(%reason, "cannot update the keeper; the next worker may serve again");
        }
        let running = self.running().await.len();
        self.keeps_records = self.settings.keep_children && running > 0;
        if self.keeps_records {
            tracing::info!(
                "[Server] -keep-children: leaving {running} running child process(es) alive across shutdown"
            );
        }
        self.keeps_records
    }

    /// Gives the keeper the socket and the settings for the next worker.
    async fn hand_over(&self, socket: Option<OwnedFd>) -> Result<(), Declined> {
        let settings = self.settings.to_memory().map_err(|errno| errno.to_string())?;
        match socket {
            Some(socket) => self.engine.hold(fd_roles::RELAY_SOCKET, socket).await?,
            None => self.engine.release(fd_roles::RELAY_SOCKET).await?,
        }
        Ok(self.engine.hold(fd_roles::RELAY_SETTINGS, settings).await?)
    }

    /// Serves again, with a new token.
    pub(crate) async fn wake(&mut self, wake: WakeRelay) -> Result<(), Declined> {
        if self.serving.is_some() {
            let socket = self.settings.socket.display();
            return Err(format!("listen unix: listen unix {socket}: bind: address already in use").into());
        }
        let paths = self.socket_paths()?;
        let (listener, bound) = paths.bind()?;
        self.settings.token = wake.token.into_bytes();
        self.settings.metrics_addr = wake.metrics_addr;
        self.settings.keep_children = wake.keep_children;
        self.settings.bound = Some(bound);
        if let Err(error) = paths.write_token(&self.settings.token) {
            tracing::warn!("[daemon] failed to persist token: {error}");
        }
        let copy = listener.try_clone().map_err(|error| error.to_string())?;
        self.hand_over(Some(copy.into())).await?;
        self.keeps_records = false;
        Ok(self.start(listener)?)
    }

    /// Removes the records after an orderly shutdown, unless processes were kept for the next daemon.
    pub(crate) fn remove_records(&self, state: &Path) {
        if !self.keeps_records
            && let Err(error) = std::fs::remove_dir_all(state)
        {
            tracing::warn!(%error, "cannot remove the records of processes in {}", state.display());
        }
    }
}

async fn serve_metrics(address: String, relay: Arc<Relay>) {
    let bound = match listen_addresses(&address) {
        Ok(addresses) => {
            tokio::net::TcpListener::bind(&addresses[..]).await.map_err(|error| error.to_string())
        }
        Err(reason) => Err(reason),
    };
    match bound {
        Ok(listener) => {
            tracing::info!("[Server] metrics: serving Prometheus counters on {address}/metrics");
            outpost_relay::serve_metrics(listener, relay).await;
        }
        Err(reason) => tracing::error!("[Server] metrics: listen {address}: {reason}"),
    }
}

/// Addresses to try in order. Host names other than `localhost` are refused, not resolved.
fn listen_addresses(address: &str) -> Result<Vec<SocketAddr>, String> {
    let refused = || "not an IP address or localhost, a colon and a port".to_owned();
    if let Ok(address) = address.parse() {
        return Ok(vec![address]);
    }
    let (host, port) = address.rsplit_once(':').ok_or_else(refused)?;
    let port = port.parse().map_err(|_| refused())?;
    let hosts: [IpAddr; 2] = match host {
        // As in Go's net package, an empty host means every local address.
        "" => [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()],
        "localhost" => [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
        _ => return Err(refused()),
    };
    Ok(hosts.map(|host| SocketAddr::new(host, port)).to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metrics_address_is_never_resolved_by_name() {
        let addresses =
            |text: &str| listen_addresses(text).map(|found| found.first().map(ToString::to_string));
        assert_eq!(addresses("127.0.0.1:9100"), Ok(Some("127.0.0.1:9100".into())));
        assert_eq!(addresses("[::1]:0"), Ok(Some("[::1]:0".into())));
        assert_eq!(addresses(":9100"), Ok(Some("[::]:9100".into())));
        assert_eq!(addresses("localhost:9100"), Ok(Some("127.0.0.1:9100".into())));
        for text in ["example.com:9100", "9100", "", "localhost", "localhost:http", "::1:x"] {
            assert!(addresses(text).is_err(), "{text}");
        }
    }
}
