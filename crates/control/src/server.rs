//! The server of the control socket: accepts connections, reads requests and runs each in a task of its own.

use crate::client_bound::ClientBound;
use crate::input_lock::InputLocks;
use crate::methods;
use crate::peer::Peer;
use crate::stream::Attachment;
use crate::wire::{
    Faces, Failure, LINE_BYTES_MAX, RelayState, Reloaded, Request, Settings, StopReport, WakeRelay,
};
use outpost_engine::{Engine, Error};
use outpost_sandbox::SandboxBuilder;
use outpost_wire::{Closed, Line, Lines, Outbox, SharedLoad, Weight};
use serde::Serialize;
use serde_json::value::RawValue;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

/// Concurrent connections; further ones wait in the accept backlog.
const CONNECTIONS_MAX: usize = 1024;
/// Concurrent requests of one connection, including output streams; further ones wait in the socket buffer.
const REQUESTS_MAX: u32 = 64;

/// Why the daemon did not carry out a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Declined {
    /// The daemon or this worker is stopping and accepts no more commands.
    Stopping,
    Refused(String),
}

impl Declined {
    /// The failure to report to the client; `kind` applies to a refusal.
    pub(crate) fn failure(self, kind: &str) -> Failure {
        let message = self.to_string();
        match self {
            Declined::Stopping => Failure { kind: Failure::STOPPING.into(), message },
            Declined::Refused(_) => Failure { kind: kind.into(), message },
        }
    }
}

impl fmt::Display for Declined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Declined::Stopping => f.write_str("the daemon is stopping"),
            Declined::Refused(reason) => f.write_str(reason),
        }
    }
}

impl From<String> for Declined {
    fn from(reason: String) -> Declined {
        Declined::Refused(reason)
    }
}

impl From<Error> for Declined {
    fn from(error: Error) -> Declined {
        match error {
            Error::Stopping | Error::Stopped => Declined::Stopping,
            other => Declined::Refused(other.to_string()),
        }
    }
}

/// The daemon operations that the control socket exposes but does not implement.
pub trait DaemonOps: Send + Sync + 'static {
    /// Replaces the binary of keeper and worker.
    fn upgrade(&self, binary: OwnedFd) -> impl Future<Output = Result<(), Declined>> + Send;
    /// Stops every process, then the daemon. `grace` is the time between SIGTERM and SIGKILL; `None` uses the configured
    /// one.
    fn stop(&self, grace: Option<Duration>) -> impl Future<Output = Result<StopReport, Declined>> + Send;
    /// Stops the faces and keeps the daemon until the last process ends. Returns the number of running processes.
    fn keep_children(&self) -> impl Future<Output = Result<usize, Declined>> + Send;
    /// Whether the daemon only keeps its processes.
    fn keeps_children(&self) -> bool;
    /// Starts the faces again after `keep_children`.
    fn resume_serving(&self) -> impl Future<Output = Result<(), Declined>> + Send;
    /// The state of the relay face; `None` in a daemon without one.
    fn relay(&self) -> Option<RelayState>;
    /// The state of the other faces.
    fn faces(&self) -> Faces;
    /// Whether this worker has tried to start each face.
    fn has_started(&self) -> bool;
    /// Waits until this worker has tried to start each face.
    fn faces_started(&self) -> impl Future<Output = ()> + Send;
    /// The effective configuration; `None` in a daemon without one.
    fn settings(&self) -> Option<Settings>;
    /// Reloads the configuration file.
    fn reload(&self) -> impl Future<Output = Result<Reloaded, Declined>> + Send;
    /// Starts the relay face again.
    fn wake_relay(&self, wake: WakeRelay) -> impl Future<Output = Result<(), Declined>> + Send;
}

pub(crate) struct Context<P> {
    pub(crate) engine: Engine,
    pub(crate) daemon: P,
    pub(crate) sandboxes: SandboxBuilder,
    pub(crate) input_locks: Arc<InputLocks>,
    pub(crate) client_bound: Arc<ClientBound>,
    next_connection: AtomicU64,
    load: SharedLoad,
}

/// Serves the control socket until the worker ends.
pub async fn serve<P: DaemonOps>(
    listener: UnixListener,
    engine: Engine,
    daemon: P,
    sandboxes: SandboxBuilder,
) {
    let (input_locks, client_bound) = (Arc::default(), Arc::<ClientBound>::default());
    let (adopting, their_engine) = (client_bound.clone(), engine.clone());
    tokio::spawn(async move { adopting.adopt(&their_engine, methods::FACE).await });
    let (next_connection, load) = (AtomicU64::new(0), SharedLoad::default());
    let context =
        Arc::new(Context { engine, daemon, sandboxes, input_locks, client_bound, next_connection, load });
    let serve = |stream| serve_connection(stream, context.clone());
    outpost_wire::accept_all(listener, CONNECTIONS_MAX, serve).await;
}

