//! The sessions face in the worker: its port, and what the operator has settled about agents.

use crate::config::{AgentTable, Config};
use crate::paths::Paths;
use crate::roles;
use outpost_approvals::Approvals;
use outpost_engine::Engine;
use outpost_sessions::{AgentSettings, Cli, Door, Face, Settings};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener as StdTcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// Connections served at once, most of them streams; more wait in the backlog.
const CONNECTIONS_MAX: usize = 4096;

/// Where the original listens, and how many ports it tries.
pub(crate) const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9100);
const PORTS_TRIED: u16 = 100;

pub(crate) struct SessionsFace<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) paths: &'a Paths,
    pub(crate) approvals: Approvals,
    pub(crate) config: &'a Config,
    /// Where to listen, if a flag says so.
    pub(crate) listen: Option<SocketAddr>,
}

impl SessionsFace<'_> {
    /// Begins with the port that the keeper holds, or takes one. Returns what is to be announced of it.
    pub(crate) async fn begin(
        &self,
        own: &mut HashMap<u8, OwnedFd>,
    ) -> Result<(Option<String>, Arc<Face>), String> {
        let face = Face::begin(self.engine.clone(), self.approvals.clone(), self.settings());
        let face = face.await.map_err(|error| error.to_string())?;
        let address = self.listen.or(self.config.sessions.listen).unwrap_or(DEFAULT_ADDRESS);
        let (listener, is_new) = match own.remove(&roles::SESSIONS_PORT) {
            Some(socket) => (StdTcpListener::from(socket), false),
            None => {
                let listener = bind(address)?;
                let copy = listener.try_clone().map_err(|error| error.to_string())?;
                self.engine
                    .hold(roles::SESSIONS_PORT, copy.into())
                    .await
                    .map_err(|error| error.to_string())?;
                (listener, true)
            }
        };
        let text = |error: std::io::Error| format!("cannot listen on {address}: {error}");
        let bound = listener.local_addr().map_err(text)?;
        listener.set_nonblocking(true).map_err(text)?;
        let listener = TcpListener::from_std(listener).map_err(text)?;
        let port_file = self.paths.sessions_port();
        std::fs::write(&port_file, bound.port().to_string())
            .map_err(|error| format!("{}: {error}", port_file.display()))?;
        if !bound.ip().is_loopback() {
            return Err(format!(
                "cannot listen on {bound}: not a loopback address; reach it from elsewhere over ssh"
            ));
        }
        let serving = face.clone();
        tokio::spawn(async move {
            let serve = |stream| outpost_sessions::serve(serving.clone(), stream, Door::Loopback);
            outpost_wire::accept_all(listener, CONNECTIONS_MAX, serve).await;
        });
        let line = format!("sessions http://{bound}/rpc  try: outpost sessions list");
        Ok((is_new.then_some(line), face))
    }

    fn settings(&self) -> Settings {
        let config = &self.config.sessions;
        let default = Settings::new(&self.paths.state);
        let wait = |given: Option<u64>| given.filter(|seconds| *seconds > 0).map(Duration::from_secs);
        let agents = [
            (Cli::Claude, &config.claude),
            (Cli::Codex, &config.codex),
            (Cli::Gemini, &config.gemini),
            (Cli::Opencode, &config.opencode),
        ];
        Settings {
            skills: config.skills.clone().unwrap_or(default.skills),
            private: vec![self.paths.state.clone(), self.paths.runtime.clone()],
            agents: agents.into_iter().map(|(cli, table)| (cli, agent(table))).collect(),
            turn_patience: wait(config.turn_timeout_s),
            silence_patience: wait(config.silence_timeout_s),
            ask_patience: wait(config.ask_timeout_s).unwrap_or(default.ask_patience),
            sessions_max: config.sessions_max.unwrap_or(default.sessions_max),
            ..default
        }
    }
}

fn agent(table: &AgentTable) -> AgentSettings {
    AgentSettings {
        program: table.program.clone(),
        set: table.env.clone().into_iter().collect(),
        drop: table.drop_env.clone(),
        is_kept: table.keep,
    }
}

/// The first port that is free, from the one that is asked for on.
fn bind(address: SocketAddr) -> Result<StdTcpListener, String> {
    let tried = if address.port() == 0 { 0 } else { PORTS_TRIED };
    let mut last = None;
    for port in address.port()..=address.port().saturating_add(tried) {
        match StdTcpListener::bind(SocketAddr::new(address.ip(), port)) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => last = Some(error),
            Err(error) => return Err(format!("cannot listen on {address}: {error}")),
        }
    }
    let reason = last.map(|error| error.to_string()).unwrap_or_default();
    Err(format!("cannot listen on {address}, nor on the {tried} ports after it: {reason}"))
}
