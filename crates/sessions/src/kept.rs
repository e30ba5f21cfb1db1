//! Processes of CLIs that wait for the next message of their session, so that its turn need not wait for a start.

use crate::agents::{Agent, Mode, Task};
use crate::face::Face;
use crate::lines::{Lines, Position};
use crate::output::Output;
use crate::session::Session;
use crate::{ending, starting};
use outpost_engine::{Batch, Process, Stream};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// So many at once; the one that has waited longest makes room for another. A CLI takes hundreds of megabytes.
const KEPT_MAX: usize = 16;

/// Between two looks at who has waited long enough.
const LOOK_MIN: Duration = Duration::from_millis(250);
const LOOK_MAX: Duration = Duration::from_secs(5);

/// One that waits.
pub(crate) struct Kept {
    session: Arc<Session>,
    /// The turn that it was started for, which it is known by.
    pub(crate) process: u64,
    /// How far it has been heard, and what it was told.
    pub(crate) from: Position,
    pub(crate) said: u64,
    pub(crate) task: Chosen,
    /// Who has heard it so far.
    agent: Agent,
    pub(crate) since: Instant,
}

/// What a CLI is told once, when it starts.
#[derive(PartialEq, Eq)]
pub(crate) struct Chosen {
    mode: Mode,
    model: Option<String>,
    conversation: Option<String>,
}

impl Chosen {
    /// By a task, which has gone on with or begun this conversation.
    pub(crate) fn by(task: &Task, conversation: Option<String>) -> Chosen {
        Chosen { mode: task.mode, model: task.model.clone(), conversation }
    }
}

impl Kept {
    pub(crate) fn new(
        session: &Arc<Session>,
        process: u64,
        from: Position,
        said: u64,
        task: Chosen,
        agent: Agent,
    ) -> Kept {
        Kept { session: session.clone(), process, from, said, task, agent, since: Instant::now() }
    }

    /// Passes over what it has said since its turn ended: that is no answer to the next message. Whether it is done; one
    /// that is in the middle of something would end the next turn with the result of that.
    async fn catch_up(&mut self, process: &Process, task: &Task) -> bool {
        let mut lines = Lines::new(self.from, String::new());
        let mut subscription = process.subscribe(self.from.after);
        let mut batch = Batch::default();
        let (_, until) = process.sequence();
        while subscription.last_seen() < until {
            if subscription.read(&mut batch).await.is_err() || batch.is_empty() {
                return false;
            }
            let mut unheard = Output::new(self.process, 0);
            for (frame, bytes) in batch.frames() {
                if frame.stream == Stream::Stderr {
                    lines.stderr(frame.seq, bytes);
                    continue;
                }
                let mut rest = lines.begin(bytes);
                while let Some((line, left)) = lines.next(rest) {
                    rest = left;
                    self.agent.hear(&line.unwrap_or_default(), task, &mut unheard);
                }
                lines.end(frame.seq, rest);
            }
        }
        self.from = lines.position();
        !self.agent.is_busy() && !lines.is_open()
    }

    async fn end(self, face: &Face) {
        if let Some(process) = face.engine.find(&starting::key(&self.session, self.process)).await {
            ending::end(&process).await;
        }
    }
}

/// Those that wait, by their sessions.
#[derive(Default)]
pub(crate) struct Waiting(Mutex<HashMap<String, Kept>>);

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts one there, and takes out the one there is no room for.
    fn put(&self, kept: Kept) -> Option<Kept> {
        let mut waiting = self.lock();
        let id = kept.session.id.clone();
        let replaced = waiting.insert(id, kept);
        if waiting.len() <= KEPT_MAX {
            return replaced;
        }
        let oldest = waiting.iter().min_by_key(|(_, kept)| kept.since).map(|(id, _)| id.clone());
        oldest.and_then(|id| waiting.remove(&id))
    }

    fn take(&self, id: &str) -> Option<Kept> {
        self.lock().remove(id)
    }

    fn take_idle(&self, patience: Duration) -> Vec<Kept> {
        let mut waiting = self.lock();
        waiting.extract_if(|_, kept| kept.since.elapsed() >= patience).map(|(_, kept)| kept).collect()
    }
}

/// The turn is over and its process stays for the next.
pub(crate) fn keep(face: &Arc<Face>, kept: Kept) {
    if let Some(one_too_many) = face.kept.put(kept) {
        let face = face.clone();
        tokio::spawn(async move { one_too_many.end(&face).await });
    }
}

/// The process that waits for this task. One that has other settings than the task or another conversation, or does
/// something that nobody asked for, is ended.
pub(crate) async fn take(face: &Arc<Face>, session: &Session, task: &Task) -> Option<Kept> {
    let mut kept = face.kept.take(&session.id)?;
    let process = face.engine.find(&starting::key(session, kept.process)).await?;
    let is_fit = task.keeps && kept.task == Chosen::by(task, task.sdk_id.clone());
    if is_fit && process.status().exit().is_none() && kept.catch_up(&process, task).await {
        return Some(kept);
    }
    kept.end(face).await;
    None
}

/// Ends the one of a session, if it has one.
pub(crate) async fn end(face: &Face, session: &Session) {
    if let Some(kept) = face.kept.take(&session.id) {
        kept.end(face).await;
    }
}

/// Ends those that have waited for as long as the operator has settled.
pub(crate) async fn end_idle(face: Arc<Face>) {
    loop {
        let patience = face.settings().claude_keep.unwrap_or_default();
        tokio::time::sleep((patience / 4).clamp(LOOK_MIN, LOOK_MAX)).await;
        for kept in face.kept.take_idle(patience) {
            kept.end(&face).await;
        }
    }
}
