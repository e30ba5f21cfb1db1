//! The queue of pending questions, their watchers and their outcomes.

mod decide;

use crate::question::{Outcome, Question};
use crate::verifier::Verifier;
use crate::wire::ServerMessage;
use crate::{Error, Result};
use outpost_ledger::audit::Event;
use outpost_ledger::{BootInstant, unix_ms};
use outpost_ledger::{Ledger, LedgerTx};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

/// Events buffered for each watcher. A watcher that lags further behind gets a snapshot.
const EVENTS_MAX: usize = 256;

pub(crate) const SCHEMA: &str = "
    create table if not exists questions (
        id text primary key,
        face text not null,
        body text not null,
        boot_id text not null,
        deadline_boot_ns integer not null,
        outcome text
    ) strict;
    create table if not exists receipts (
        statement text primary key,
        until_ms integer not null
    ) strict;
";

/// The pending questions of the daemon. Cheap to clone.
#[derive(Clone)]
pub struct Queue {
    ledger: Ledger,
    verifier: Arc<Verifier>,
    inner: Arc<Inner>,
}

struct Inner {
    entries: Mutex<BTreeMap<String, Entry>>,
    events: broadcast::Sender<ServerMessage>,
}

struct Entry {
    question: Question,
    deadline: watch::Sender<Instant>,
    state: watch::Sender<State>,
    shown: bool,
}

#[derive(Clone, Debug)]
enum State {
    Open,
    /// An outcome is being written to the ledger. No other outcome is accepted.
    Settling,
    Settled(Outcome),
}

impl State {
    fn is_settled(&self) -> bool {
        matches!(self, State::Settled(_))
    }

    fn outcome(&self) -> Option<Outcome> {
        match self {
            State::Settled(outcome) => Some(outcome.clone()),
            _ => None,
        }
    }
}

impl Entry {
    fn is_open(&self) -> bool {
        matches!(*self.state.borrow(), State::Open)
    }
}

/// The client that submits a decision.
pub struct Submitter {
    /// The client's name in the audit chain.
    pub name: String,
    /// The peer's uid from the kernel. A trusted uid needs no signature.
    pub uid: Option<u32>,
}

/// A published question.
pub struct PendingQuestion {
    id: String,
    deadline: watch::Receiver<Instant>,
    state: watch::Receiver<State>,
}

impl PendingQuestion {
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Waits for the outcome. Returns `None` at the deadline; the caller then calls [`Queue::expire`].
    pub async fn outcome(&mut self) -> Option<Outcome> {
        loop {
            let deadline = *self.deadline.borrow_and_update();
            let settled = tokio::time::timeout_at(deadline, self.state.wait_for(State::is_settled));
            tokio::select! {
                settled = settled => return settled.ok()?.ok()?.outcome(),
                Ok(()) = self.deadline.changed() => {}
            }
        }
    }
}

/// A question that an earlier worker left in the ledger.
pub struct StoredQuestion {
    pub question: Question,
    pub deadline: BootInstant,
    /// Set if the question was settled and the face may not have acted on it. A decision without a valid proof
    /// is dropped, so that the question is asked again.
    pub outcome: Option<Outcome>,
}

impl Queue {
    pub fn new(ledger: Ledger, verifier: Arc<Verifier>) -> Queue {
        let inner = Inner { entries: Mutex::default(), events: broadcast::Sender::new(EVENTS_MAX) };
        Queue { ledger, verifier, inner: Arc::new(inner) }
    }

