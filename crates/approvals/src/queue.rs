//! What waits for a human: questions in order, who watches them, and how each was settled.

use crate::audit::Event;
use crate::display::Newlines;
use crate::grants;
use crate::ledger::{Books, Ledger};
use crate::moment::{Moment, unix_ms};
use crate::question::{Decision, Outcome, Question, Remember};
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

/// The longest note and the longest time that an approver may give.
const NOTE_CHARS_MAX: usize = 500;
const TIMES_MAX: u32 = 1000;
const MINUTES_MAX: u32 = 24 * 60;

pub(crate) const SCHEMA: &str = "
    create table if not exists questions (
        id text primary key,
        face text not null,
        body text not null,
        boot_id text not null,
        deadline_boot_ns integer not null,
        outcome text
    ) strict;
";

/// All questions of the daemon.
#[derive(Clone)]
pub struct Queue {
    ledger: Ledger,
    inner: Arc<Inner>,
}

struct Inner {
    waiting: Mutex<BTreeMap<String, Waiting>>,
    events: broadcast::Sender<Answer>,
}

struct Waiting {
    question: Question,
    deadline: watch::Sender<Instant>,
    outcome: watch::Sender<Option<Outcome>>,
    /// Somebody's decision is being written down: it is too late for another.
    settling: bool,
    shown: bool,
}

/// A question that has been asked.
pub struct Asked {
    id: String,
    deadline: watch::Receiver<Instant>,
    outcome: watch::Receiver<Option<Outcome>>,
}

impl Asked {
    pub fn id(&self) -> &str {
        &self.id
    }

    /// How it ended. `None` when the time has run out: then [`Queue::expire`] says whether that stands.
    pub async fn outcome(&mut self) -> Option<Outcome> {
        loop {
            let deadline = *self.deadline.borrow_and_update();
            let settled = tokio::time::timeout_at(deadline, self.outcome.wait_for(Option::is_some));
            tokio::select! {
                settled = settled => return settled.ok()?.ok()?.clone(),
                Ok(()) = self.deadline.changed() => {}
            }
        }
    }
}

/// A question of an earlier worker.
pub struct Remembered {
    pub question: Question,
    pub deadline: Moment,
    /// It was settled, but whoever asked may not have got to know.
    pub outcome: Option<Outcome>,
}

