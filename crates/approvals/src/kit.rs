//! What the tests of this crate share: books in a directory of their own, an approver's key, and questions.

use crate::approvers::Matter;
use crate::question::{Decision, Question, Remember};
use crate::signing::{KeyAction, KeyChange, NAMESPACE, Signed, Signer, Statement};
use crate::{Approvals, Asked, Books, Moment, Queue, Settings, Submitter, unix_ms};
use std::time::Duration;

pub(crate) struct Site {
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

pub(crate) const MATTER: Matter = Matter { privileged: true, uid: 1000 };

impl Site {
    /// With one key that is enrolled.
    pub(crate) async fn new() -> Site {
        let dir = tempfile::tempdir().unwrap();
        let settings =
            Settings { dir: dir.path().join("books"), etc: dir.path().join("etc"), ..Settings::default() };
        let approvals = Approvals::open(settings, &[]).unwrap();
        let site = Site { dir, approvals, key: Signer::random().unwrap() };
        site.change(KeyAction::Enroll, &site.key, &site.key, |_| {}).await.unwrap();
        site
    }

    /// A change of one key, signed by another.
    pub(crate) async fn change(
        &self,
        action: KeyAction,
        key: &Signer,
        by: &Signer,
        with: impl FnOnce(&mut KeyChange),
    ) -> crate::Result<String> {
        let trust = self.approvals.trust().clone();
        let (host, blob) = (trust.host().blob().to_vec(), key.key().to_bytes().unwrap());
        let name = crate::signing::fingerprint(key.key());
        let mut change = KeyChange::new(action, &host, self.approvals.ledger().head(), &blob, &name);
        with(&mut change);
        let bytes = change.encode();
        let signed = Signed::new(&bytes, &by.sign(NAMESPACE, &bytes).unwrap());
        self.approvals.ledger().write(move |books| trust.change(books, &signed, "test")).await
    }

    pub(crate) fn queue(&self) -> &Queue {
        self.approvals.queue()
    }

    /// Asks, with so much time left.
    pub(crate) async fn ask(&self, question: &Question, left: Duration) -> Asked {
        let (entered, deadline) = (question.clone(), Moment::now().after(left));
        let write = move |books: &mut Books<'_>| Queue::enter(books, &entered, &deadline);
        self.approvals.ledger().write(write).await.unwrap();
        self.queue().ask(question.clone(), left)
    }

    pub(crate) fn statement(&self, question: &Question, decision: Decision) -> Statement {
        let host = self.approvals.trust().host().blob().to_vec();
        Statement::about(question, &host, self.approvals.ledger().head(), decision)
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

    /// Runs SQL in the books, as a process that can write the database would.
    pub(crate) async fn tamper(&self, sql: &'static str) {
        let changed = self.approvals.ledger().write(move |books| books.execute("tamper", sql, ())).await;
        assert!(changed.unwrap() > 0, "{sql}");
    }

    /// Records of an event in the chain.
    pub(crate) fn recorded(&self, event: &str) -> Vec<crate::audit::Record> {
        let filter = crate::audit::Filter { event: Some(event.into()), ..Default::default() };
        let read = crate::audit::read(&self.dir.path().join("books/audit"), filter).unwrap();
        read.map(Result::unwrap).collect()
    }
}
