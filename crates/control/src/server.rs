//! Serves connections on the control socket: hands requests to their methods.

use crate::confining::Sandboxing;
use crate::methods;
use crate::owned::Owned;
use crate::peer::Peer;
use crate::pens::Pens;
use crate::stream::Follow;
use crate::wire::{
    Faces, Failure, LINE_BYTES_MAX, RelayState, Reloaded, Request, Settings, StopReport, WakeRelay,
};
use outpost_engine::{Engine, Error};
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

/// Connections served at once; more wait in the backlog.
const CONNECTIONS_MAX: usize = 1024;
/// Requests of one connection under way at once, with those that stream output; more wait in the socket.
const REQUESTS_MAX: u32 = 64;

/// Why the program around us did not do what a client asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Declined {
    /// The daemon, or this worker of it, is ending and takes no more orders.
    Ending,
    Refused(String),
}

impl Declined {
    /// As the control socket reports it; `kind` is that of a refusal.
    pub(crate) fn failure(self, kind: &str) -> Failure {
        let message = self.to_string();
        match self {
            Declined::Ending => Failure { kind: Failure::STOPPING.into(), message },
            Declined::Refused(_) => Failure { kind: kind.into(), message },
        }
    }
}

impl fmt::Display for Declined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Declined::Ending => f.write_str("the daemon is ending"),
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
            Error::Stopping | Error::Stopped => Declined::Ending,
            other => Declined::Refused(other.to_string()),
        }
    }
}

/// What the program around us can do.
pub trait Program: Send + Sync + 'static {
    /// Puts a new binary in place of keeper and worker.
    fn upgrade(&self, binary: OwnedFd) -> impl Future<Output = Result<(), Declined>> + Send;
    /// Ends every process, and then the daemon. Processes have this long to end by themselves, or as configured.
    fn stop(&self, grace: Option<Duration>) -> impl Future<Output = Result<StopReport, Declined>> + Send;
    /// Ends the faces; the daemon stays as long as processes run. Says how many do.
    fn keep_children(&self) -> impl Future<Output = Result<usize, Declined>> + Send;
    /// Whether that was done.
    fn keeps_children(&self) -> bool;
    /// Begins the faces again.
    fn serve_again(&self) -> impl Future<Output = Result<(), Declined>> + Send;
    /// How the relay face stands, where there is one.
    fn relay(&self) -> Option<RelayState>;
    /// What the other faces have.
    fn faces(&self) -> Faces;
    /// The configuration as it is in force, where there is one.
    fn settings(&self) -> Option<Settings>;
    /// Reads the configuration again.
    fn reload(&self) -> impl Future<Output = Result<Reloaded, Declined>> + Send;
    /// Has the relay face serve again.
    fn wake_relay(&self, wake: WakeRelay) -> impl Future<Output = Result<(), Declined>> + Send;
}

pub(crate) struct Context<P> {
    pub(crate) engine: Engine,
    pub(crate) program: P,
    pub(crate) sandboxing: Sandboxing,
    pub(crate) pens: Arc<Pens>,
    pub(crate) owned: Arc<Owned>,
    connections: AtomicU64,
    load: SharedLoad,
}

/// Serves the control socket for ever.
pub async fn serve<P: Program>(listener: UnixListener, engine: Engine, program: P, sandboxing: Sandboxing) {
    let (pens, owned) = (Arc::default(), Arc::<Owned>::default());
    let (inherits, its_engine) = (owned.clone(), engine.clone());
    tokio::spawn(async move { inherits.inherit(&its_engine, methods::FACE).await });
    let (connections, load) = (AtomicU64::new(0), SharedLoad::default());
    let context = Arc::new(Context { engine, program, sandboxing, pens, owned, connections, load });
    let serve = |stream| serve_connection(stream, context.clone());
    outpost_wire::accept_all(listener, CONNECTIONS_MAX, serve).await;
}

async fn serve_connection<P: Program>(stream: UnixStream, context: Arc<Context<P>>) {
    let Ok((reader, writer)) = outpost_wire::split(stream) else { return };
    let (outbox, writing) = Outbox::new(writer);
    let writing = tokio::spawn(writing);
    let mut lines = Lines::new(reader, LINE_BYTES_MAX);
    let requests = Arc::new(Semaphore::new(REQUESTS_MAX as usize));
    let number = context.connections.fetch_add(1, Ordering::Relaxed);
    let peer = Arc::new(Peer::new(number, outbox.clone()));
    if read(&mut lines, &requests, &peer, &context).await == Ended::Sending {
        // Its requests are answered, and its processes streamed to their ends.
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
    // From here on, tasks of this connection end where they would wait for it. Each request that changes something is
    // carried out to its end: a kill that was begun escalates, a process that was started is owned.
    outbox.close();
    let _ended = writing.await;
}

/// What has ended when a connection is not read any more.
#[derive(PartialEq, Eq)]
enum Ended {
    /// The peer sends nothing more, but may still read.
    Sending,
    Connection,
}

/// Reads requests, each handled by a task of its own, until no more can come.
async fn read<P: Program>(
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
            Ok(Line::Cut(_) | Line::End) => return Ended::Sending,
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

/// A method's answer, and what is to be streamed after it.
pub(crate) struct Answer {
    pub(crate) result: Box<RawValue>,
    pub(crate) follow: Option<Follow>,
}

async fn handle<P: Program>(
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
    // Output is streamed for as long as the process runs.
    drop((line, weight));
    match called {
        Ok(Answer { result, follow }) => {
            reply(outbox, id, Ok(&result)).await?;
            let _stopping = context.engine.serving().await;
            match follow {
                Some(follow) => follow.run(outbox, &context.owned).await,
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
            // Into memory, of values that are text already: nothing can fail.
            let _infallible = serde_json::to_writer(&mut *out, &reply);
            out.push(b'\n');
        })
        .await
}
