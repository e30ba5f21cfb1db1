//! The sessions face in the worker: its port, which clients it admits, and what the operator has settled about agents.

use crate::announced::Announced;
use crate::config::{AgentTable, Sessions as Config};
use crate::failure::Failure;
use crate::listen::Listen;
use crate::metrics_face::peers;
use crate::paths::Paths;
use crate::{codecast, own_token, roles, socket};
use clap::Args;
use outpost_approvals::Approvals;
use outpost_engine::Engine;
use outpost_sessions::{AgentSettings, Cli, Door, Face, Settings, Tls, Tokens};
use outpost_wire::Peers;
use std::collections::HashMap;
use std::ffi::CString;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener as StdTcpListener};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// Connections served at once, most of them streams; more wait in the backlog.
const CONNECTIONS_MAX: usize = 4096;

/// Where the original listens, and how many ports it tries.
pub(crate) const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9100);
const PORTS_TRIED: u16 = 100;

/// Flags of `serve` about sessions, which the worker gets again.
#[derive(Args, Clone, Debug, Default)]
#[group(skip)]
pub(crate) struct Flags {
    /// Where the sessions face listens, or none [default: 127.0.0.1:9100, or the first free port after it]
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) sessions_listen: Option<Listen>,
    /// As the daemon that this face stands in for: alone, with its files
    #[arg(long, hide = true)]
    pub(crate) codecast: bool,
    #[arg(long, hide = true)]
    pub(crate) codecast_tokens: Option<PathBuf>,
    #[arg(long, hide = true, requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    #[arg(long, hide = true, requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
}

impl Flags {
    /// As the worker is told them.
    pub(crate) fn arguments(&self) -> Vec<CString> {
        let path = |path: &PathBuf| path.display().to_string();
        let flags = [
            ("--sessions-listen", self.sessions_listen.map(|at| at.to_string())),
            ("--codecast-tokens", self.codecast_tokens.as_ref().map(path)),
            ("--tls-cert", self.tls_cert.as_ref().map(path)),
            ("--tls-key", self.tls_key.as_ref().map(path)),
        ];
        let given = flags.into_iter().filter_map(|(flag, value)| Some(format!("{flag}={}", value?)));
        let alone = self.codecast.then(|| "--codecast".to_owned());
        given.chain(alone).filter_map(|flag| CString::new(flag).ok()).collect()
    }
}

pub(crate) struct SessionsFace<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) paths: &'a Paths,
    pub(crate) approvals: Approvals,
    pub(crate) config: &'a Config,
    pub(crate) flags: &'a Flags,
}

/// A face that has begun.
pub(crate) struct Begun {
    pub(crate) face: Arc<Face>,
    /// Where its port stands, to be removed at the end.
    pub(crate) port_files: Vec<PathBuf>,
}

impl SessionsFace<'_> {
    /// Begins with the port that the keeper holds, or takes one.
    pub(crate) async fn begin(
        &self,
        own: &mut HashMap<u8, OwnedFd>,
        announced: &mut Announced,
    ) -> Result<Begun, Failure> {
        let Some(address) = self.config.listen.unwrap_or(Listen::At(DEFAULT_ADDRESS)).address() else {
            return self.begin_without_port(own).await;
        };
        let (listener, is_new) =
            socket::held(self.engine, own, roles::SESSIONS_PORT, || bind(address)).await?;
        let text = |error: std::io::Error| Failure::io(format_args!("cannot listen on {address}"), &error);
        let bound = listener.local_addr().map_err(text)?;
        listener.set_nonblocking(true).map_err(text)?;
        let listener = TcpListener::from_std(listener).map_err(text)?;
        let tokens = self.tokens()?;
        let secured = if bound.ip().is_loopback() { None } else { Some(self.secure(bound)?) };
        let url = format!("{}://{bound}/rpc", if secured.is_some() { "https" } else { "http" });
        let port_files = self.write_port(bound.port(), url.clone())?;
        // After all that can fail: a face that has begun drives its sessions.
        let face =
            Face::begin(self.engine.clone(), self.approvals.clone(), settings(self.paths, self.config));
        let face = face.await?;
        let hint = match &secured {
            None => "outpost sessions list".to_owned(),
            Some(tls) => format!("outpost token create NAME (certificate sha256 {})", tls.fingerprint()),
        };
        announced.add(is_new, "sessions", &url, &hint);
        match secured {
            None => {
                let peers = peers(self.engine);
                let peers = if self.flags.codecast { peers.of_drop_in() } else { peers };
                tokio::spawn(serve_loopback(face.clone(), listener, peers, tokens));
            }
            Some(tls) => serve_tls(&face, listener, tls, Door::Tokens(tokens)),
        }
        own.remove(&roles::SESSIONS_PORT);
        if is_new && self.flags.codecast {
            let _nobody_reads = writeln!(std::io::stdout(), "DAEMON_PORT={}", bound.port());
        }
        Ok(Begun { face, port_files })
    }

    /// Without a port: sessions of before go on, and their agents' questions can be decided.
    async fn begin_without_port(&self, own: &mut HashMap<u8, OwnedFd>) -> Result<Begun, Failure> {
        if own.remove(&roles::SESSIONS_PORT).is_some() {
            self.engine.release(roles::SESSIONS_PORT).await?;
        }
        let settings = settings(self.paths, self.config);
        let face = Face::begin(self.engine.clone(), self.approvals.clone(), settings).await?;
        Ok(Begun { face, port_files: Vec::new() })
    }

    /// What is accepted as a token: those of `outpost token`, the daemon's own, and those of the daemon that it stands in for.
    fn tokens(&self) -> Result<Arc<Tokens>, Failure> {
        let mut others = self.flags.codecast_tokens.as_deref().map(codecast::tokens).unwrap_or_default();
        others.push(own_token::make(&self.paths.sessions_token())?);
        let ours = if self.flags.codecast { codecast::own_tokens(self.paths) } else { self.paths.tokens() };
        Ok(Arc::new(Tokens::at(ours).with(&others)))
    }

    /// Clients from elsewhere need a token, and talk over TLS.
    fn secure(&self, bound: SocketAddr) -> Result<Tls, Failure> {
        let tls = match (&self.config.tls_cert, &self.config.tls_key) {
            (Some(cert), Some(key)) => Tls::load(cert, key),
            _ => Tls::own(&self.paths.state, bound.ip()),
        };
        Ok(tls?)
    }

    /// Says which port it is, where clients look for it.
    fn write_port(&self, port: u16, url: String) -> Result<Vec<PathBuf>, Failure> {
        let mut files =
            vec![(self.paths.sessions_url(), url), (self.paths.sessions_port(), port.to_string())];
        if self.flags.codecast {
            files.push((codecast::port_file(), port.to_string()));
        }
        for (file, text) in &files {
            std::fs::write(file, text).map_err(|error| Failure::io(file.display(), &error))?;
        }
        Ok(files.into_iter().map(|(file, _)| file).collect())
    }
}

