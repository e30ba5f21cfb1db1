//! Serves connections on the control socket: hands requests to their methods.

use crate::wire::{Faces, Failure, LINE_BYTES_MAX, RelayState, Reloaded, Request, Settings, WakeRelay};
use crate::{methods, stream};
use outpost_engine::{Engine, Process};
use outpost_wire::{Closed, Line, Lines, Outbox};
use serde::Serialize;
use serde_json::value::RawValue;
use std::os::fd::OwnedFd;
use std::sync::Arc;
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
    /// How the relay face stands, where there is one.
    fn relay(&self) -> Option<RelayState>;
    /// What the other faces have.
    fn faces(&self) -> Faces;
    /// The configuration as it is in force, where there is one.
    fn settings(&self) -> Option<Settings>;
    /// Reads the configuration again.
    fn reload(&self) -> impl Future<Output = Result<Reloaded, String>> + Send;
    /// Has the relay face serve again.
    fn wake_relay(&self, wake: WakeRelay) -> impl Future<Output = Result<(), String>> + Send;
}

pub(crate) struct Context<P> {
    pub(crate) engine: Engine,
    pub(crate) program: P,
}

/// Serves the control socket for ever.
pub async fn serve<P: Program>(listener: UnixListener, engine: Engine, program: P) {
    let context = Arc::new(Context { engine, program });
    let serve = |stream| serve_connection(stream, context.clone());
    outpost_wire::accept_all(listener, CONNECTIONS_MAX, serve).await;
}

async fn serve_connection<P: Program>(stream: UnixStream, context: Arc<Context<P>>) {
    let Ok((reader, writer)) = outpost_wire::split(stream) else { return };
    let (outbox, writing) = Outbox::new(writer);
    let writing = tokio::spawn(writing);
    let mut lines = Lines::new(reader, LINE_BYTES_MAX);
    let turns = Arc::new(Semaphore::new(REQUESTS_MAX));
    loop {
        let line = match lines.next().await {
            Ok(Line::Whole(line)) if line.trim_ascii().is_empty() => continue,
            Ok(Line::Whole(line)) => line.to_vec(),
            Ok(Line::Cut(_) | Line::TooLong | Line::End) | Err(_) => break,
        };
        let Ok(turn) = turns.clone().acquire_owned().await else { break };
        let (context, outbox) = (context.clone(), outbox.clone());
        tokio::spawn(async move {
            let _peer_gone = handle(&line, &context, &outbox).await;
            drop(turn);
        });
    }
    outbox.close();
    let _ended = writing.await;
}

/// A method's answer, and what is to be streamed after it.
pub(crate) struct Answer {
    pub(crate) result: Box<RawValue>,
    pub(crate) follow: Option<(Process, u64)>,
}

async fn handle<P: Program>(line: &[u8], context: &Arc<Context<P>>, outbox: &Outbox) -> Result<(), Closed> {
    let request: Request<'_> = match serde_json::from_slice(line) {
        Ok(request) => request,
        Err(error) => {
            let failure = Failure { kind: "parse".into(), message: error.to_string() };
            return reply(outbox, 0, Err(&failure)).await;
        }
    };
    match methods::call(context, &request.method, request.params).await {
        Ok(Answer { result, follow }) => {
            reply(outbox, request.id, Ok(&result)).await?;
            let _stopping = context.engine.serving().await;
            match follow {
                Some((process, after)) => stream::follow(&process, after, outbox).await,
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
