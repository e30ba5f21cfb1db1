//! The exec face in the worker: its Unix socket for JSON lines or websocket, and its optional loopback port.

use super::fd_roles;
use super::listeners::Listeners;
use super::private_paths;
use super::socket::{self, Port};
use crate::failure::Failure;
use crate::port_token;
use outpost_cli::listen::ListenAddress;
use outpost_cli::paths::Paths;
use outpost_engine::{Engine, Process};
use outpost_exec::{Server, Settings};
use outpost_wire::{Access, TokenCheck};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::watch;

/// Connections served at once; more wait in the backlog.
const CONNECTIONS_MAX: usize = 1024;

pub(crate) struct ExecFace<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) paths: &'a Paths,
    /// The TCP address for websockets.
    pub(crate) websocket: Option<ListenAddress>,
}

impl ExecFace<'_> {
    /// Starts the face on the inherited socket or a new one.
    pub(crate) async fn start(
        &self,
        inherited: &mut HashMap<u8, OwnedFd>,
        listeners: &mut Listeners,
    ) -> Result<Arc<Server>, Failure> {
        let (engine_sender, engine) = watch::channel(Some(self.engine.clone()));
        let settings = Settings::own(self.paths.state.clone(), private_paths::private(self.paths))?;
        let path = self.paths.exec_socket();
        let (listener, is_new) =
            socket::acquire(self.engine, inherited, fd_roles::EXEC_SOCKET, || socket::bind(&path)).await?;
        listeners.add(is_new, "exec", path.display(), "outpost exec -- id");
        let server = Server::new(engine, settings);
        tokio::spawn(end_abandoned(self.engine.clone(), self.paths.state.clone()));
        let on_socket = server.clone();
        tokio::spawn(async move {
            let serve = |stream| serve_local(on_socket.clone(), stream);
            outpost_wire::accept_all(listener, CONNECTIONS_MAX, serve).await;
            // Dropping the sender ends the server's access to the engine, so it stays until the last connection ends.
            drop(engine_sender);
        });
        inherited.remove(&fd_roles::EXEC_SOCKET);
        Ok(server)
    }

    /// Starts the websocket listener on the inherited port or the configured one.
    pub(crate) async fn start_port(
        &self,
        server: Arc<Server>,
        inherited: &mut HashMap<u8, OwnedFd>,
        listeners: &mut Listeners,
    ) -> Result<(), Failure> {
        let Some(address) = self.websocket.and_then(ListenAddress::address) else {
            return socket::release(self.engine, inherited, fd_roles::EXEC_WEBSOCKET).await;
        };
        let token = port_token::load_or_create(&self.paths.exec_token())?;
        let role = fd_roles::EXEC_WEBSOCKET;
        let Port { listener, bound, is_new } =
            socket::acquire_port(self.engine, inherited, role, address, socket::bind_port).await?;
        let access = Access::Token(TokenCheck::of(token.into_bytes()).ignoring_case());
        tokio::spawn(async move {
            let serve = |stream| outpost_exec::serve_http(server.clone(), stream, access.clone());
            outpost_wire::accept_all(listener, CONNECTIONS_MAX, serve).await;
        });
        let token = format!(
            "curl -i -H \"Authorization: Bearer $(cat {})\" http://{bound}/readyz",
            self.paths.exec_token().display()
        );
        listeners.add(is_new, "exec", format!("ws://{bound}"), &token);
        inherited.remove(&fd_roles::EXEC_WEBSOCKET);
        Ok(())
    }
}

/// "a websocket spoken over the unix socket": a connection that starts with `GET` is HTTP, any other is JSON lines.
async fn serve_local(server: Arc<Server>, stream: UnixStream) {
    let first = stream.async_io(Interest::READABLE, || Ok(outpost_sys::message::peek(&stream)?)).await;
    match first {
        Ok(Some(b'G')) => outpost_exec::serve_http(server, stream, Access::Open).await,
        Ok(_) => match outpost_wire::split(stream) {
            Ok(connection) => outpost_exec::serve(server, connection).await,
            Err(error) => tracing::warn!(%error, "cannot serve a connection of the exec face"),
        },
        Err(error) => tracing::debug!(%error, "a connection of the exec face closed before its first byte"),
    }
}

/// Kills and removes commands of earlier workers. A command lives as long as its connection, which ended with its worker.
pub(crate) async fn end_abandoned(engine: Engine, state: PathBuf) {
    let is_abandoned = |process: &Process| process.key().face == "exec";
    for process in engine.list().await.into_iter().filter(is_abandoned) {
        let _stopping = process.kill_tree().await;
        let _gone = process.finished().await;
        let _stopping = process.forget().await;
    }
    let _swept = tokio::task::spawn_blocking(move || outpost_sandbox::sweep(&state)).await;
}
