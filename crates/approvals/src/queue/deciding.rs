//! A decision on its way: checked, written down, and settled, or refused with the reason.

use super::{Queue, State, Submitter, gone};
use crate::audit::Event;
use crate::display::Newlines;
use crate::grants;
use crate::moment::unix_ms;
use crate::question::{Decision, Outcome, Question, Remember};
use crate::signing::{Proof, Signed, Statement};
use crate::trust::Verified;
use crate::{Error, Result};
use serde_json::json;
use tokio::time::Instant;

/// The longest note and the longest time that an approver may give.
const NOTE_CHARS_MAX: usize = 500;
const TIMES_MAX: u32 = 1000;
const MINUTES_MAX: u32 = 24 * 60;

impl Queue {
    /// A decision that was submitted. The first one that counts stands; the same statement again gets the same receipt,
    /// which is returned with the question's id.
    pub async fn decide(&self, signed: Signed, by: &Submitter) -> Result<(String, String)> {
        let bytes = signed.statement_bytes().map_err(Error::Key)?;
        let statement = Statement::decode(&bytes).map_err(Error::Key)?;
        let id = statement.question.clone();
        let question = match self.show(&id) {
            Ok(question) => question,
            Err(gone) => return self.receipt_again(&signed, &statement, gone).await,
        };
        let proof = match signed.signature.is_empty() {
            false => Proof::signed(signed.clone()),
            true => self.trust.witness(&signed, by.uid.unwrap_or(u32::MAX))?,
        };
        let (trust, checked, about) = (self.trust.clone(), proof.clone(), question);
        let checked = tokio::task::spawn_blocking(move || trust.check_new(&about, &checked));
        let verified = checked.await.map_err(|_| Error::Stopped)??;
        if !self.ledger.has(verified.statement.head).await {
            return Err(Error::Key(
                "the statement names an audit record that this host does not have".into(),
            ));
        }
        let receipt = self.trust.receipt(&signed)?;
        let question = match self.begin_settling(&id, &verified.statement) {
            Ok(question) => question,
            Err(error) => return self.receipt_again(&signed, &statement, error).await,
        };
        self.write_decision(question, verified, proof, &by.name).await?;
        Ok((id, receipt))
    }

    /// The receipt of a statement that was accepted before; otherwise `why` there is none.
    async fn receipt_again(
        &self,
        signed: &Signed,
        statement: &Statement,
        why: Error,
    ) -> Result<(String, String)> {
        let id = statement.id();
        let known = self.ledger.write(move |books| {
            let sql = "select 1 from receipts where statement = ?";
            Ok(!books.rows("find a receipt", sql, (id,), |_| Ok(()))?.is_empty())
        });
        match known.await? {
            true => Ok((statement.question.clone(), self.trust.receipt(signed)?)),
            false => Err(why),
        }
    }

    /// Writes a decision down and settles its question. Whatever fails, the question waits for another decision, or for
    /// its end.
    async fn write_decision(
        &self,
        question: Question,
        verified: Verified,
        proof: Proof,
        submitter: &str,
    ) -> Result<()> {
        let Verified { statement, signer } = verified;
        let by = format!("{signer}, {submitter}");
        let decision = statement.decision.clone();
        let outcome = Outcome::Decided { decision, by: by.clone(), proof: Some(Box::new(proof.clone())) };
        let id = question.id.clone();
        let written = self.write_outcome(question, outcome.clone(), move |books, question| {
            let decision = &statement.decision;
            let mut data = json!({
                "question": question.id, "digest": question.digest, "allow": decision.allow,
                "note": decision.note, "remember": decision.remember, "by": by, "signer": signer,
            });
            proof.add_to(&mut data);
            books.record(Event::Decided, &data)?;
            if decision.remember.is_some() {
                grants::add(books, question, &statement, &proof, &by)?;
            }
            let sweep = "delete from receipts where until_ms < ?";
            books.execute("sweep receipts", sweep, (unix_ms().cast_signed(),))?;
            let sql = "insert or ignore into receipts (statement, until_ms) values (?, ?)";
            books.execute("store a receipt", sql, (statement.id(), statement.expires_ms.cast_signed()))?;
            books.must_last();
            Ok(())
        });
        let written = written.await;
        self.settle(&id, written.is_ok().then_some(outcome));
        written
    }

    /// Checks a decision and closes the question to others.
    fn begin_settling(&self, id: &str, statement: &Statement) -> Result<Question> {
        let decision: &Decision = &statement.decision;
        let mut waiting = self.waiting();
        let waiting = waiting.get_mut(id).filter(|waiting| waiting.is_open()).ok_or_else(|| gone(id))?;
        if Instant::now() >= *waiting.deadline.borrow() {
            return Err(gone(id));
        }
        if waiting.question.digest != statement.digest {
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
        waiting.state.send_replace(State::Settling);
        Ok(waiting.question.clone())
    }
}
