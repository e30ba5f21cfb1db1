//! The exec face in the worker: a socket that speaks lines or websocket, and a port on loopback if one is asked for.

use crate::announced::Announced;
use crate::failure::Failure;
use crate::listen::Listen;
use crate::paths::Paths;
use crate::{own_token, roles, socket};
use outpost_engine::{Engine, Process};
use outpost_exec::{Door, Server, Settings};
use std::collections::HashMap;
use std::net::TcpListener as StdTcpListener;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::io::Interest;
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::watch;

/// Connections served at once; more wait in the backlog.
const CONNECTIONS_MAX: usize = 1024;

pub(crate) struct ExecFace<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) paths: &'a Paths,
    /// Where to listen for websockets.
    pub(crate) websocket: Option<Listen>,
}

impl ExecFace<'_> {
    /// Begins with the socket that the keeper holds, or makes it.
    pub(crate) async fn begin(
        &self,
        own: &mut HashMap<u8, OwnedFd>,
        announced: &mut Announced,
    ) -> Result<Arc<Server>, Failure> {
        let (begun, engine) = watch::channel(Some(self.engine.clone()));
        let settings = Settings::own(self.paths.state.clone(), self.paths.private())?;
        let path = self.paths.exec_socket();
        let (listener, is_new) =
            socket::held(self.engine, own, roles::EXEC_SOCKET, || socket::bind(&path)).await?;
        let listener = socket::listening(listener)?;
        announced.add(is_new, "exec", path.display(), "outpost exec -- id");
        let server = Server::new(engine, settings);
        tokio::spawn(end_abandoned(self.engine.clone(), self.paths.state.clone()));
        let on_socket = server.clone();
        tokio::spawn(async move {
            let serve = |stream| serve_local(on_socket.clone(), stream);
            outpost_wire::accept_all(listener, CONNECTIONS_MAX, serve).await;
            // The engine is there as long as somebody is served.
            drop(begun);
        });
        own.remove(&roles::EXEC_SOCKET);
        Ok(server)
    }

    /// Begins with the port that the keeper holds, or takes the one that is settled.
    pub(crate) async fn begin_port(
        &self,
        server: Arc<Server>,
        own: &mut HashMap<u8, OwnedFd>,
        announced: &mut Announced,
    ) -> Result<(), Failure> {
        let Some(address) = self.websocket.and_then(Listen::address) else {
            return match own.remove(&roles::EXEC_WEBSOCKET) {
                // No request would be answered there.
                Some(_) => Ok(self.engine.release(roles::EXEC_WEBSOCKET).await?),
                None => Ok(()),
            };
        };
        let fail = |error: std::io::Error| Failure::io(format_args!("cannot listen on {address}"), &error);
        let token = own_token::make(&self.paths.exec_token())?;
        let bind = || StdTcpListener::bind(address).map_err(fail);
        let (listener, is_new) = socket::held(self.engine, own, roles::EXEC_WEBSOCKET, bind).await?;
        let bound = listener.local_addr().map_err(fail)?;
        listener.set_nonblocking(true).map_err(fail)?;
        let listener = TcpListener::from_std(listener).map_err(fail)?;
        let door = Door::Bearer(token.into_bytes().into());
        tokio::spawn(async move {
            let serve = |stream| outpost_exec::serve_http(server.clone(), stream, door.clone());
            outpost_wire::accept_all(listener, CONNECTIONS_MAX, serve).await;
        });
        let token = format!(
            "curl -i -H \"Authorization: Bearer $(cat {})\" http://{bound}/readyz",
            self.paths.exec_token().display()
        );
        announced.add(is_new, "exec", format!("ws://{bound}"), &token);
        own.remove(&roles::EXEC_WEBSOCKET);
        Ok(())
    }
}

/// "a websocket spoken over the unix socket": newer clients begin with HTTP, others with their first line.
async fn serve_local(server: Arc<Server>, stream: UnixStream) {
    let first = stream.async_io(Interest::READABLE, || Ok(outpost_sys::message::peek(&stream)?)).await;
    match first {
        Ok(Some(b'G')) => outpost_exec::serve_http(server, stream, Door::Open).await,
        Ok(_) => match outpost_wire::split(stream) {
            Ok(connection) => outpost_exec::serve(server, connection).await,
            Err(error) => tracing::warn!(%error, "a connection of the exec face cannot be served"),
        },
        Err(error) => tracing::debug!(%error, "a connection of the exec face ended at once"),
    }
}

/// Commands live as long as their connections, and those ended with the worker that served them.
pub(crate) async fn end_abandoned(engine: Engine, state: PathBuf) {
    let is_abandoned = |process: &Process| process.key().face == "exec";
    for process in engine.list().await.into_iter().filter(is_abandoned) {
        let _stopping = process.kill_tree().await;
        let _gone = process.finished().await;
        let _stopping = process.forget().await;
    }
    let _swept = tokio::task::spawn_blocking(move || outpost_sandbox::sweep(&state)).await;
}
