//! The sessions face in the worker: its flags, port, TLS, admission of clients, and settings.

use super::fd_roles;
use super::listeners::Listeners;
use super::metrics_face::peers;
use super::private_paths;
use super::socket::{self, Port};
use crate::dropin::codecast;
use crate::failure::Failure;
use crate::port_token;
use outpost_approvals::Approvals;
use outpost_cli::config::{SESSIONS_ADDRESS, Sessions as Config};
use outpost_cli::flags::SessionsFlags;
use outpost_cli::listen::ListenAddress;
use outpost_cli::paths::Paths;
use outpost_engine::Engine;
use outpost_sessions::{Face, Settings, Tls, Tokens};
use outpost_wire::{Access, Peers, TokenCheck};
use std::collections::HashMap;
use std::io::Write;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream, UnixListener};

/// Connections served at once, most of them streams; more wait in the backlog.
const CONNECTIONS_MAX: usize = 4096;

/// How many further ports the original tries if its port is in use.
const PORTS_TRIED: u16 = 100;

pub(crate) struct SessionsFace<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) paths: &'a Paths,
    pub(crate) approvals: Approvals,
    pub(crate) config: &'a Config,
    pub(crate) flags: &'a SessionsFlags,
}

/// The port of the face, open and not served yet.
struct OpenPort {
    port: Port,
    url: String,
    tokens: TokenCheck,
    tls: Option<Tls>,
    /// Files that contain the port, which the shutdown removes.
    files: Vec<PathBuf>,
}

/// The face, and the files that contain its port or the reason why there is none yet.
pub(crate) type StartedSessions = (Arc<Face>, Result<Vec<PathBuf>, Failure>);

impl SessionsFace<'_> {
    /// Starts the face with its Unix socket and its port. It starts without the port if all ports are taken: the command line
    /// has the socket.
    pub(crate) async fn start(
        &self,
        inherited: &mut HashMap<u8, OwnedFd>,
        listeners: &mut Listeners,
    ) -> Result<StartedSessions, Failure> {
        let port = match self.open_port(inherited).await {
            Err(failure) if !failure.is_exhaustion() => return Err(failure),
            port => port,
        };
        let socket = self.bind_socket(inherited).await?;
        // Start the sessions last: a failure after this point would leave them running without a face.
        let settings = settings(self.paths, self.config);
        let face = Face::start(self.engine.clone(), self.approvals.clone(), settings).await?;
        self.serve_socket(&face, socket, listeners);
        inherited.remove(&fd_roles::SESSIONS_SOCKET);
        let files = port.map(|port| self.serve_port(&face, port, inherited, listeners));
        Ok((face, files))
    }

    /// Opens and serves the port of a face that has started without it.
    pub(crate) async fn start_port(
        &self,
        face: &Arc<Face>,
        inherited: &mut HashMap<u8, OwnedFd>,
        listeners: &mut Listeners,
    ) -> Result<Vec<PathBuf>, Failure> {
        let port = self.open_port(inherited).await?;
        Ok(self.serve_port(face, port, inherited, listeners))
    }

    /// Opens the inherited port or a new one. `None` if the configuration has none.
    async fn open_port(&self, inherited: &mut HashMap<u8, OwnedFd>) -> Result<Option<OpenPort>, Failure> {
        let Some(address) = self.config.listen.unwrap_or(ListenAddress::At(SESSIONS_ADDRESS)).address()
        else {
            self.remove_port(inherited).await?;
            return Ok(None);
        };
        let bind = |address| bind(address, self.flags.codecast);
        let role = fd_roles::SESSIONS_PORT;
        let port = socket::acquire_port(self.engine, inherited, role, address, bind).await?;
        let bound = port.bound;
        let tokens = self.tokens()?;
        let tls = if bound.ip().is_loopback() { None } else { Some(self.secure(bound)?) };
        let url = format!("{}://{bound}/rpc", if tls.is_some() { "https" } else { "http" });
        let files = self.write_port(bound.port(), url.clone())?;
        Ok(Some(OpenPort { port, url, tokens, tls, files }))
    }

    /// Returns the files that contain the port.
    fn serve_port(
        &self,
        face: &Arc<Face>,
        port: Option<OpenPort>,
        inherited: &mut HashMap<u8, OwnedFd>,
        listeners: &mut Listeners,
    ) -> Vec<PathBuf> {
        let Some(OpenPort { port: Port { listener, bound, is_new }, url, tokens, tls, files }) = port else {
            return Vec::new();
        };
        let hint = match &tls {
            None => "outpost sessions list".to_owned(),
            Some(tls) => format!("outpost token create NAME (certificate sha256 {})", tls.fingerprint()),
        };
        listeners.add(is_new, "sessions", &url, &hint);
        match tls {
            None => {
                let peers = peers(self.engine);
                let peers = if self.flags.codecast { peers.of_drop_in() } else { peers };
                tokio::spawn(serve_loopback(face.clone(), listener, peers, tokens));
            }
            Some(tls) => serve_tls(face, listener, tls, Access::Token(tokens)),
        }
        inherited.remove(&fd_roles::SESSIONS_PORT);
        if is_new && self.flags.codecast {
            let _stdout_closed = writeln!(std::io::stdout(), "DAEMON_PORT={}", bound.port());
        }
        files
    }

    /// Closes the port of an earlier worker and removes the files that contain it.
    async fn remove_port(&self, inherited: &mut HashMap<u8, OwnedFd>) -> Result<(), Failure> {
        socket::release(self.engine, inherited, fd_roles::SESSIONS_PORT).await?;
        // A killed daemon leaves them behind, and another process may listen on that port now.
        for file in [self.paths.sessions_port(), self.paths.sessions_url()] {
            let _not_there = std::fs::remove_file(file);
        }
        Ok(())
    }

    /// Binds the Unix socket, which the command line and `outpost connect` use. The flag is true if it is new. The drop-in
    /// has no such socket, as the original.
    async fn bind_socket(
        &self,
        inherited: &mut HashMap<u8, OwnedFd>,
    ) -> Result<Option<(UnixListener, bool)>, Failure> {
        if self.flags.codecast {
            return Ok(None);
        }
        let path = self.paths.sessions_socket();
        let bind = || socket::bind(&path);
        socket::acquire(self.engine, inherited, fd_roles::SESSIONS_SOCKET, bind).await.map(Some)
    }

    /// Serves the socket once the face has started.
    fn serve_socket(
        &self,
        face: &Arc<Face>,
        socket: Option<(UnixListener, bool)>,
        listeners: &mut Listeners,
    ) {
        let Some((listener, is_new)) = socket else { return };
        let path = self.paths.sessions_socket();
        listeners.add(is_new, "sessions", path.display(), "outpost sessions list");
        let face = face.clone();
        tokio::spawn(async move {
            let serve = |stream| outpost_sessions::serve(face.clone(), stream, Access::Open);
            outpost_wire::accept_all(listener, CONNECTIONS_MAX, serve).await;
        });
    }

    /// The accepted tokens: those of `outpost token`, the daemon's own, and those in the original's file.
    fn tokens(&self) -> Result<TokenCheck, Failure> {
        let mut others = self.flags.codecast_tokens.as_deref().map(codecast::tokens).unwrap_or_default();
        others.push(port_token::load_or_create(&self.paths.sessions_token())?);
        let file = if self.flags.codecast { codecast::own_tokens(self.paths) } else { self.paths.tokens() };
        Ok(Tokens::at(file).with(&others).into_check())
    }

    /// The TLS identity for remote clients: the configured certificate or a generated one.
    fn secure(&self, bound: SocketAddr) -> Result<Tls, Failure> {
        let tls = match (&self.config.tls_cert, &self.config.tls_key) {
            (Some(cert), Some(key)) => Tls::load(cert, key),
            _ => Tls::own(&self.paths.state, bound.ip()),
        };
        Ok(tls?)
    }

    /// Writes the port and the URL to the files that clients read.
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

