//! Shared test fixture: a ledger in a temporary directory, an enrolled key, and questions.

use crate::approvers::RequestAttributes;
use crate::question::{Decision, Question, Remember};
use crate::signing::{KeyAction, KeyChange, NAMESPACE, Signed, Signer, Statement};
use crate::{Approvals, PendingQuestion, Queue, Settings, Submitter};
use outpost_ledger::{BootInstant, LedgerTx, unix_ms};
use std::time::Duration;

pub(crate) struct Fixture {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) approvals: Approvals,
    pub(crate) key: Signer,
}

pub(crate) const ALLOW: Decision = Decision { allow: true, note: String::new(), remember: None };
pub(crate) const DENY: Decision = Decision { allow: false, note: String::new(), remember: None };

pub(crate) fn remembered(remember: Remember) -> Decision {
    Decision { remember: Some(remember), ..ALLOW }
}

pub(crate) fn question(id: &str) -> Question {
    Question {
        id: id.into(),
        face: "test".into(),
        digest: "ab".repeat(32),
        title: "reboot".into(),
        sections: Vec::new(),
        warnings: Vec::new(),
        privileged: true,
        rememberable: true,
        uid: Some(1000),
        asked_ms: unix_ms(),
        deadline_ms: unix_ms() + 60_000,
    }
}

pub(crate) const REQUEST: RequestAttributes = RequestAttributes { privileged: true, uid: 1000 };

impl Fixture {
    /// Creates a ledger with one enrolled key.
    pub(crate) async fn new() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let settings =
            Settings { dir: dir.path().join("ledger"), etc: dir.path().join("etc"), ..Settings::default() };
        let approvals = Approvals::open(settings, &[]).unwrap();
        let fixture = Fixture { dir, approvals, key: Signer::random().unwrap() };
        fixture.change(KeyAction::Enroll, &fixture.key, &fixture.key, |_| {}).await.unwrap();
        fixture
    }

    /// Changes `key` by a statement that `by` signs.
    pub(crate) async fn change(
        &self,
        action: KeyAction,
        key: &Signer,
        by: &Signer,
        with: impl FnOnce(&mut KeyChange),
    ) -> crate::Result<String> {
        let verifier = self.approvals.verifier().clone();
        let (host, blob) = (verifier.host().blob().to_vec(), key.key().to_bytes().unwrap());
        let name = crate::signing::fingerprint(key.key());
        let mut change = KeyChange::new(action, &host, self.approvals.ledger().head(), &blob, &name);
        with(&mut change);
        let bytes = change.encode();
        let signed = Signed::new(&bytes, &by.sign(NAMESPACE, &bytes).unwrap());
        self.approvals.ledger().transact(move |tx| verifier.change(tx, &signed, "test")).await
    }

    pub(crate) fn queue(&self) -> &Queue {
        self.approvals.queue()
    }

    /// Inserts and publishes a question that expires after `left`.
    pub(crate) async fn ask(&self, question: &Question, left: Duration) -> PendingQuestion {
        let (entered, deadline) = (question.clone(), BootInstant::now().after(left));
        let write = move |tx: &mut LedgerTx<'_>| Queue::insert(tx, &entered, &deadline);
        self.approvals.ledger().transact(write).await.unwrap();
        self.queue().publish(question.clone(), left)
    }

    pub(crate) fn statement(&self, question: &Question, decision: Decision) -> Statement {
        let host = self.approvals.verifier().host().blob().to_vec();
        Statement::new(question, &host, self.approvals.ledger().head(), decision)
    }

    pub(crate) fn signed(&self, statement: &Statement) -> Signed {
        let bytes = statement.encode();
        Signed::new(&bytes, &self.key.sign(NAMESPACE, &bytes).unwrap())
    }

    pub(crate) async fn decide(&self, question: &Question, decision: Decision) -> crate::Result<String> {
        let signed = self.signed(&self.statement(question, decision));
        self.submit(signed).await
    }

    pub(crate) async fn submit(&self, signed: Signed) -> crate::Result<String> {
        let by = Submitter { name: "test".into(), uid: None };
        self.queue().decide(signed, &by).await.map(|(_, receipt)| receipt)
    }

    /// Runs SQL on the database, as an attacker with write access would.
    pub(crate) async fn tamper(&self, sql: &'static str) {
        let changed = self.approvals.ledger().transact(move |tx| tx.execute("tamper", sql, ())).await;
        assert!(changed.unwrap() > 0, "{sql}");
    }

    /// Returns the audit records of one event.
    pub(crate) fn recorded(&self, event: &str) -> Vec<outpost_ledger::audit::Record> {
        let filter = outpost_ledger::audit::Filter { event: Some(event.into()), ..Default::default() };
        let read = outpost_ledger::audit::read(&self.dir.path().join("ledger/audit"), filter).unwrap();
        read.map(Result::unwrap).collect()
    }
}