impl Queue {
    pub fn new(ledger: Ledger) -> Queue {
        let inner = Inner { waiting: Mutex::default(), events: broadcast::Sender::new(EVENTS_MAX) };
        Queue { ledger, inner: Arc::new(inner) }
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

    /// The questions of a face that earlier workers have left in the books.
    pub fn remembered(books: &mut Books<'_>, face: &str) -> Result<Vec<Remembered>> {
        let sql =
            "select body, boot_id, deadline_boot_ns, outcome from questions where face = ? order by rowid";
        let rows = books.rows("read questions", sql, (face,), |row| {
            let texts: (String, String, i64, Option<String>) = row.try_into()?;
            Ok(texts)
        })?;
        let read = |(body, boot_id, boot_ns, outcome): (String, String, i64, Option<String>)| {
            let deadline = Moment { boot_id, boot_ns: boot_ns.cast_unsigned() };
            let question = serde_json::from_str(&body).ok()?;
            let outcome = outcome.and_then(|outcome| serde_json::from_str(&outcome).ok());
            Some(Remembered { question, deadline, outcome })
        };
        Ok(rows.into_iter().filter_map(read).collect())
    }

    /// Shows a question that is in the books to whoever watches.
    pub fn ask(&self, question: Question, left: Duration) -> Asked {
        let (outcome, receiver) = watch::channel(None);
        let (deadline, until) = watch::channel(Instant::now() + left);
        let asked = Asked { id: question.id.clone(), deadline: until, outcome: receiver };
        let event = Answer::Asked { question: Box::new(question.clone()) };
        let waiting = Waiting { question, deadline, outcome, settling: false, shown: false };
        self.waiting().insert(asked.id.clone(), waiting);
        let _nobody_watches = self.inner.events.send(event);
        asked
    }

    /// Gives a question so much time from now on, and tells it with that; none when it does not wait any more.
    pub fn give_time(&self, id: &str, left: Duration) -> Option<Question> {
        let mut waiting = self.waiting();
        let waiting = waiting.get_mut(id).filter(|waiting| !waiting.settling)?;
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

    /// An approver's decision about what it has seen. The first one stands.
    pub async fn decide(&self, id: &str, digest: &str, decision: Decision, by: &str) -> Result<()> {
        let question = self.begin_settling(id, digest, &decision)?;
        let outcome = Outcome::Decided { decision: decision.clone(), by: by.to_owned() };
        let (id, by) = (id.to_owned(), by.to_owned());
        let written = self.write_outcome(question, outcome.clone(), move |books, question| {
            let data = json!({
                "question": question.id, "digest": question.digest, "allow": decision.allow,
                "note": decision.note, "remember": decision.remember, "by": by,
            });
            books.record(Event::Decided, &data)?;
            if let Some(remember) = decision.remember {
                grants::add(books, question, remember, &by)?;
            }
            books.must_last();
            Ok(())
        });
        let written = written.await;
        self.settle(&id, written.is_ok().then_some(outcome));
        written
    }

    /// Checks a decision and closes the question to others.
    fn begin_settling(&self, id: &str, digest: &str, decision: &Decision) -> Result<Question> {
        let mut waiting = self.waiting();
        let waiting = waiting.get_mut(id).filter(|waiting| !waiting.settling).ok_or_else(|| gone(id))?;
        if Instant::now() >= *waiting.deadline.borrow() {
            return Err(gone(id));
        }
        if waiting.question.digest != digest {
            return Err(Error::Refused(format!(
                "question {id} is about something else than what was decided; show it again"
            )));
        }
        if decision.note.chars().count() > NOTE_CHARS_MAX
            || crate::display::forbidden(&decision.note, Newlines::Refused).is_some()
        {
            return Err(Error::Refused(format!(
                "a note has at most {NOTE_CHARS_MAX} characters, none of them invisible"
            )));
        }
        match decision.remember {
            None => {}
            Some(_) if !decision.allow || !waiting.question.rememberable => {
                return Err(Error::Refused(format!("the answer to question {id} cannot be remembered")));
            }
            Some(Remember::Times(times)) if (1..=TIMES_MAX).contains(&times) => {}
            Some(Remember::Minutes(minutes)) if (1..=MINUTES_MAX).contains(&minutes) => {}
            Some(_) => {
                return Err(Error::Refused(format!(
                    "an answer is remembered for 1 to {TIMES_MAX} times or 1 to {MINUTES_MAX} minutes"
                )));
            }
        }
        waiting.settling = true;
        Ok(waiting.question.clone())
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
        let found = match self.waiting().get_mut(id) {
            Some(waiting) if waiting.settling => Err(waiting.outcome.subscribe()),
            Some(waiting) => {
                waiting.settling = true;
                Ok(Some(waiting.question.clone()))
            }
            None => Ok(None),
        };
        match found {
            Err(mut settled) => {
                let settled = settled.wait_for(Option::is_some).await;
                settled.ok().and_then(|settled| settled.clone()).unwrap_or(outcome)
            }
            Ok(None) => outcome,
            Ok(Some(question)) => {
                let written = match &outcome {
                    Outcome::Withdrawn => {
                        let left = move |books: &mut Books<'_>| {
                            Queue::asker_left(books, &question.id, &question.digest)
                        };
                        self.ledger.write(left).await
                    }
                    // What follows from it, whoever asked records.
                    other => self.write_outcome(question, other.clone(), |_, _| Ok(())).await,
                };
                if let Err(error) = written {
                    tracing::warn!(%error, "the end of a question is not recorded");
                }
                self.settle(id, Some(outcome.clone()));
                outcome
            }
        }
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
                    waiting.settling = false;
                }
            }
            Some(outcome) => {
                if let Some(settled) = waiting.remove(id) {
                    settled.outcome.send_replace(Some(outcome.clone()));
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

fn gone(id: &str) -> Error {
    let shown = crate::display::claim(id, 64);
    Error::Refused(format!("no question {shown} waits: it was answered, withdrawn, or its time has run out"))
}

/// As it stands in the books.
fn outcome_text(outcome: &Outcome) -> Result<String> {
    serde_json::to_string(outcome).map_err(|error| Error::Refused(error.to_string()))
}
