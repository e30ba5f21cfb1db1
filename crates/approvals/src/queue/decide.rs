//! Accepts a decision: verifies it, writes it to the ledger, and settles the question.

use super::{Queue, State, Submitter, not_pending};
use crate::display::Newlines;
use crate::grants;
use crate::question::{Decision, Outcome, Question, Remember};
use crate::signing::{Proof, Signed, Statement};
use crate::verifier::VerifiedDecision;
use crate::{Error, Result};
use outpost_ledger::audit::Event;
use outpost_ledger::unix_ms;
use serde_json::json;
use tokio::time::Instant;

/// Limits of a note and of a grant.
const NOTE_CHARS_MAX: usize = 500;
const TIMES_MAX: u32 = 1000;
const MINUTES_MAX: u32 = 24 * 60;

impl Queue {
    /// Accepts a submitted decision. The first valid decision wins. The same statement always gets the same
    /// receipt. Returns the question's id and the receipt.
    pub async fn decide(&self, signed: Signed, by: &Submitter) -> Result<(String, String)> {
        let bytes = signed.statement_bytes()?;
        let statement = Statement::decode(&bytes)?;
        let id = statement.question.clone();
        let question = match self.show(&id) {
            Ok(question) => question,
            Err(error) => return self.known_receipt(&signed, &statement, error).await,
        };
        let proof = match signed.signature.is_empty() {
            false => Proof::signed(signed.clone()),
            true => self.verifier.attest_uid(&signed, by.uid.unwrap_or(u32::MAX))?,
        };
        let (verifier, checked, about) = (self.verifier.clone(), proof.clone(), question);
        let checked = tokio::task::spawn_blocking(move || verifier.check_new(&about, &checked));
        let verified = checked.await.map_err(|_| Error::Stopped)??;
        if !self.ledger.contains(verified.statement.head).await {
            return Err(Error::Key(
                "the statement names an audit record that this host does not have".into(),
            ));
        }
        let receipt = self.verifier.receipt(&signed)?;
        let question = match self.claim_for_decision(&id, &verified.statement) {
            Ok(question) => question,
            Err(error) => return self.known_receipt(&signed, &statement, error).await,
        };
        self.write_decision(question, verified, proof, &by.name).await?;
        Ok((id, receipt))
    }

    /// Returns the receipt of a statement that was accepted before, or `why` if there is none.
    async fn known_receipt(
        &self,
        signed: &Signed,
        statement: &Statement,
        why: Error,
    ) -> Result<(String, String)> {
        let id = statement.id();
        let known = self.ledger.transact(move |tx| {
            let sql = "select 1 from receipts where statement = ?";
            Ok(!tx.rows("find a receipt", sql, (id,), |_| Ok(()))?.is_empty())
        });
        match known.await? {
            true => Ok((statement.question.clone(), self.verifier.receipt(signed)?)),
            false => Err(why),
        }
    }

    /// Writes a decision and settles its question. If the write fails, the question stays open.
    async fn write_decision(
        &self,
        question: Question,
        verified: VerifiedDecision,
        proof: Proof,
        submitter: &str,
    ) -> Result<()> {
        let VerifiedDecision { statement, signer } = verified;
        let by = format!("{signer}, {submitter}");
        let decision = statement.decision.clone();
        let outcome = Outcome::Decided { decision, by: by.clone(), proof: Some(Box::new(proof.clone())) };
        let id = question.id.clone();
        let written = self.write_outcome(question, outcome.clone(), move |tx, question| {
            let decision = &statement.decision;
            let mut data = json!({
                "question": question.id, "digest": question.digest, "allow": decision.allow,
                "note": decision.note, "remember": decision.remember, "by": by, "signer": signer,
            });
            proof.add_to(&mut data);
            tx.record(Event::Decided, &data)?;
            if decision.remember.is_some() {
                grants::add(tx, question, &statement, &proof, &by)?;
            }
            let sweep = "delete from receipts where until_ms < ?";
            tx.execute("delete expired receipts", sweep, (unix_ms().cast_signed(),))?;
            let sql = "insert or ignore into receipts (statement, until_ms) values (?, ?)";
            tx.execute("store a receipt", sql, (statement.id(), statement.expires_ms.cast_signed()))?;
            tx.require_fsync();
            Ok(())
        });
        let written = written.await;
        self.settle(&id, written.is_ok().then_some(outcome));
        written
    }

    /// Checks a decision against the open question, and blocks other decisions while this one is written.
    fn claim_for_decision(&self, id: &str, statement: &Statement) -> Result<Question> {
        let decision: &Decision = &statement.decision;
        let mut entries = self.entries();
        let entry = entries.get_mut(id).filter(|entry| entry.is_open()).ok_or_else(|| not_pending(id))?;
        if Instant::now() >= *entry.deadline.borrow() {
            return Err(not_pending(id));
        }
        if entry.question.digest != statement.digest {
            return Err(Error::Refused(format!("the decision does not match question {id}; show it again")));
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
            Some(_) if !decision.allow || !entry.question.rememberable => {
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
        entry.state.send_replace(State::Settling);
        Ok(entry.question.clone())
    }
}