/// Checks the peer of each connection once. Requests of a peer that is not admitted need a token.
async fn serve_loopback(face: Arc<Face>, listener: TcpListener, peers: Peers, tokens: TokenCheck) {
    let serve = |stream: TcpStream| {
        let (face, peers, tokens) = (face.clone(), peers.clone(), tokens.clone());
        async move {
            let access = Access::of_loopback(&stream, &peers, &tokens).await;
            outpost_sessions::serve(face, stream, access).await;
        }
    };
    outpost_wire::accept_all(listener, CONNECTIONS_MAX, serve).await;
}

fn serve_tls(face: &Arc<Face>, listener: TcpListener, tls: Tls, access: Access) {
    let face = face.clone();
    tokio::spawn(async move {
        let serve = |stream| {
            let (face, access, tls) = (face.clone(), access.clone(), tls.clone());
            async move {
                if let Some(stream) = tls.accept(stream).await {
                    outpost_sessions::serve(face, stream, access).await;
                }
            }
        };
        outpost_wire::accept_all(listener, CONNECTIONS_MAX, serve).await;
    });
}

/// The `[sessions]` table as settings of the sessions crate.
pub(crate) fn settings(paths: &Paths, config: &Config) -> Settings {
    let default = Settings::new(&paths.state);
    let wait = |given: Option<u64>| given.filter(|seconds| *seconds > 0).map(Duration::from_secs);
    Settings {
        skills: config.skills.clone().unwrap_or(default.skills),
        private: private_paths::private(paths),
        agents: config.agents(),
        turn_timeout: wait(config.turn_timeout_s),
        silence_timeout: wait(config.silence_timeout_s),
        ask_timeout: wait(config.ask_timeout_s).unwrap_or(default.ask_timeout),
        claude_keep_alive: wait(config.claude_keep_s),
        sessions_max: config.sessions_max.unwrap_or(default.sessions_max),
        ..default
    }
}

/// Binds the first free port, starting at the configured one.
fn bind(address: SocketAddr, is_only_face: bool) -> Result<StdTcpListener, Failure> {
    let tried = if address.port() == 0 { 0 } else { PORTS_TRIED };
    let mut last = None;
    for port in address.port()..=address.port().saturating_add(tried) {
        match StdTcpListener::bind(SocketAddr::new(address.ip(), port)) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => last = Some(error),
            Err(error) => return Err(socket::cannot_listen(address, &error)),
        }
    }
    let reason = last.map(|error| error.to_string()).unwrap_or_default();
    let text = format!("cannot listen on {address}, nor on the {tried} ports after it: {reason}");
    // Another user can hold all of these ports, but must not keep the daemon from starting.
    Err(if is_only_face { text.into() } else { Failure::passing(text) })
}