    /// The verifier of decisions.
    pub fn verifier(&self) -> &Arc<Verifier> {
        &self.verifier
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.inner.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a question in the face's transaction.
    pub fn insert(tx: &mut LedgerTx<'_>, question: &Question, deadline: &BootInstant) -> Result<()> {
        let body = serde_json::to_string(question).map_err(|error| Error::Refused(error.to_string()))?;
        let values = (&question.id, &question.face, body, &deadline.boot_id, deadline.boot_ns.cast_signed());
        let sql = "insert into questions (id, face, body, boot_id, deadline_boot_ns) values (?, ?, ?, ?, ?)";
        tx.execute("insert a question", sql, values).map(|_| ())
    }

    /// Records once that the client that asked has disconnected.
    pub fn record_withdrawal(tx: &mut LedgerTx<'_>, id: &str, digest: &str) -> Result<()> {
        let text = encode_outcome(&Outcome::Withdrawn)?;
        let sql = "update questions set outcome = ?1 where id = ?2 and outcome is not ?1";
        match tx.execute("withdraw a question", sql, (text, id))? {
            0 => Ok(()),
            _ => tx.record(Event::Withdrawn, &json!({ "question": id, "digest": digest })),
        }
    }

    /// Deletes a question from the ledger, after the face has acted on its outcome.
    pub fn delete(tx: &mut LedgerTx<'_>, id: &str) -> Result<()> {
        tx.execute("delete a question", "delete from questions where id = ?", (id,)).map(|_| ())
    }

    /// The ids of a face's stored questions.
    pub fn ids(tx: &mut LedgerTx<'_>, face: &str) -> Result<Vec<String>> {
        tx.rows("read questions", "select id from questions where face = ?", (face,), |row| row.get(0))
    }

    /// Loads the questions that earlier workers left in the ledger.
    pub fn load(&self, tx: &mut LedgerTx<'_>, face: &str) -> Result<Vec<StoredQuestion>> {
        let sql =
            "select body, boot_id, deadline_boot_ns, outcome from questions where face = ? order by rowid";
        let rows = tx.rows("read questions", sql, (face,), |row| {
            let texts: (String, String, i64, Option<String>) = row.try_into()?;
            Ok(texts)
        })?;
        let read = |(body, boot_id, boot_ns, outcome): (String, String, i64, Option<String>)| {
            let deadline = BootInstant { boot_id, boot_ns: boot_ns.cast_unsigned() };
            let question: Question = serde_json::from_str(&body).ok()?;
            let outcome = outcome.and_then(|outcome| serde_json::from_str(&outcome).ok());
            let outcome = outcome.filter(|outcome| self.is_outcome_valid(&question, outcome));
            Some(StoredQuestion { question, deadline, outcome })
        };
        Ok(rows.into_iter().filter_map(read).collect())
    }

    /// Whether a stored outcome has a valid proof.
    fn is_outcome_valid(&self, question: &Question, outcome: &Outcome) -> bool {
        let Outcome::Decided { decision, proof, .. } = outcome else { return true };
        let checked = match proof {
            None => Err("it has no signature".to_owned()),
            Some(proof) => self.verifier.check(question, proof).map_err(|why| why.to_string()),
        };
        let checked = checked.and_then(|verified| match verified.statement.decision == *decision {
            true => Ok(()),
            false => Err("it differs from the signed decision".into()),
        });
        if let Err(why) = &checked {
            tracing::warn!(
                question = question.id,
                why,
                "a stored decision is not valid; the question is asked again"
            );
        }
        checked.is_ok()
    }

    /// Loads one stored question.
    pub fn find(tx: &mut LedgerTx<'_>, id: &str) -> Result<Option<Question>> {
        let sql = "select body from questions where id = ?";
        let found = tx.rows("read a question", sql, (id,), |row| row.get::<_, String>(0))?;
        Ok(found.first().and_then(|body| serde_json::from_str(body).ok()))
    }

    /// Publishes a stored question to all watchers.
    pub fn publish(&self, question: Question, left: Duration) -> PendingQuestion {
        let (state, receiver) = watch::channel(State::Open);
        let (deadline, until) = watch::channel(Instant::now() + left);
        let asked = PendingQuestion { id: question.id.clone(), deadline: until, state: receiver };
        let event = ServerMessage::Asked { question: Box::new(question.clone()) };
        let entry = Entry { question, deadline, state, shown: false };
        self.entries().insert(asked.id.clone(), entry);
        let _no_watchers = self.inner.events.send(event);
        asked
    }

    /// Sets the deadline to `left` from now and returns the updated question. Returns `None` if the question is
    /// no longer open.
    pub fn reset_deadline(&self, id: &str, left: Duration) -> Option<Question> {
        let mut entries = self.entries();
        let entry = entries.get_mut(id).filter(|entry| entry.is_open())?;
        entry.deadline.send_replace(Instant::now() + left);
        let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        entry.question.deadline_ms = unix_ms().saturating_add(left_ms);
        Some(entry.question.clone())
    }

    /// Returns all pending questions, oldest first, and subscribes to the events after them.
    pub fn watch(&self) -> (Vec<Question>, broadcast::Receiver<ServerMessage>) {
        let entries = self.entries();
        let events = self.inner.events.subscribe();
        (sorted_by_age(&entries), events)
    }

    pub fn list(&self) -> Vec<Question> {
        sorted_by_age(&self.entries())
    }

    pub fn show(&self, id: &str) -> Result<Question> {
        match self.entries().get(id) {
            Some(entry) => Ok(entry.question.clone()),
            None => Err(not_pending(id)),
        }
    }

    /// The `asked_ms` of the oldest pending question.
    pub fn oldest_ms(&self) -> Option<u64> {
        self.entries().values().map(|entry| entry.question.asked_ms).min()
    }

    pub fn len(&self) -> usize {
        self.entries().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Records in the audit chain which client saw a question first.
    pub async fn record_shown(&self, id: &str, by: &str) {
        let digest = match self.entries().get_mut(id) {
            Some(entry) if !entry.shown => {
                entry.shown = true;
                entry.question.digest.clone()
            }
            _ => return,
        };
        let data = json!({ "question": id, "digest": digest, "to": by });
        let recorded = self.ledger.transact(move |tx| tx.record(Event::Shown, &data)).await;
        if let Err(error) = recorded {
            tracing::warn!(%error, "cannot record that a question was shown");
        }
    }

    /// Settles a question at its deadline. Returns the decision instead, if one was accepted first.
    pub async fn expire(&self, id: &str) -> Outcome {
        self.finish(id, Outcome::Expired).await
    }

    /// Settles a question whose client has disconnected.
    pub async fn withdraw(&self, id: &str) -> Outcome {
        self.finish(id, Outcome::Withdrawn).await
    }

    /// Settles a question that cannot be shown to an approver.
    pub async fn mark_unanswerable(&self, id: &str, why: &str) -> Outcome {
        self.finish(id, Outcome::Unanswerable { why: why.to_owned() }).await
    }

    async fn finish(&self, id: &str, outcome: Outcome) -> Outcome {
        let question = loop {
            let mut settling = match self.entries().get_mut(id) {
                None => return outcome,
                Some(entry) if entry.is_open() => {
                    entry.state.send_replace(State::Settling);
                    break entry.question.clone();
                }
                Some(entry) => entry.state.subscribe(),
            };
            // A decision that cannot be written leaves the question open. Then this outcome applies.
            let settled = settling.wait_for(|state| !matches!(state, State::Settling)).await;
            if let Some(settled) = settled.ok().and_then(|state| state.outcome()) {
                return settled;
            }
        };
        let written = match &outcome {
            Outcome::Withdrawn => {
                let left =
                    move |tx: &mut LedgerTx<'_>| Queue::record_withdrawal(tx, &question.id, &question.digest);
                self.ledger.transact(left).await
            }
            // The asking face records the consequences.
            other => self.write_outcome(question, other.clone(), |_, _| Ok(())).await,
        };
        if let Err(error) = written {
            tracing::warn!(%error, "cannot record the outcome of a question");
        }
        self.settle(id, Some(outcome.clone()));
        outcome
    }

    async fn write_outcome(
        &self,
        question: Question,
        outcome: Outcome,
        record: impl FnOnce(&mut LedgerTx<'_>, &Question) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let write = move |tx: &mut LedgerTx<'_>| {
            let sql = "update questions set outcome = ? where id = ?";
            tx.execute("settle a question", sql, (encode_outcome(&outcome)?, &question.id))?;
            record(tx, &question)
        };
        self.ledger.transact(write).await
    }

    /// Publishes the outcome, or reopens the question if the outcome could not be written.
    fn settle(&self, id: &str, outcome: Option<Outcome>) {
        let mut entries = self.entries();
        match outcome {
            None => {
                if let Some(entry) = entries.get_mut(id) {
                    entry.state.send_replace(State::Open);
                }
            }
            Some(outcome) => {
                if let Some(settled) = entries.remove(id) {
                    settled.state.send_replace(State::Settled(outcome.clone()));
                }
                let _no_watchers =
                    self.inner.events.send(ServerMessage::Settled { id: id.to_owned(), outcome });
            }
        }
    }
}

fn sorted_by_age(entries: &BTreeMap<String, Entry>) -> Vec<Question> {
    let mut questions: Vec<Question> = entries.values().map(|entry| entry.question.clone()).collect();
    questions.sort_by_key(|question| question.asked_ms);
    questions
}

pub(crate) fn not_pending(id: &str) -> Error {
    let shown = crate::display::escape_untrusted(id, 64);
    Error::Refused(format!("no question {shown} is pending: it was answered or withdrawn, or it has expired"))
}

fn encode_outcome(outcome: &Outcome) -> Result<String> {
    serde_json::to_string(outcome).map_err(|error| Error::Refused(error.to_string()))
}

#[cfg(test)]
mod tests;
