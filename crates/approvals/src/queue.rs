//! What waits for a human: questions in order, their watchers, and how each was settled.

mod deciding;

use crate::audit::Event;
use crate::ledger::{Books, Ledger};
use crate::moment::{Moment, unix_ms};
use crate::question::{Outcome, Question};
use crate::trust::Trust;
use crate::wire::Answer;
use crate::{Error, Result};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

/// Events that one who watches may be behind; further behind, it is told everything anew.
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

/// All questions of the daemon.
#[derive(Clone)]
pub struct Queue {
    ledger: Ledger,
    trust: Arc<Trust>,
    inner: Arc<Inner>,
}

struct Inner {
    waiting: Mutex<BTreeMap<String, Waiting>>,
    events: broadcast::Sender<Answer>,
}

struct Waiting {
    question: Question,
    deadline: watch::Sender<Instant>,
    state: watch::Sender<State>,
    shown: bool,
}

#[derive(Clone, Debug)]
enum State {
    Open,
    /// A decision or an end is being written down: it is too late for another.
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

impl Waiting {
    fn is_open(&self) -> bool {
        matches!(*self.state.borrow(), State::Open)
    }
}

/// The client that submits a decision.
pub struct Submitter {
    /// How the audit names it.
    pub name: String,
    /// As the kernel has it: its word may count without a signature.
    pub uid: Option<u32>,
}

/// A question that has been asked.
pub struct Asked {
    id: String,
    deadline: watch::Receiver<Instant>,
    state: watch::Receiver<State>,
}

impl Asked {
    pub fn id(&self) -> &str {
        &self.id
    }

    /// How it ended. `None` when the time has run out: then [`Queue::expire`] says whether that stands.
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

/// A question of an earlier worker.
pub struct Remembered {
    pub question: Question,
    pub deadline: Moment,
    /// It was settled, and the asking face may not have drawn the consequences. A decision without a proof that counts now is left out:
    /// the question is asked again.
    pub outcome: Option<Outcome>,
}

impl Queue {
    pub fn new(ledger: Ledger, trust: Arc<Trust>) -> Queue {
        let inner = Inner { waiting: Mutex::default(), events: broadcast::Sender::new(EVENTS_MAX) };
        Queue { ledger, trust, inner: Arc::new(inner) }
    }

