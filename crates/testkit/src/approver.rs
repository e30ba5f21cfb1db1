//! An approver of tests: a key, and the requests of the approver socket that it signs.

use outpost_approvals::signing::{KeyAction, KeyChange, NAMESPACE, PublicKey, Signed, Signer, Statement};
use outpost_approvals::{Decision, Question};
use serde_json::{Value, json};

pub struct ApproverKey {
    signer: Signer,
}

/// What the daemon answers with its host key and the head of its chain.
pub fn hello() -> Value {
    json!({ "do": "hello", "nonce": "test", "client": "test" })
}

impl ApproverKey {
    pub fn random() -> ApproverKey {
        ApproverKey { signer: Signer::random().unwrap() }
    }

    /// Its public half, one line of OpenSSH.
    pub fn public(&self) -> String {
        self.signer.key().to_openssh().unwrap()
    }

    /// The request that enrolls it as the first key of the daemon that sent this hello.
    pub fn enrollment(&self, hello: &Value) -> Value {
        let key = self.signer.key().to_bytes().unwrap();
        let change = KeyChange::new(KeyAction::Enroll, &host(hello), head(hello), &key, "test");
        let signed = self.signed(&change.encode());
        json!({ "do": "change_key", "statement": signed.statement, "signature": signed.signature })
    }

    /// The request that decides a question as it is given here; `decision` has `allow`, and may have `note` and `remember`.
    pub fn decision(&self, hello: &Value, question: &Value, decision: &Value) -> Value {
        let signed = self.signed(&statement(hello, question, decision).encode());
        json!({ "do": "decide", "statement": signed.statement, "signature": signed.signature })
    }

    /// The request for any statement.
    pub fn signed_decision(&self, statement: &Statement) -> Value {
        let signed = self.signed(&statement.encode());
        json!({ "do": "decide", "statement": signed.statement, "signature": signed.signature })
    }

    fn signed(&self, bytes: &[u8]) -> Signed {
        Signed::new(bytes, &self.signer.sign(NAMESPACE, bytes).unwrap())
    }
}

/// A decision that is not signed yet.
pub fn statement(hello: &Value, question: &Value, decision: &Value) -> Statement {
    let question: Question = serde_json::from_value(question.clone()).unwrap();
    let decision: Decision = serde_json::from_value(decision.clone()).unwrap();
    Statement::new(&question, &host(hello), head(hello), decision)
}

fn host(hello: &Value) -> Vec<u8> {
    let line = hello["host"].as_str().unwrap_or_else(|| panic!("{hello}"));
    PublicKey::from_openssh(line).unwrap().to_bytes().unwrap()
}

fn head(hello: &Value) -> outpost_ledger::audit::Head {
    hello["head"].as_str().unwrap().parse().unwrap()
}
