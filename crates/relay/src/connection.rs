//! One client connection: reads request lines, checks them in the contract's order, and dispatches to the methods.

use crate::follow::Followers;
use crate::methods::{self, Method, Namespace};
use crate::process_queue::ProcessQueues;
use crate::server::Relay;
use crate::wire::{
    Failure, Id, LINE_BYTES_MAX, Outcome, Request, UNAUTHORIZED, append_failure, append_reply, append_result,
};
use outpost_wire::jsonrpc::{INVALID_REQUEST, METHOD_NOT_FOUND, PARSE};
use outpost_wire::{Closed, Line, Lines, Load, Outbox, Weight};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;

/// Concurrent `files.read` requests of one connection. A large file takes all permits.
pub(crate) const READS_MAX: u32 = 4;
/// Replies that are ready at the same time are sent in one write, up to about this size.
const REPLY_BATCH_BYTES: usize = 64 * 1024;
/// Lines that a connection handles before it yields to other tasks.
const LINES_BEFORE_YIELD: u32 = 256;
/// Unauthorized requests that are logged per connection.
const UNAUTHORIZED_LOG_MAX: u32 = 10;

/// The state of a connection that its requests share.
pub(crate) struct Connection {
    pub(crate) relay: Arc<Relay>,
    pub(crate) outbox: Outbox,
    pub(crate) followers: Followers,
    pub(crate) queues: ProcessQueues,
    /// Permits of `files.read`, held until the reply is sent: they bound the memory that a slow client can pin.
    pub(crate) read_permits: Arc<Semaphore>,
    load: Load,
    unauthorized: AtomicU32,
    has_received_line: AtomicBool,
}

/// An accepted request without a reply yet.
pub(crate) struct PendingRequest {
    pub(crate) connection: Arc<Connection>,
    id: Id<'static>,
    received_at: Instant,
    namespace: Namespace,
    weight: Weight,
}

impl PendingRequest {
    pub(crate) async fn reply(self, outcome: Outcome) {
        let _peer_gone = self.connection.outbox.send(|out| self.append_reply(out, &outcome)).await;
    }

    /// Runs `method` on a blocking thread once a permit is free, and replies with its outcome.
    pub(crate) fn run_blocking(
        self,
        permits: Arc<Semaphore>,
        method: impl FnOnce() -> Outcome + Send + 'static,
    ) {
        tokio::spawn(async move {
            let permit = permits.acquire_owned().await;
            let outcome = tokio::task::spawn_blocking(method).await;
            drop(permit);
            self.reply(outcome.unwrap_or_else(|error| Err(Failure::internal(error.to_string())))).await;
        });
    }

    /// The request's bytes are no longer in memory: releases their share of the load limit.
    pub(crate) fn release_weight(&mut self) {
        self.weight.shrink();
    }

    pub(crate) fn append_reply(&self, out: &mut Vec<u8>, outcome: &Outcome) {
        append_reply(out, &self.id, outcome);
        self.connection.relay.metrics.request_completed(self.namespace, self.received_at.elapsed());
    }
}

/// The result of dispatching a request line.
enum Dispatched {
    /// The reply is in the buffer, or a method is running.
    Accepted,
    /// The load limit has no room for the line. Dispatch it again with a weight.
    NeedsWeight,
    /// `server.shutdown`: stop the daemon without a reply.
    Shutdown,
}

