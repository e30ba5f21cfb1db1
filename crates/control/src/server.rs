//! Serves connections on the control socket: hands requests to their methods.

use crate::confining::Sandboxing;
use crate::methods;
use crate::owned::Owned;
use crate::pens::{Connection, Pens};
use crate::stream::Follow;
use crate::wire::{Failure, LINE_BYTES_MAX, RelayState, Request, Waiting, WakeRelay};
use outpost_engine::Engine;
use outpost_wire::{Closed, Line, Lines, Outbox};
use serde::Serialize;
use serde_json::value::RawValue;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

/// Connections served at once; more wait in the backlog.
const CONNECTIONS_MAX: usize = 1024;
/// Requests of one connection under way at once; more wait in the socket.
const REQUESTS_MAX: usize = 64;

/// What the program around us can do.
pub trait Program: Send + Sync + 'static {
    /// Puts a new binary in place of keeper and worker.
    fn upgrade(&self, binary: OwnedFd) -> impl Future<Output = Result<(), String>> + Send;
    /// Ends the daemon and every process.
    fn stop(&self);
    /// Ends the faces; the daemon stays as long as processes run. Says how many do.
    fn keep_children(&self) -> impl Future<Output = Result<usize, String>> + Send;
    /// Whether that was done.
    fn keeps_children(&self) -> bool;
    /// Begins the faces again.
    fn serve_again(&self) -> impl Future<Output = Result<(), String>> + Send;
    /// How much waits for a human, where faces can ask one.
    fn waiting(&self) -> Option<Waiting>;
    /// How the relay face stands, where there is one.
    fn relay(&self) -> Option<RelayState>;
    /// Has the relay face serve again.
    fn wake_relay(&self, wake: WakeRelay) -> impl Future<Output = Result<(), String>> + Send;
}

pub(crate) struct Context<P> {
    pub(crate) engine: Engine,
    pub(crate) program: P,
    pub(crate) sandboxing: Sandboxing,
    pub(crate) pens: Arc<Pens>,
    pub(crate) owned: Arc<Owned>,
    connections: AtomicU64,
}

/// Serves the control socket for ever.
pub async fn serve<P: Program>(listener: UnixListener, engine: Engine, program: P, sandboxing: Sandboxing) {
    let (pens, owned) = (Arc::default(), Arc::<Owned>::default());
    let (inherits, its_engine) = (owned.clone(), engine.clone());
    tokio::spawn(async move { inherits.inherit(&its_engine, methods::FACE).await });
    let connections = AtomicU64::new(0);
    let context = Arc::new(Context { engine, program, sandboxing, pens, owned, connections });
    let serve = |stream| serve_connection(stream, context.clone());
    outpost_wire::accept_all(listener, CONNECTIONS_MAX, serve).await;
}

async fn serve_connection<P: Program>(stream: UnixStream, context: Arc<Context<P>>) {
    let Ok((reader, writer)) = outpost_wire::split(stream) else { return };
    let (outbox, writing) = Outbox::new(writer);
    let writing = tokio::spawn(writing);
    let mut lines = Lines::new(reader, LINE_BYTES_MAX);
    let turns = Arc::new(Semaphore::new(REQUESTS_MAX));
    let connection = context.connections.fetch_add(1, Ordering::Relaxed);
    loop {
        let line = match lines.next().await {
            Ok(Line::Whole(line)) if line.trim_ascii().is_empty() => continue,
            Ok(Line::Whole(line)) => line.to_vec(),
            Ok(Line::Cut(_) | Line::TooLong | Line::End) | Err(_) => break,
        };
        let Ok(turn) = turns.clone().acquire_owned().await else { break };
        let (context, outbox) = (context.clone(), outbox.clone());
        tokio::spawn(async move {
            let _peer_gone = handle(&line, connection, &context, &outbox).await;
            drop(turn);
        });
    }
    outbox.close();
    let _ended = writing.await;
}

/// A method's answer, and what is to be streamed after it.
pub(crate) struct Answer {
    pub(crate) result: Box<RawValue>,
    pub(crate) follow: Option<Follow>,
}

async fn handle<P: Program>(
    line: &[u8],
    connection: Connection,
    context: &Arc<Context<P>>,
    outbox: &Outbox,
) -> Result<(), Closed> {
    let request: Request<'_> = match serde_json::from_slice(line) {
        Ok(request) => request,
        Err(error) => {
            let failure = Failure { kind: "parse".into(), message: error.to_string() };
            return reply(outbox, 0, Err(&failure)).await;
        }
    };
    match methods::call(context, connection, &request.method, request.params).await {
        Ok(Answer { result, follow }) => {
            reply(outbox, request.id, Ok(&result)).await?;
            let _stopping = context.engine.serving().await;
            match follow {
                Some(follow) => follow.run(outbox, &context.owned).await,
                None => Ok(()),
            }
        }
        Err(failure) => reply(outbox, request.id, Err(&failure)).await,
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