async fn serve_connection<P: DaemonOps>(stream: UnixStream, context: Arc<Context<P>>) {
    let Ok((reader, writer)) = outpost_wire::split(stream) else { return };
    let (outbox, writing) = Outbox::new(writer);
    let writing = tokio::spawn(writing);
    let mut lines = Lines::new(reader, LINE_BYTES_MAX);
    let requests = Arc::new(Semaphore::new(REQUESTS_MAX as usize));
    let id = context.next_connection.fetch_add(1, Ordering::Relaxed);
    let peer = Arc::new(Peer::new(id, outbox.clone()));
    if read(&mut lines, &requests, &peer, &context).await == Ended::Sending {
        // The client only closed its sending side: finish its requests and output streams.
        let finished = async {
            let _all = requests.acquire_many(REQUESTS_MAX).await;
            outbox.drained().await;
        };
        tokio::select! {
            () = outbox.peer_gone() => {}
            () = outbox.closed() => {}
            () = finished => {}
        }
    }
    // Closing the outbox ends the tasks that wait for this connection. A request that changes state still completes: a
    // kill escalates, and a spawned client-bound process gets its attach timeout.
    outbox.close();
    let _ended = writing.await;
}

/// How reading a connection ended.
#[derive(PartialEq, Eq)]
enum Ended {
    /// The client closed its sending side and may still read.
    Sending,
    /// The connection is unusable.
    Connection,
}

/// Reads requests and spawns a task for each, until EOF or an error.
async fn read<P: DaemonOps>(
    lines: &mut Lines,
    requests: &Arc<Semaphore>,
    peer: &Arc<Peer>,
    context: &Arc<Context<P>>,
) -> Ended {
    let load = context.load.connection();
    loop {
        let line = match lines.next().await {
            Ok(Line::Whole(line)) if line.trim_ascii().is_empty() => continue,
            Ok(Line::Whole(line)) => line.to_vec(),
            Ok(Line::Truncated(_) | Line::Eof) => return Ended::Sending,
            Ok(Line::TooLong) | Err(_) => return Ended::Connection,
        };
        let Some(weight) = load.take(line.len(), &peer.outbox).await else { return Ended::Connection };
        let request = peer.outbox.while_peer_stays(requests.clone().acquire_owned()).await;
        let Some(Ok(request)) = request else { return Ended::Connection };
        let (context, peer) = (context.clone(), peer.clone());
        tokio::spawn(async move {
            let _peer_gone = handle(line, weight, &peer, &context).await;
            drop(request);
        });
    }
}

/// The result of a method. With an attachment, output is streamed after it.
pub(crate) struct Response {
    pub(crate) result: Box<RawValue>,
    pub(crate) attachment: Option<Attachment>,
}

async fn handle<P: DaemonOps>(
    line: Vec<u8>,
    weight: Weight,
    peer: &Peer,
    context: &Arc<Context<P>>,
) -> Result<(), Closed> {
    let outbox = &peer.outbox;
    let request: Request<'_> = match serde_json::from_slice(&line) {
        Ok(request) => request,
        Err(error) => {
            let failure = Failure { kind: "parse".into(), message: error.to_string() };
            return reply(outbox, 0, Err(&failure)).await;
        }
    };
    let id = request.id;
    let called = methods::call(context, peer, &request.method, request.params).await;
    // Release the request's memory: an output stream lives as long as its process.
    drop((line, weight));
    match called {
        Ok(Response { result, attachment }) => {
            reply(outbox, id, Ok(&result)).await?;
            // A worker whose faces have not started may still fail: the keeper must keep the previous binary and its back-off.
            if context.daemon.has_started() {
                let _stopping = context.engine.serving().await;
            }
            match attachment {
                Some(attachment) => attachment.run(outbox, &context.client_bound).await,
                None => Ok(()),
            }
        }
        Err(failure) => reply(outbox, id, Err(&failure)).await,
    }
}

#[derive(Serialize)]
struct Reply<'a> {
    id: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a Failure>,
}

async fn reply(outbox: &Outbox, id: u64, outcome: Result<&RawValue, &Failure>) -> Result<(), Closed> {
    let reply = Reply { id, result: outcome.ok(), error: outcome.err() };
    outbox
        .send(|out| {
            let _infallible = serde_json::to_writer(&mut *out, &reply);
            out.push(b'\n');
        })
        .await
}
