//! Processes of CLIs that wait for the next message of their session, so that its turn need not wait for a start.

use crate::agents::{Mode, Task};
use crate::face::Face;
use crate::lines::Position;
use crate::session::Session;
use crate::{ending, starting};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// So many at once; the one that has waited longest makes room for another. A CLI takes hundreds of megabytes.
const KEPT_MAX: usize = 16;

/// A look at who has waited long enough, at least and at most this often.
const LOOK_MIN: Duration = Duration::from_millis(100);
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
    pub(crate) fn new(session: &Arc<Session>, process: u64, from: Position, said: u64, task: Chosen) -> Kept {
        Kept { session: session.clone(), process, from, said, task, since: Instant::now() }
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

/// The process that waits for this task. One that has other settings than the task, or another conversation, is ended.
pub(crate) async fn take(face: &Arc<Face>, session: &Session, task: &Task) -> Option<Kept> {
    let kept = face.kept.take(&session.id)?;
    let process = face.engine.find(&starting::key(session, kept.process)).await?;
    if task.keeps && process.status().exit().is_none() && kept.task == Chosen::by(task, task.sdk_id.clone()) {
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

/// Ends those that have waited for so long.
pub(crate) async fn end_idle(face: Arc<Face>, patience: Duration) {
    loop {
        tokio::time::sleep((patience / 4).clamp(LOOK_MIN, LOOK_MAX)).await;
        for kept in face.kept.take_idle(patience) {
            kept.end(&face).await;
        }
    }
}
