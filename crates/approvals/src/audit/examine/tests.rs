//! Chains in which something was started: by a signed decision, and by everything that is none.

use super::*;
use crate::audit::{Event, Filter, Writer};
use crate::kit::{ALLOW, DENY, question, remembered};
use crate::question::Decision;
use crate::signing::{HostKey, KeyAction, Signer};
use serde_json::json;

/// A chain that is written as a daemon writes it, and as one that lies would.
struct Story {
    dir: tempfile::TempDir,
    chain: Writer,
    host: HostKey,
    key: Signer,
}

impl Story {
    fn new() -> Story {
        let dir = tempfile::tempdir().unwrap();
        let chain = Writer::open(&dir.path().join("audit")).unwrap();
        let host = HostKey::open(&dir.path().join("host.key")).unwrap();
        let mut story = Story { dir, chain, host, key: Signer::random().unwrap() };
        story.key("host", json!({ "key": story.host.public().to_openssh().unwrap() }));
        let key = story.key.key().clone();
        let enrol = story.change(KeyAction::Enroll, &key, "laptop");
        story.key("enroll", with(enrol, json!({ "first": true })));
        story
    }

    fn key(&mut self, action: &str, data: Value) {
        self.chain.append(Event::Key, &with(data, json!({ "action": action }))).unwrap();
    }

    /// A change that the approver's key signs.
    fn change(&self, action: KeyAction, key: &PublicKey, name: &str) -> Value {
        let blob = key.to_bytes().unwrap();
        let bytes = KeyChange::new(action, self.host.blob(), self.chain.head(), &blob, name).encode();
        let signed = Signed::new(&bytes, &self.key.sign(NAMESPACE, &bytes).unwrap());
        json!({ "key": key.to_openssh().unwrap(), "statement": signed.statement, "signature": signed.signature })
    }

    fn received(&mut self, privileged: bool) {
        let data = json!({
            "request": "r", "question": "q", "digest": question("").digest, "pipeline": [["reboot"]],
            "privileged": privileged,
        });
        self.chain.append(Event::Received, &data).unwrap();
    }

    fn statement(&self, decision: Decision) -> Statement {
        Statement::about(&question("q"), self.host.blob(), self.chain.head(), decision)
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
        self.chain.append(Event::Decided, &data).unwrap();
    }

    fn started(&mut self) {
        let data = json!({ "request": "r", "digest": question("").digest, "privileged": true });
        self.chain.append(Event::Started, &data).unwrap();
    }

    fn findings(&self, trusted: Trusted) -> Findings {
        examine(&self.dir.path().join("audit"), trusted).unwrap()
    }

    /// What is wrong by the keys in the chain itself.
    fn problems(&self) -> String {
        self.findings(Trusted { of_chain: true, ..Trusted::default() }).problems.join("\n")
    }
}

fn with(mut value: Value, more: Value) -> Value {
    value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    value
}

#[test]
fn a_start_after_a_signed_decision_is_reported_with_its_signer() {
    let mut story = Story::new();
    story.received(true);
    let decided = story.signed(&story.statement(ALLOW));
    story.decided(decided);
    story.started();
    let findings = story.findings(Trusted { of_chain: true, ..Trusted::default() });
    assert_eq!(findings.problems, [""; 0]);
    let by = format!("laptop ({})", fingerprint(story.key.key()));
    assert_eq!(findings.privileged, BTreeMap::from([(by, 1)]));
    assert!(findings.notes[0].contains("was taken as it came"), "{findings:?}");
    // From an export, with keys from elsewhere.
    let export = story.dir.path().join("export");
    let lines = read(&story.dir.path().join("audit"), Filter::default()).unwrap();
    let text: String = lines.map(|record| record.unwrap().line + "\n").collect();
    std::fs::write(&export, text).unwrap();
    crate::audit::verify(&export, None).unwrap();
    let stranger = Signer::random().unwrap();
    for (key, holds) in [(story.key.key(), true), (stranger.key(), false)] {
        let approver = Approver {
            key: key.clone(),
            name: "given".into(),
            root: true,
            users: Vec::new(),
            hosts: Vec::new(),
            not_after_ms: 0,
            revoked_ms: None,
        };
        let trusted = Trusted { approvers: vec![approver], ..Trusted::default() };
        assert_eq!(examine(&export, trusted).unwrap().problems.is_empty(), holds);
    }
}

