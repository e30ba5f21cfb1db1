//! One connection: reads requests, checks them in the contract's order, and gives each to its method.

use crate::follow::Followers;
use crate::input::Inputs;
use crate::methods::{self, Method};
use crate::server::Relay;
use crate::wire::{
    Failure, INVALID_REQUEST, Id, LINE_BYTES, METHOD, Outcome, PARSE, Request, UNAUTHORIZED, append_failure,
    append_reply, append_result,
};
use outpost_wire::{Closed, Line, Lines, Load, Outbox, Weight};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;

/// Files that are read and sent at once to one client; a large one counts as all of them.
pub(crate) const READS_MAX: u32 = 4;
/// Replies that are ready together are sent together, up to about this much.
const TOGETHER_BYTES: usize = 64 * 1024;
/// Lines that are handled before others have a turn.
const IN_A_ROW_MAX: u32 = 256;
/// Requests without a valid token that are logged on one connection.
const STRANGERS_LOGGED: u32 = 10;

/// A connection, for its requests.
pub(crate) struct Connection {
    pub(crate) relay: Arc<Relay>,
    pub(crate) outbox: Outbox,
    pub(crate) followers: Followers,
    pub(crate) inputs: Inputs,
    /// Files on their way to this client: who reads slowly must not have many in memory.
    pub(crate) reads: Arc<Semaphore>,
    load: Load,
    strangers: AtomicU32,
    has_spoken: AtomicBool,
}

/// A request under way: its place, its id, when it came, and which group of methods it belongs to.
pub(crate) struct Pending {
    pub(crate) connection: Arc<Connection>,
    id: Id<'static>,
    since: Instant,
    namespace: &'static str,
    weight: Weight,
}

impl Pending {
    pub(crate) async fn reply(self, outcome: Outcome) {
        let _peer_gone = self.connection.outbox.send(|out| self.append_reply(out, &outcome)).await;
    }

    /// Answers with what `method` says, which runs on a thread that may wait when it is its turn.
    pub(crate) fn run_in_turn(
        self,
        turns: Arc<Semaphore>,
        method: impl FnOnce() -> Outcome + Send + 'static,
    ) {
        tokio::spawn(async move {
            let turn = turns.acquire_owned().await;
            let outcome = tokio::task::spawn_blocking(method).await;
            drop(turn);
            self.reply(outcome.unwrap_or_else(|error| Err(Failure::internal(error.to_string())))).await;
        });
    }

    /// What it brought is not in memory any more: others may be let in.
    pub(crate) fn weighs_little(&mut self) {
        self.weight.shrink();
    }

    pub(crate) fn append_reply(&self, out: &mut Vec<u8>, outcome: &Outcome) {
        append_reply(out, &self.id, outcome);
        self.connection.relay.metrics.answered(self.namespace, self.since.elapsed());
    }
}

/// What becomes of a request after it was looked at.
enum Verdict {
    /// It was answered at once, or a method works on it.
    Taken,
    /// No method takes it before there is room for its bytes.
    Wait,
    /// The daemon is to stop, and says nothing.
    Shutdown,
}

pub(crate) async fn serve(stream: UnixStream, relay: Arc<Relay>) {
    relay.metrics.connected();
    tracing::debug!("[Server] New connection from: @");
    let Ok((reader, writer)) = outpost_wire::split(stream) else { return };
    let (outbox, writing) = Outbox::new(writer);
    let writing = tokio::spawn(writing);
    let connection = Arc::new(Connection {
        relay: relay.clone(),
        outbox: outbox.clone(),
        followers: Followers::default(),
        inputs: Inputs::default(),
        reads: Arc::new(Semaphore::new(READS_MAX as usize)),
        load: relay.load.connection(),
        strangers: AtomicU32::new(0),
        has_spoken: AtomicBool::new(false),
    });
    // A task of its own, so that a request wakes nothing but what reads it.
    let mut reading = {
        let connection = connection.clone();
        tokio::spawn(async move { connection.read(Lines::new(reader, LINE_BYTES)).await })
    };
    tokio::select! {
        _ended = &mut reading => {}
        () = outbox.closed() => {}
        () = relay.closing() => {}
    }
    reading.abort();
    outbox.close();
    connection.followers.end_all();
    let _ended = writing.await;
    relay.metrics.disconnected(connection.has_spoken.load(Ordering::Relaxed));
    tracing::debug!("[Server] Connection closed: @");
}