pub(crate) async fn serve(stream: UnixStream, relay: Arc<Relay>) {
    relay.metrics.connection_opened();
    tracing::debug!("[Server] New connection from: @");
    let Ok((reader, writer)) = outpost_wire::split(stream) else { return };
    let (outbox, writing) = Outbox::new(writer);
    let writing = tokio::spawn(writing);
    let connection = Arc::new(Connection {
        relay: relay.clone(),
        outbox: outbox.clone(),
        followers: Followers::default(),
        queues: ProcessQueues::default(),
        read_permits: Arc::new(Semaphore::new(READS_MAX as usize)),
        load: relay.load.connection(),
        unauthorized: AtomicU32::new(0),
        has_received_line: AtomicBool::new(false),
    });
    // The reader is a task of its own, so a request wakes only that task and not the select below.
    let mut reading = {
        let connection = connection.clone();
        tokio::spawn(async move { connection.read(Lines::new(reader, LINE_BYTES_MAX)).await })
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
    relay.metrics.connection_closed(connection.has_received_line.load(Ordering::Relaxed));
    tracing::debug!("[Server] Connection closed: @");
}

impl Connection {
    async fn read(self: &Arc<Connection>, mut lines: Lines) {
        let mut replies = Vec::new();
        let mut lines_since_yield = 0;
        loop {
            let (line, is_last) = match lines.next().await {
                Ok(Line::Whole(line)) => (line, false),
                // Like Go's bufio.Scanner, accept a last line without a newline.
                Ok(Line::Truncated(line)) => (line, true),
                Ok(Line::TooLong) => break,
                Ok(Line::Eof) => return self.drain_after_eof().await,
                Err(_) => return,
            };
            self.has_received_line.store(true, Ordering::Relaxed);
            // Like Go's bufio.ScanLines, drop a trailing carriage return.
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            match self.handle_line(line, &mut replies).await {
                Ok(true) => {}
                Ok(false) => {
                    self.relay.request_shutdown();
                    // Keep the connection open until the socket is removed: its end signals the client that the daemon
                    // has stopped.
                    return self.relay.closing().await;
                }
                Err(Closed) => return,
            }
            let can_batch = replies.len() <= REPLY_BATCH_BYTES && lines.has_line() && !is_last;
            if !can_batch && self.flush(&mut replies).await.is_err() {
                return;
            }
            if is_last {
                return self.drain_after_eof().await;
            }
            lines_since_yield += 1;
            if lines_since_yield >= LINES_BEFORE_YIELD {
                lines_since_yield = 0;
                tokio::task::yield_now().await;
            }
        }
        // "1048576+ closes the connection with no reply". Earlier requests still get their replies.
        let _peer_gone = self.flush(&mut replies).await;
        self.finish_requests().await;
    }

    /// Handles a line and waits for the load limit if necessary. Returns false if the daemon must stop. Immediate replies
    /// are appended to `replies`.
    async fn handle_line(self: &Arc<Connection>, line: &[u8], replies: &mut Vec<u8>) -> Result<bool, Closed> {
        if line.is_empty() {
            return Ok(true);
        }
        let mut dispatched = self.dispatch(line, None, replies);
        if let Dispatched::NeedsWeight = dispatched {
            // Send the finished replies before waiting.
            self.flush(replies).await?;
            let weight = self.load.take(line.len(), &self.outbox).await.ok_or(Closed)?;
            dispatched = self.dispatch(line, Some(weight), replies);
        }
        Ok(!matches!(dispatched, Dispatched::Shutdown))
    }

    async fn flush(&self, replies: &mut Vec<u8>) -> Result<(), Closed> {
        if !replies.is_empty() {
            self.outbox.send(|out| out.append(replies)).await?;
            let _stopping = self.relay.engine.serving().await;
        }
        Ok(())
    }

    /// Waits until every request has its reply and the outbox is empty.
    async fn finish_requests(&self) {
        self.load.finished().await;
        self.outbox.drained().await;
    }

    /// The client has shut down its sending side and may still read. Replies to its requests and streams its processes
    /// until they exit.
    async fn drain_after_eof(&self) {
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

    /// "A request is checked in the order parse → auth → version → method → params". Without a `weight`, tries to take
    /// one from the load limit.
    fn dispatch(
        self: &Arc<Connection>,
        line: &[u8],
        weight: Option<Weight>,
        replies: &mut Vec<u8>,
    ) -> Dispatched {
        let Some(request) = Request::parse(line) else {
            append_failure(replies, &Id::Null, &Failure::new(PARSE, "Parse error"));
            return Dispatched::Accepted;
        };
        let mut refuse = |code, message: String| {
            append_failure(replies, &request.id(), &Failure::new(code, message));
            Dispatched::Accepted
        };
        if !self.relay.is_authorized(&request.auth.decode()) {
            self.log_unauthorized(&request);
            return refuse(UNAUTHORIZED, "Unauthorized: invalid or missing auth token".into());
        }
        if !request.has_version_2() {
            return refuse(INVALID_REQUEST, "Invalid JSON-RPC version".into());
        }
        let method = match Method::parse(&request.method.decode()) {
            Ok(method) => method,
            Err(message) => return refuse(METHOD_NOT_FOUND, message),
        };
        let accept = |namespace| {
            let weight = weight.or_else(|| self.load.try_take(line.len()))?;
            let (connection, id, received_at) = (self.clone(), request.id().to_owned(), Instant::now());
            Some(PendingRequest { connection, id, received_at, namespace, weight })
        };
        let begun = match method {
            Method::Server(method) => {
                let Some(append) = method.append_result() else { return Dispatched::Shutdown };
                append_result(replies, &request.id(), |out| append(&self.relay, out));
                self.relay.metrics.request_completed(Namespace::Server, Duration::ZERO);
                return Dispatched::Accepted;
            }
            Method::Files(method) => {
                accept(Namespace::Files).map(|pending| methods::files::begin(method, &request, pending))
            }
            Method::Git(method) => {
                accept(Namespace::Git).map(|pending| methods::git::begin(method, &request, pending))
            }
            Method::Process(method) => {
                accept(Namespace::Process).map(|pending| methods::process::begin(method, &request, pending))
            }
        };
        match begun {
            None => return Dispatched::NeedsWeight,
            Some(Ok(())) => {}
            Some(Err(failure)) => append_failure(replies, &request.id(), &failure),
        }
        Dispatched::Accepted
    }

    /// Escapes and truncates the client's text: it must not control the terminal of a log reader or fill the disk.
    fn log_unauthorized(&self, request: &Request<'_>) {
        if self.unauthorized.fetch_add(1, Ordering::Relaxed) < UNAUTHORIZED_LOG_MAX {
            let method: String = request.method.decode().chars().take(100).collect();
            let id: String = request.id().text().chars().take(100).collect();
            let (method, id) = (method.escape_debug(), id.escape_debug());
            tracing::warn!("[Server] Unauthorized request: method={method}, id={id}");
        }
    }
}