#[test]
fn whatever_is_started_without_a_signed_decision_shows() {
    type Lie = fn(&mut Story);
    let lies: [(Lie, &str); 11] = [
        (|_| {}, "no decision before it"),
        (|story| story.decided(json!({ "question": "q", "allow": true, "by": "laptop" })), "is not signed"),
        (
            |story| {
                let denied = story.signed(&story.statement(DENY));
                story.decided(with(denied, json!({ "allow": true })));
            },
            "about something else",
        ),
        (
            |story| {
                let mut decided = story.signed(&story.statement(ALLOW));
                decided["statement"] = story.signed(&story.statement(DENY))["statement"].clone();
                story.decided(decided);
            },
            "does not match",
        ),
        (
            |story| {
                story.key = Signer::random().unwrap();
                let decided = story.signed(&story.statement(ALLOW));
                story.decided(decided);
            },
            "is none that counts",
        ),
        (
            |story| {
                let statement = Statement { question: "other".into(), ..story.statement(ALLOW) };
                let decided = story.signed(&statement);
                story.decided(decided);
            },
            "another question",
        ),
        (
            |story| {
                let mut statement = story.statement(ALLOW);
                statement.head.hash[0] ^= 1;
                let decided = story.signed(&statement);
                story.decided(decided);
            },
            "another chain",
        ),
        (
            |story| {
                let mut statement = story.statement(ALLOW);
                statement.host.push(0);
                let decided = story.signed(&statement);
                story.decided(decided);
            },
            "another host",
        ),
        (
            |story| story.decided(json!({ "request": "r", "allow": true, "decision": "rule:reboot" })),
            "not named by their hash",
        ),
        (
            |story| story.decided(json!({ "request": "r", "allow": true, "decision": "session" })),
            "not given for a session",
        ),
        (
            |story| {
                let decided = story.signed(&story.statement(ALLOW));
                story.decided(decided);
                let seq = story.chain.head().seq;
                story.chain.append(Event::Voided, &json!({ "from": seq, "to": seq })).unwrap();
            },
            "no decision before it",
        ),
    ];
    for (lie, why) in lies {
        let mut story = Story::new();
        story.received(true);
        lie(&mut story);
        story.started();
        let problems = story.problems();
        assert!(problems.contains(why), "{why}: {problems:?}");
    }
}

#[test]
fn a_grant_is_counted_and_a_revoked_key_allows_nothing_more() {
    let mut story = Story::new();
    let granted = story.statement(remembered(crate::Remember::Times(2)));
    for use_number in 1..=3 {
        story.received(true);
        let decided = story.signed(&granted);
        story.decided(with(decided, json!({ "request": "r", "decision": "grant", "grant": granted.id() })));
        story.started();
        assert_eq!(story.problems().contains("was for 2 times"), use_number > 2);
    }
    let mut story = Story::new();
    let second = Signer::random().unwrap();
    let enrol = story.change(KeyAction::Enroll, second.key(), "second");
    story.key("enroll", enrol);
    let revoke = story.change(KeyAction::Revoke, second.key(), "second");
    story.key("revoke", revoke);
    assert_eq!(story.problems(), "");
    story.key = second;
    story.received(true);
    let decided = story.signed(&story.statement(ALLOW));
    story.decided(decided);
    story.started();
    assert!(story.problems().contains("is revoked"), "{}", story.problems());
}

#[test]
fn rules_count_by_their_hash_and_what_was_started_before_signatures_is_only_counted() {
    let mut story = Story::new();
    story.received(true);
    let rules =
        json!({ "request": "r", "allow": true, "decision": "rule:x", "rules_sha256": "0".repeat(64) });
    story.decided(rules);
    story.started();
    assert_eq!(story.problems(), "");
    let dir = tempfile::tempdir().unwrap();
    let mut chain = Writer::open(&dir.path().join("audit")).unwrap();
    chain.append(Event::Started, &json!({ "request": "r", "digest": "d" })).unwrap();
    let findings = examine(&dir.path().join("audit"), Trusted::default()).unwrap();
    assert_eq!((findings.before, findings.problems.len()), (1, 0));
}