/// Each connection is looked up once; requests of those that are not admitted need a token.
async fn serve_loopback(face: Arc<Face>, listener: TcpListener, peers: Peers, tokens: Arc<Tokens>) {
    let serve = |stream: TcpStream| {
        let (face, peers, tokens) = (face.clone(), peers.clone(), tokens.clone());
        async move {
            let refused = peers.admit(&stream).await.err();
            outpost_sessions::serve(face, stream, Door::Loopback(refused, tokens)).await;
        }
    };
    outpost_wire::accept_all(listener, CONNECTIONS_MAX, serve).await;
}

fn serve_tls(face: &Arc<Face>, listener: TcpListener, tls: Tls, door: Door) {
    let face = face.clone();
    tokio::spawn(async move {
        let serve = |stream| {
            let (face, door, tls) = (face.clone(), door.clone(), tls.clone());
            async move {
                if let Some(stream) = tls.accept(stream).await {
                    outpost_sessions::serve(face, stream, door).await;
                }
            }
        };
        outpost_wire::accept_all(listener, CONNECTIONS_MAX, serve).await;
    });
}

/// What the operator has settled about agents.
pub(crate) fn settings(paths: &Paths, config: &Config) -> Settings {
    let default = Settings::new(&paths.state);
    let wait = |given: Option<u64>| given.filter(|seconds| *seconds > 0).map(Duration::from_secs);
    let agents = [
        (Cli::Claude, &config.claude),
        (Cli::Codex, &config.codex),
        (Cli::Gemini, &config.gemini),
        (Cli::Opencode, &config.opencode),
    ];
    Settings {
        skills: config.skills.clone().unwrap_or(default.skills),
        private: paths.private(),
        agents: agents.into_iter().map(|(cli, table)| (cli, agent(table))).collect(),
        turn_patience: wait(config.turn_timeout_s),
        silence_patience: wait(config.silence_timeout_s),
        ask_patience: wait(config.ask_timeout_s).unwrap_or(default.ask_patience),
        claude_keep: wait(config.claude_keep_s),
        sessions_max: config.sessions_max.unwrap_or(default.sessions_max),
        ..default
    }
}

fn agent(table: &AgentTable) -> AgentSettings {
    AgentSettings {
        program: table.program.clone(),
        set: table.env.clone().unwrap_or_default().into_iter().collect(),
        drop: table.drop_env.clone().unwrap_or_default(),
    }
}

/// The first port that is free, from the one that is asked for on.
fn bind(address: SocketAddr) -> Result<StdTcpListener, Failure> {
    let tried = if address.port() == 0 { 0 } else { PORTS_TRIED };
    let mut last = None;
    for port in address.port()..=address.port().saturating_add(tried) {
        match StdTcpListener::bind(SocketAddr::new(address.ip(), port)) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => last = Some(error),
            Err(error) => return Err(Failure::io(format_args!("cannot listen on {address}"), &error)),
        }
    }
    let reason = last.map(|error| error.to_string()).unwrap_or_default();
    Err(format!("cannot listen on {address}, nor on the {tried} ports after it: {reason}").into())
}
