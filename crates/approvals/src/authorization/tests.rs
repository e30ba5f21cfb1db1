//! Chains with a started command: after a signed decision, and after forged ones.

use super::*;
use crate::kit::{ALLOW, DENY, question, remembered};
use crate::question::Decision;
use crate::signing::{HostKey, KeyAction, Signer};
use outpost_ledger::audit::{Event, Writer};
use serde_json::json;

/// Writes a chain as the daemon does, or as an attacker would.
struct ChainBuilder {
    dir: tempfile::TempDir,
    writer: Writer,
    host: HostKey,
    key: Signer,
}

impl ChainBuilder {
    fn new() -> ChainBuilder {
        let dir = tempfile::tempdir().unwrap();
        let writer = Writer::open(&dir.path().join("audit")).unwrap();
        let host = HostKey::open(&dir.path().join("host.key")).unwrap();
        let mut chain = ChainBuilder { dir, writer, host, key: Signer::random().unwrap() };
        chain.key("host", json!({ "key": chain.host.public().to_openssh().unwrap() }));
        let key = chain.key.key().clone();
        let enroll = chain.change(KeyAction::Enroll, &key, "laptop");
        chain.key("enroll", with(enroll, json!({ "first": true })));
        chain
    }

    fn key(&mut self, action: &str, data: Value) {
        self.writer.append(Event::Key, &with(data, json!({ "action": action }))).unwrap();
    }

    /// A key change signed by the approver's key.
    fn change(&self, action: KeyAction, key: &PublicKey, name: &str) -> Value {
        let blob = key.to_bytes().unwrap();
        let bytes = KeyChange::new(action, self.host.blob(), self.writer.head(), &blob, name).encode();
        let signed = Signed::new(&bytes, &self.key.sign(NAMESPACE, &bytes).unwrap());
        json!({ "key": key.to_openssh().unwrap(), "statement": signed.statement, "signature": signed.signature })
    }

    fn received(&mut self, privileged: bool) {
        let data = json!({
            "request": "r", "question": "q", "digest": question("").digest, "pipeline": [["reboot"]],
            "privileged": privileged,
        });
        self.writer.append(Event::Received, &data).unwrap();
    }

    fn statement(&self, decision: Decision) -> Statement {
        Statement::new(&question("q"), self.host.blob(), self.writer.head(), decision)
    }

    fn signed(&self, statement: &Statement) -> Value {
        let bytes = statement.encode();
        let signed = Signed::new(&bytes, &self.key.sign(NAMESPACE, &bytes).unwrap());
        json!({
            "question": "q", "allow": statement.decision.allow, "statement": signed.statement,
            "signature": signed.signature,
        })
    }

    fn decided(&mut self, data: Value) {
        self.writer.append(Event::Decided, &data).unwrap();
    }

    fn started(&mut self) {
        let data = json!({ "request": "r", "digest": question("").digest, "privileged": true });
        self.writer.append(Event::Started, &data).unwrap();
    }

    fn findings(&self, trusted: TrustedKeys) -> Findings {
        check(&self.dir.path().join("audit"), trusted).unwrap()
    }

    /// The problems found with the keys of the chain itself.
    fn problems(&self) -> String {
        self.findings(TrustedKeys { from_chain: true, ..TrustedKeys::default() }).problems.join("\n")
    }
}

fn with(mut value: Value, more: Value) -> Value {
    value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    value
}

#[test]
fn an_authorized_start_is_reported_with_its_signer() {
    let mut chain = ChainBuilder::new();
    chain.received(true);
    let decided = chain.signed(&chain.statement(ALLOW));
    chain.decided(decided);
    chain.started();
    let findings = chain.findings(TrustedKeys { from_chain: true, ..TrustedKeys::default() });
    assert_eq!(findings.problems, [""; 0]);
    let by = format!("laptop ({})", fingerprint(chain.key.key()));
    assert_eq!(findings.privileged, BTreeMap::from([(by, 1)]));
    assert!(findings.notes[0].contains("was trusted on first use"), "{findings:?}");
    // An exported chain, checked with keys from outside.
    let export = chain.dir.path().join("export");
    let lines = audit::read(&chain.dir.path().join("audit"), Filter::default()).unwrap();
    let text: String = lines.map(|record| record.unwrap().line + "\n").collect();
    std::fs::write(&export, text).unwrap();
    outpost_ledger::audit::verify(&export, None).unwrap();
    let unknown_key = Signer::random().unwrap();
    for (key, holds) in [(chain.key.key(), true), (unknown_key.key(), false)] {
        let approver = Approver {
            key: key.clone(),
            name: "given".into(),
            root: true,
            users: Vec::new(),
            hosts: Vec::new(),
            not_after_ms: 0,
            revoked_ms: None,
        };
        let trusted = TrustedKeys { approvers: vec![approver], ..TrustedKeys::default() };
        assert_eq!(check(&export, trusted).unwrap().problems.is_empty(), holds);
    }
}