impl Connection {
    async fn read(self: &Arc<Connection>, mut lines: Lines) {
        let mut replies = Vec::new();
        let mut in_a_row = 0;
        loop {
            let (line, last) = match lines.next().await {
                Ok(Line::Whole(line)) => (line, false),
                // The original serves a last line without its newline, too.
                Ok(Line::Cut(line)) => (line, true),
                Ok(Line::TooLong) => break,
                Ok(Line::End) => return self.linger().await,
                Err(_) => return,
            };
            self.has_spoken.store(true, Ordering::Relaxed);
            // Lines end as the original's reader has it: with or without a carriage return.
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            match self.handle_in_turn(line, &mut replies).await {
                Ok(true) => {}
                Ok(false) => {
                    self.relay.ask_to_stop();
                    // The end of the connection says that the socket is gone.
                    return self.relay.closing().await;
                }
                Err(Closed) => return,
            }
            let together = replies.len() <= TOGETHER_BYTES && lines.has_line() && !last;
            if !together && self.flush(&mut replies).await.is_err() {
                return;
            }
            if last {
                return self.linger().await;
            }
            in_a_row += 1;
            if in_a_row >= IN_A_ROW_MAX {
                in_a_row = 0;
                tokio::task::yield_now().await;
            }
        }
        // "1048576+ closes the connection with no reply"; requests before it are answered first.
        let _peer_gone = self.flush(&mut replies).await;
        self.finish_requests().await;
    }

    /// Handles a line, waiting for its turn if there are too many; false when the daemon is to stop. An answer that is
    /// known at once goes to `replies`, to be sent with others.
    async fn handle_in_turn(
        self: &Arc<Connection>,
        line: &[u8],
        replies: &mut Vec<u8>,
    ) -> Result<bool, Closed> {
        if line.is_empty() {
            return Ok(true);
        }
        let mut verdict = self.handle(line, None, replies);
        if let Verdict::Wait = verdict {
            // What is known is not kept back by what must wait.
            self.flush(replies).await?;
            let weight = self.load.take(line.len(), &self.outbox).await.ok_or(Closed)?;
            verdict = self.handle(line, Some(weight), replies);
        }
        Ok(!matches!(verdict, Verdict::Shutdown))
    }

    async fn flush(&self, replies: &mut Vec<u8>) -> Result<(), Closed> {
        if !replies.is_empty() {
            self.outbox.send(|out| out.append(replies)).await?;
            let _stopping = self.relay.engine.serving().await;
        }
        Ok(())
    }

    /// Waits until all requests have been answered and the peer has taken the answers.
    async fn finish_requests(&self) {
        self.load.finished().await;
        self.outbox.drained().await;
    }

    /// The peer says nothing more. It may still listen: what it asked for is answered, and processes it follows are
    /// streamed to their ends.
    async fn linger(&self) {
        let done = async {
            self.finish_requests().await;
            self.followers.all_ended().await;
            self.outbox.drained().await;
        };
        tokio::select! {
            () = self.outbox.peer_gone() => {}
            () = done => {}
        }
    }

    /// "A request is checked in the order parse → auth → version → method → params". Without a weight it takes one if there
    /// is room.
    fn handle(self: &Arc<Connection>, line: &[u8], weight: Option<Weight>, replies: &mut Vec<u8>) -> Verdict {
        let Some(request) = Request::parse(line) else {
            append_failure(replies, &Id::Null, &Failure::new(PARSE, "Parse error"));
            return Verdict::Taken;
        };
        let mut refuse = |code, message: String| {
            append_failure(replies, &request.id(), &Failure::new(code, message));
            Verdict::Taken
        };
        if !self.relay.is_authentic(&request.auth.read()) {
            self.log_stranger(&request);
            return refuse(UNAUTHORIZED, "Unauthorized: invalid or missing auth token".into());
        }
        if !request.has_version_2() {
            return refuse(INVALID_REQUEST, "Invalid JSON-RPC version".into());
        }
        let method = request.method.read();
        let method = match Method::parse(&method) {
            Ok(method) => method,
            Err(refusal) => return refuse(METHOD, refusal),
        };
        let namespace = match method {
            Method::Server(method) => {
                let Some(answer) = method.answer() else { return Verdict::Shutdown };
                append_result(replies, &request.id(), |out| answer(&self.relay, out));
                self.relay.metrics.answered("server", Duration::ZERO);
                return Verdict::Taken;
            }
            Method::Files(_) => "files",
            Method::Git(_) => "git",
            Method::Process(_) => "process",
        };
        let Some(weight) = weight.or_else(|| self.load.try_take(line.len())) else { return Verdict::Wait };
        let pending = Pending {
            connection: self.clone(),
            id: request.id().keep(),
            since: Instant::now(),
            namespace,
            weight,
        };
        let refused = match method {
            Method::Server(_) => Ok(()),
            Method::Files(method) => methods::files::begin(method, &request, pending),
            Method::Git(method) => methods::git::begin(method, &request, pending),
            Method::Process(method) => methods::process::begin(method, &request, pending),
        };
        if let Err(failure) = refused {
            append_failure(replies, &request.id(), &failure);
        }
        Verdict::Taken
    }

    /// What a stranger sends does not reach the terminal of who reads the log, and does not fill the disk.
    fn log_stranger(&self, request: &Request<'_>) {
        if self.strangers.fetch_add(1, Ordering::Relaxed) < STRANGERS_LOGGED {
            let method: String = request.method.read().chars().take(100).collect();
            let id: String = request.id().text().chars().take(100).collect();
            let (method, id) = (method.escape_debug(), id.escape_debug());
            tracing::warn!("[Server] Unauthorized request: method={method}, id={id}");
        }
    }
}