    /// What decisions are checked against.
    pub fn trust(&self) -> &Arc<Trust> {
        &self.trust
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<String, Waiting>> {
        self.inner.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a question into the books, for a face that has more to write with it.
    pub fn enter(books: &mut Books<'_>, question: &Question, deadline: &Moment) -> Result<()> {
        let body = serde_json::to_string(question).map_err(|error| Error::Refused(error.to_string()))?;
        let values = (&question.id, &question.face, body, &deadline.boot_id, deadline.boot_ns.cast_signed());
        let sql = "insert into questions (id, face, body, boot_id, deadline_boot_ns) values (?, ?, ?, ?, ?)";
        books.execute("enter a question", sql, values).map(|_| ())
    }

    /// Writes down, once, that whoever asked has left.
    pub fn asker_left(books: &mut Books<'_>, id: &str, digest: &str) -> Result<()> {
        let text = outcome_text(&Outcome::Withdrawn)?;
        let sql = "update questions set outcome = ?1 where id = ?2 and outcome is not ?1";
        match books.execute("withdraw a question", sql, (text, id))? {
            0 => Ok(()),
            _ => books.record(Event::Withdrawn, &json!({ "question": id, "digest": digest })),
        }
    }

    /// Takes a question out of the books, once whoever asked has drawn its consequences.
    pub fn erase(books: &mut Books<'_>, id: &str) -> Result<()> {
        books.execute("erase a question", "delete from questions where id = ?", (id,)).map(|_| ())
    }

    /// The ids of a face's questions in the books.
    pub fn ids(books: &mut Books<'_>, face: &str) -> Result<Vec<String>> {
        books.rows("read questions", "select id from questions where face = ?", (face,), |row| row.get(0))
    }

    /// The questions of a face that earlier workers have left in the books.
    pub fn remembered(&self, books: &mut Books<'_>, face: &str) -> Result<Vec<Remembered>> {
        let sql =
            "select body, boot_id, deadline_boot_ns, outcome from questions where face = ? order by rowid";
        let rows = books.rows("read questions", sql, (face,), |row| {
            let texts: (String, String, i64, Option<String>) = row.try_into()?;
            Ok(texts)
        })?;
        let read = |(body, boot_id, boot_ns, outcome): (String, String, i64, Option<String>)| {
            let deadline = Moment { boot_id, boot_ns: boot_ns.cast_unsigned() };
            let question: Question = serde_json::from_str(&body).ok()?;
            let outcome = outcome.and_then(|outcome| serde_json::from_str(&outcome).ok());
            let outcome = outcome.filter(|outcome| self.counts(&question, outcome));
            Some(Remembered { question, deadline, outcome })
        };
        Ok(rows.into_iter().filter_map(read).collect())
    }

    /// Whether an outcome in the books counts.
    fn counts(&self, question: &Question, outcome: &Outcome) -> bool {
        let Outcome::Decided { decision, proof, .. } = outcome else { return true };
        let checked = match proof {
            None => Err("it has no signature".to_owned()),
            Some(proof) => self.trust.check(question, proof),
        };
        let checked = checked.and_then(|verified| match verified.statement.decision == *decision {
            true => Ok(()),
            false => Err("it is not what was signed".into()),
        });
        if let Err(why) = &checked {
            tracing::warn!(
                question = question.id,
                why,
                "a stored decision does not count; the question is asked again"
            );
        }
        checked.is_ok()
    }

    /// The question that is in the books under this id.
    pub fn stored(books: &mut Books<'_>, id: &str) -> Result<Option<Question>> {
        let sql = "select body from questions where id = ?";
        let found = books.rows("read a question", sql, (id,), |row| row.get::<_, String>(0))?;
        Ok(found.first().and_then(|body| serde_json::from_str(body).ok()))
    }

    /// Shows a question that is in the books to whoever watches.
    pub fn ask(&self, question: Question, left: Duration) -> Asked {
        let (state, receiver) = watch::channel(State::Open);
        let (deadline, until) = watch::channel(Instant::now() + left);
        let asked = Asked { id: question.id.clone(), deadline: until, state: receiver };
        let event = Answer::Asked { question: Box::new(question.clone()) };
        let waiting = Waiting { question, deadline, state, shown: false };
        self.waiting().insert(asked.id.clone(), waiting);
        let _nobody_watches = self.inner.events.send(event);
        asked
    }

    /// Gives a question so much time from now on, and tells it with that; none when it does not wait any more.
    pub fn give_time(&self, id: &str, left: Duration) -> Option<Question> {
        let mut waiting = self.waiting();
        let waiting = waiting.get_mut(id).filter(|waiting| waiting.is_open())?;
        waiting.deadline.send_replace(Instant::now() + left);
        let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        waiting.question.deadline_ms = unix_ms().saturating_add(left_ms);
        Some(waiting.question.clone())
    }

    /// Everything that waits, oldest first, and what happens from then on.
    pub fn watch(&self) -> (Vec<Question>, broadcast::Receiver<Answer>) {
        let waiting = self.waiting();
        let events = self.inner.events.subscribe();
        (in_order(&waiting), events)
    }

    pub fn list(&self) -> Vec<Question> {
        in_order(&self.waiting())
    }

    pub fn show(&self, id: &str) -> Result<Question> {
        match self.waiting().get(id) {
            Some(waiting) => Ok(waiting.question.clone()),
            None => Err(gone(id)),
        }
    }

    /// When what has waited longest was asked, by the clock for people.
    pub fn oldest_ms(&self) -> Option<u64> {
        self.waiting().values().map(|waiting| waiting.question.asked_ms).min()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Records who has seen a question, the first time.
    pub async fn shown(&self, id: &str, by: &str) {
        let digest = match self.waiting().get_mut(id) {
            Some(waiting) if !waiting.shown => {
                waiting.shown = true;
                waiting.question.digest.clone()
            }
            _ => return,
        };
        let data = json!({ "question": id, "digest": digest, "to": by });
        let recorded = self.ledger.write(move |books| books.record(Event::Shown, &data)).await;
        if let Err(error) = recorded {
            tracing::warn!(%error, "who has seen a question is not recorded");
        }
    }

    /// Ends a question whose time has run out. An approver may have been faster: then what it said is returned.
    pub async fn expire(&self, id: &str) -> Outcome {
        self.end(id, Outcome::Expired).await
    }

    /// Ends a question whose asker has left.
    pub async fn withdraw(&self, id: &str) -> Outcome {
        self.end(id, Outcome::Withdrawn).await
    }

    /// Ends a question that nobody can be asked.
    pub async fn give_up(&self, id: &str, why: &str) -> Outcome {
        self.end(id, Outcome::Unanswerable { why: why.to_owned() }).await
    }

    async fn end(&self, id: &str, outcome: Outcome) -> Outcome {
        let question = loop {
            let mut settling = match self.waiting().get_mut(id) {
                None => return outcome,
                Some(waiting) if waiting.is_open() => {
                    waiting.state.send_replace(State::Settling);
                    break waiting.question.clone();
                }
                Some(waiting) => waiting.state.subscribe(),
            };
            // A decision that cannot be written down leaves the question open: then it ends as it was to.
            let settled = settling.wait_for(|state| !matches!(state, State::Settling)).await;
            if let Some(settled) = settled.ok().and_then(|state| state.outcome()) {
                return settled;
            }
        };
        let written = match &outcome {
            Outcome::Withdrawn => {
                let left =
                    move |books: &mut Books<'_>| Queue::asker_left(books, &question.id, &question.digest);
                self.ledger.write(left).await
            }
            // What follows from it, the asking face records.
            other => self.write_outcome(question, other.clone(), |_, _| Ok(())).await,
        };
        if let Err(error) = written {
            tracing::warn!(%error, "the end of a question is not recorded");
        }
        self.settle(id, Some(outcome.clone()));
        outcome
    }

    async fn write_outcome(
        &self,
        question: Question,
        outcome: Outcome,
        record: impl FnOnce(&mut Books<'_>, &Question) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let write = move |books: &mut Books<'_>| {
            let sql = "update questions set outcome = ? where id = ?";
            books.execute("settle a question", sql, (outcome_text(&outcome)?, &question.id))?;
            record(books, &question)
        };
        self.ledger.write(write).await
    }

    /// Tells everybody, or opens the question again when its outcome could not be written down.
    fn settle(&self, id: &str, outcome: Option<Outcome>) {
        let mut waiting = self.waiting();
        match outcome {
            None => {
                if let Some(waiting) = waiting.get_mut(id) {
                    waiting.state.send_replace(State::Open);
                }
            }
            Some(outcome) => {
                if let Some(settled) = waiting.remove(id) {
                    settled.state.send_replace(State::Settled(outcome.clone()));
                }
                let _nobody_watches = self.inner.events.send(Answer::Settled { id: id.to_owned(), outcome });
            }
        }
    }
}

fn in_order(waiting: &BTreeMap<String, Waiting>) -> Vec<Question> {
    let mut questions: Vec<Question> = waiting.values().map(|waiting| waiting.question.clone()).collect();
    questions.sort_by_key(|question| question.asked_ms);
    questions
}

pub(crate) fn gone(id: &str) -> Error {
    let shown = crate::display::claim(id, 64);
    Error::Refused(format!("no question {shown} waits: it was answered, withdrawn, or its time has run out"))
}

/// As it stands in the books.
fn outcome_text(outcome: &Outcome) -> Result<String> {
    serde_json::to_string(outcome).map_err(|error| Error::Refused(error.to_string()))
}

#[cfg(test)]
mod tests;