#[test]
fn every_unauthorized_start_is_reported() {
    type Forgery = fn(&mut ChainBuilder);
    let forgeries: [(Forgery, &str); 11] = [
        (|_| {}, "no earlier decision"),
        (|chain| chain.decided(json!({ "question": "q", "allow": true, "by": "laptop" })), "is not signed"),
        (
            |chain| {
                let denied = chain.signed(&chain.statement(DENY));
                chain.decided(with(denied, json!({ "allow": true })));
            },
            "does not allow this digest",
        ),
        (
            |chain| {
                let mut decided = chain.signed(&chain.statement(ALLOW));
                decided["statement"] = chain.signed(&chain.statement(DENY))["statement"].clone();
                chain.decided(decided);
            },
            "does not match",
        ),
        (
            |chain| {
                chain.key = Signer::random().unwrap();
                let decided = chain.signed(&chain.statement(ALLOW));
                chain.decided(decided);
            },
            "is not trusted",
        ),
        (
            |chain| {
                let statement = Statement { question: "other".into(), ..chain.statement(ALLOW) };
                let decided = chain.signed(&statement);
                chain.decided(decided);
            },
            "another question",
        ),
        (
            |chain| {
                let mut statement = chain.statement(ALLOW);
                statement.head.hash[0] ^= 1;
                let decided = chain.signed(&statement);
                chain.decided(decided);
            },
            "another audit chain",
        ),
        (
            |chain| {
                let mut statement = chain.statement(ALLOW);
                statement.host.push(0);
                let decided = chain.signed(&statement);
                chain.decided(decided);
            },
            "another host",
        ),
        (
            |chain| chain.decided(json!({ "request": "r", "allow": true, "decision": "rule:reboot" })),
            "hash of the rules is missing",
        ),
        (
            |chain| chain.decided(json!({ "request": "r", "allow": true, "decision": "session" })),
            "cannot authorize root",
        ),
        (
            |chain| {
                let decided = chain.signed(&chain.statement(ALLOW));
                chain.decided(decided);
                let seq = chain.writer.head().seq;
                chain.writer.append(Event::Voided, &json!({ "from": seq, "to": seq })).unwrap();
            },
            "no earlier decision",
        ),
    ];
    for (forge, why) in forgeries {
        let mut chain = ChainBuilder::new();
        chain.received(true);
        forge(&mut chain);
        chain.started();
        let problems = chain.problems();
        assert!(problems.contains(why), "{why}: {problems:?}");
    }
}

#[test]
fn grant_uses_are_counted_and_revoked_keys_are_rejected() {
    let mut chain = ChainBuilder::new();
    let granted = chain.statement(remembered(crate::Remember::Times(2)));
    for use_number in 1..=3 {
        chain.received(true);
        let decided = chain.signed(&granted);
        chain.decided(with(decided, json!({ "request": "r", "decision": "grant", "grant": granted.id() })));
        chain.started();
        assert_eq!(chain.problems().contains("allows 2 uses"), use_number > 2);
    }
    let mut chain = ChainBuilder::new();
    let second = Signer::random().unwrap();
    let enroll = chain.change(KeyAction::Enroll, second.key(), "second");
    chain.key("enroll", enroll);
    let revoke = chain.change(KeyAction::Revoke, second.key(), "second");
    chain.key("revoke", revoke);
    assert_eq!(chain.problems(), "");
    chain.key = second;
    chain.received(true);
    let decided = chain.signed(&chain.statement(ALLOW));
    chain.decided(decided);
    chain.started();
    assert!(chain.problems().contains("is revoked"), "{}", chain.problems());
}

#[test]
fn rules_need_a_hash_and_starts_before_signing_are_counted() {
    let mut chain = ChainBuilder::new();
    chain.received(true);
    let rules =
        json!({ "request": "r", "allow": true, "decision": "rule:x", "rules_sha256": "0".repeat(64) });
    chain.decided(rules);
    chain.started();
    assert_eq!(chain.problems(), "");
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(&dir.path().join("audit")).unwrap();
    writer.append(Event::Started, &json!({ "request": "r", "digest": "d" })).unwrap();
    let findings = check(&dir.path().join("audit"), TrustedKeys::default()).unwrap();
    assert_eq!((findings.before_signing, findings.problems.len()), (1, 0));
}
