//! The warm pool: idle processes that wait for the next message of their session, so that its turn skips the start of
//! the CLI.

use super::launch;
use super::output::Output;
use super::output_lines::{LinePosition, LineSplitter};
use super::terminate::terminate;
use crate::agents::{Adapter, Mode, TurnRequest};
use crate::face::Face;
use crate::session::Session;
use outpost_engine::{Batch, Process, Stream};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of processes in the pool. A CLI takes hundreds of megabytes, so the longest idle one makes room for
/// another.
const WARM_MAX: usize = 16;

/// Bounds of the interval between checks for idle processes.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(250);
const CHECK_INTERVAL_MAX: Duration = Duration::from_secs(5);

/// An idle process.
pub(crate) struct WarmProcess {
    session: Arc<Session>,
    /// The turn that started the process, which is its key in the engine.
    pub(crate) process: u64,
    /// How far its output was read, and the offset of the next byte for its standard input.
    pub(crate) output_position: LinePosition,
    pub(crate) stdin_offset: u64,
    pub(crate) options: LaunchOptions,
    /// The adapter that parsed its output so far.
    adapter: Adapter,
    pub(crate) idle_since: Instant,
}

/// The options that a CLI takes only at its start.
#[derive(PartialEq, Eq)]
pub(crate) struct LaunchOptions {
    mode: Mode,
    model: Option<String>,
    conversation_id: Option<String>,
}

impl LaunchOptions {
    /// The options of a request, with the conversation that its turn ended with.
    pub(crate) fn of(request: &TurnRequest, conversation_id: Option<String>) -> LaunchOptions {
        LaunchOptions { mode: request.mode, model: request.model.clone(), conversation_id }
    }
}

impl WarmProcess {
    pub(crate) fn new(
        session: &Arc<Session>,
        process: u64,
        output_position: LinePosition,
        stdin_offset: u64,
        options: LaunchOptions,
        adapter: Adapter,
    ) -> WarmProcess {
        WarmProcess {
            session: session.clone(),
            process,
            output_position,
            stdin_offset,
            options,
            adapter,
            idle_since: Instant::now(),
        }
    }

    /// Reads past the output since the end of its last turn, which is no answer to the next message. Returns whether
    /// the CLI is idle: the result of unfinished work would end the next turn.
    async fn skip_output(&mut self, process: &Process, request: &TurnRequest) -> bool {
        let mut lines = LineSplitter::new(self.output_position, String::new());
        let mut subscription = process.subscribe(self.output_position.after);
        let mut batch = Batch::default();
        let (_, until) = process.sequence();
        while subscription.last_seen() < until {
            if subscription.read(&mut batch).await.is_err() || batch.is_empty() {
                return false;
            }
            let mut discarded = Output::detached(0);
            for (frame, bytes) in batch.frames() {
                if frame.stream == Stream::Stderr {
                    lines.stderr(frame.seq, bytes);
                    continue;
                }
                let mut rest = lines.begin(bytes);
                while let Some((line, left)) = lines.next(rest) {
                    rest = left;
                    self.adapter.on_line(&line.unwrap_or_default(), request, &mut discarded);
                }
                lines.end(frame.seq, rest);
            }
        }
        self.output_position = lines.position();
        !self.adapter.is_busy() && !lines.is_open()
    }

    async fn end(self, face: &Face) {
        if let Some(process) = face.engine.find(&launch::key(&self.session, self.process)).await {
            terminate(&process).await;
        }
    }
}

/// The idle processes by session id.
#[derive(Default)]
pub(crate) struct WarmPool(Mutex<HashMap<String, WarmProcess>>);

impl WarmPool {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, WarmProcess>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a process. Returns the one that it replaces or that exceeds the limit.
    fn put(&self, warm: WarmProcess) -> Option<WarmProcess> {
        let mut pool = self.lock();
        let id = warm.session.id.clone();
        let replaced = pool.insert(id, warm);
        if pool.len() <= WARM_MAX {
            return replaced;
        }
        let oldest = pool.iter().min_by_key(|(_, warm)| warm.idle_since).map(|(id, _)| id.clone());
        oldest.and_then(|id| pool.remove(&id))
    }

    fn take(&self, id: &str) -> Option<WarmProcess> {
        self.lock().remove(id)
    }

    fn take_idle(&self, idle_max: Duration) -> Vec<WarmProcess> {
        let mut pool = self.lock();
        pool.extract_if(|_, warm| warm.idle_since.elapsed() >= idle_max).map(|(_, warm)| warm).collect()
    }
}

/// Adds the process of a finished turn to the pool.
pub(crate) fn keep(face: &Arc<Face>, warm: WarmProcess) {
    if let Some(excess) = face.warm_pool.put(warm) {
        let face = face.clone();
        tokio::spawn(async move { excess.end(&face).await });
    }
}

/// Takes the session's idle process if it fits the request. Ends it if its options or its conversation differ, or if it
/// is not idle.
pub(crate) async fn take(face: &Arc<Face>, session: &Session, request: &TurnRequest) -> Option<WarmProcess> {
    let mut warm = face.warm_pool.take(&session.id)?;
    let process = face.engine.find(&launch::key(session, warm.process)).await?;
    let is_suitable =
        request.keep_process && warm.options == LaunchOptions::of(request, request.conversation_id.clone());
    if is_suitable && process.status().exit().is_none() && warm.skip_output(&process, request).await {
        return Some(warm);
    }
    warm.end(face).await;
    None
}

/// Ends the idle process of a session.
pub(crate) async fn end(face: &Face, session: &Session) {
    if let Some(warm) = face.warm_pool.take(&session.id) {
        warm.end(face).await;
    }
}

/// Ends the processes that were idle for longer than the operator's limit.
pub(crate) async fn end_idle(face: Arc<Face>) {
    loop {
        let idle_max = face.settings().claude_keep_alive.unwrap_or_default();
        tokio::time::sleep((idle_max / 4).clamp(CHECK_INTERVAL_MIN, CHECK_INTERVAL_MAX)).await;
        for warm in face.warm_pool.take_idle(idle_max) {
            warm.end(&face).await;
        }
    }
}
