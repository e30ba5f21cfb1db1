//! Whether each command whose start is in a chain had been allowed: by a signed decision, a grant that is one, or rules.

use super::{Head, Record, Result, read, record};
use crate::approvers::{Approver, List};
use crate::question::Remember;
use crate::signing::{
    self, HOST_NAMESPACE, KeyChange, NAMESPACE, Proof, PublicKey, Signed, Statement, fingerprint,
};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::Path;

/// Heads that decisions are compared with; a statement is submitted within ten minutes.
const HEADS_MAX: usize = 1 << 20;

/// How much clocks may differ.
const CLOCKS_MS: u64 = 6 * 60 * 1000;

/// Which keys count.
#[derive(Clone, Debug, Default)]
pub struct Trusted {
    /// Those that the chain itself has recorded as enrolled.
    pub of_chain: bool,
    /// Those that were given from outside.
    pub approvers: Vec<Approver>,
    /// The host's, where it is known from outside. Otherwise the one that the chain has.
    pub host: Option<PublicKey>,
}

/// What a chain shows about what was started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Commands with root's rights by what allowed them.
    pub privileged: BTreeMap<String, u64>,
    /// Commands that were started before decisions were signed.
    pub before: u64,
    /// What a reader should look at, though it is no mistake.
    pub notes: Vec<String>,
    /// What was started without having been allowed, and statements that do not hold.
    pub problems: Vec<String>,
}

/// Reads a chain, or the export of one. Whether its records are as they were written is for [`verify`](super::verify()).
pub fn examine(chain: &Path, trusted: Trusted) -> Result<Findings> {
    let mut examiner = Examiner::new(trusted);
    for record in read(chain, super::Filter::default())? {
        examiner.record(&record?);
    }
    Ok(examiner.findings)
}

/// A request that is not over.
struct Request {
    question: Option<String>,
    digest: String,
    privileged: bool,
    /// What allows it, and where that stands; why it does not, where it does not.
    allowed: Option<(u64, std::result::Result<String, String>)>,
}

struct Examiner {
    trusted: Trusted,
    /// As the chain has recorded them.
    list: List,
    /// Keys of terminals, each enrolled by the host.
    terminals: Vec<Approver>,
    host: Option<PublicKey>,
    heads: VecDeque<Head>,
    requests: HashMap<String, Request>,
    by_question: HashMap<String, String>,
    /// How often each grant was used, and when it was given, since boot.
    uses: HashMap<String, u32>,
    given: HashMap<String, u64>,
    findings: Findings,
}

fn text<'d>(data: &'d Value, name: &str) -> &'d str {
    data.get(name).and_then(Value::as_str).unwrap_or_default()
}

impl Examiner {
    fn new(trusted: Trusted) -> Examiner {
        Examiner {
            host: trusted.host.clone(),
            trusted,
            list: List::default(),
            terminals: Vec::new(),
            heads: VecDeque::new(),
            requests: HashMap::new(),
            by_question: HashMap::new(),
            uses: HashMap::new(),
            given: HashMap::new(),
            findings: Findings::default(),
        }
    }

    fn record(&mut self, record: &Record) {
        let data = &record.data;
        match record.event.as_str() {
            "key" => {
                if let Err(why) = self.key(record) {
                    self.findings.problems.push(format!("record {}: {why}", record.seq));
                }
            }
            "received" => self.received(data),
            "decided" => self.decided(record),
            "started" => self.started(record),
            "ended" => {
                if let Some(request) = self.requests.remove(text(data, "request")) {
                    request.question.map(|question| self.by_question.remove(&question));
                }
            }
            "voided" => self.voided(data),
            _ => {}
        }
        if let Ok((_, head)) = record::parse(record.line.as_bytes()) {
            if self.heads.len() >= HEADS_MAX {
                self.heads.pop_front();
            }
            self.heads.push_back(head);
        }
    }

    fn key(&mut self, record: &Record) -> std::result::Result<(), String> {
        let data = &record.data;
        let key = PublicKey::from_openssh(text(data, "key")).map_err(|error| error.to_string())?;
        let print = fingerprint(&key);
        if text(data, "action") == "host" {
            let known = self.trusted.host.as_ref().or(self.host.as_ref());
            if known.is_some_and(|known| known.key_data() != key.key_data()) {
                let note = format!("record {}: the host has another key from here on, {print}", record.seq);
                self.findings.notes.push(note);
            }
            if self.trusted.host.is_none() {
                self.host = Some(key);
            }
            return Ok(());
        }
        let signed =
            Signed { statement: text(data, "statement").into(), signature: text(data, "signature").into() };
        let bytes = signed.statement_bytes()?;
        let change = KeyChange::decode(&bytes)?;
        let host = self.host.as_ref().ok_or("a key is enrolled before the host has one")?;
        if host.to_bytes().ok().as_deref() != Some(&change.host) {
            return Err("the key statement is for another host".into());
        }
        let signature = signed.signature_bytes()?;
        if text(data, "action") == "terminal" {
            let by = signing::verify(HOST_NAMESPACE, &bytes, &signature)?;
            if by.key_data() != host.key_data() {
                return Err("the key of a terminal was not enrolled by the host".into());
            }
            self.terminals.push(change.approver()?);
            return Ok(());
        }
        let by = signing::verify(NAMESPACE, &bytes, &signature)?;
        if data.get("first") == Some(&Value::Bool(true)) {
            let again = if self.list.approvers.is_empty() { "" } else { ", in place of all keys before it" };
            let note = format!("record {}: the key {print} was taken as it came{again}", record.seq);
            self.findings.notes.push(note);
            // What earlier keys have decided stays signed by them.
            let fresh = List::default();
            let earlier = std::mem::replace(&mut self.list, fresh).approvers;
            let applied = self.list.apply(&change, &by, change.issued_ms);
            self.list.approvers.extend(
                earlier
                    .into_iter()
                    .map(|old| Approver { revoked_ms: old.revoked_ms.or(Some(milliseconds(record))), ..old }),
            );
            return applied;
        }
        self.list.apply(&change, &by, milliseconds(record))
    }

    fn received(&mut self, data: &Value) {
        let Some(stages) = data.get("pipeline") else { return };
        if stages.is_null() {
            return;
        }
        let question = data.get("question").and_then(Value::as_str).map(str::to_owned);
        let key = text(data, "request").to_owned();
        if let Some(question) = &question {
            self.by_question.insert(question.clone(), key.clone());
        }
        let privileged = data.get("privileged") == Some(&Value::Bool(true));
        let digest = text(data, "digest").to_owned();
        self.requests.insert(key, Request { question, digest, privileged, allowed: None });
    }

    fn decided(&mut self, record: &Record) {
        let data = &record.data;
        let asked = self.by_question.get(text(data, "question")).cloned();
        let key = asked.unwrap_or_else(|| text(data, "request").to_owned());
        let Some(request) = self.requests.get(&key) else { return };
        if data.get("allow") != Some(&Value::Bool(true)) {
            return;
        }
        let privileged = request.privileged;
        let allowed = match text(data, "decision") {
            "" | "grant" => self.signed(record, request),
            "session" if !privileged => Ok("a human at the terminal, for the session".to_owned()),
            "session" => Err("root's rights are not given for a session".to_owned()),
            rule if rule.starts_with("rule:") && text(data, "rules_sha256").len() == 64 => {
                Ok(format!("{rule} of the rules with sha256 {}", text(data, "rules_sha256")))
            }
            rule if rule.starts_with("rule:") => Err("the rules are not named by their hash".to_owned()),
            _ => Err("it is not known by what".to_owned()),
        };
        let used = allowed.and_then(|by| self.count_use(record).map(|()| by));
        if let Some(request) = self.requests.get_mut(&key) {
            request.allowed = Some((record.seq, used));
        }
    }

    /// The signer of the decision, if it counts for this request.
    fn signed(&self, record: &Record, request: &Request) -> std::result::Result<String, String> {
        let data = &record.data;
        let proof = Proof {
            statement: text(data, "statement").into(),
            signature: text(data, "signature").into(),
            uid: data.get("uid").and_then(Value::as_u64).and_then(|uid| u32::try_from(uid).ok()),
        };
        if proof.signature.is_empty() {
            return Err("the decision is not signed".into());
        }
        let (statement, bytes) = proof.statement()?;
        let signer = self.signer(&proof, &bytes, request.privileged, milliseconds(record))?;
        self.check_statement(&statement, record, request)?;
        Ok(signer)
    }

    fn check_statement(
        &self,
        statement: &Statement,
        record: &Record,
        request: &Request,
    ) -> std::result::Result<(), String> {
        let host = self.host.as_ref().and_then(|host| host.to_bytes().ok());
        if host.as_deref() != Some(&statement.host) {
            return Err("the statement is for another host".into());
        }
        if statement.digest != request.digest || !statement.decision.allow {
            return Err("the statement is about something else".into());
        }
        let oldest = self.heads.front().map_or(u64::MAX, |oldest| oldest.seq);
        if statement.head.seq >= oldest && !self.heads.contains(&statement.head) {
            return Err(format!("the statement was made for another chain: it names {}", statement.head));
        }
        let time_ms = milliseconds(record);
        if text(&record.data, "decision") == "grant" {
            return self.check_grant(statement, record);
        }
        if Some(&statement.question) != request.question.as_ref() {
            return Err("the statement is about another question".into());
        }
        let within = time_ms.saturating_add(CLOCKS_MS) >= statement.issued_ms
            && time_ms <= statement.expires_ms.saturating_add(CLOCKS_MS);
        if within { Ok(()) } else { Err("the statement was not valid at that time".into()) }
    }

    /// Whether a grant held, by the clock since boot.
    fn check_grant(&self, statement: &Statement, record: &Record) -> std::result::Result<(), String> {
        let minutes = match statement.decision.remember {
            None => return Err("the statement of the grant grants nothing".into()),
            Some(Remember::Times(_)) => return Ok(()),
            Some(Remember::Minutes(minutes)) => u64::from(minutes),
        };
        let Some(given_ns) = self.given.get(&statement.id()) else { return Ok(()) };
        match record.boot_ns.checked_sub(*given_ns) {
            Some(age_ns) if age_ns <= minutes.saturating_mul(60_000_000_000) => Ok(()),
            _ => Err(format!("its grant was for {minutes} minutes and had ended")),
        }
    }

    fn signer(
        &self,
        proof: &Proof,
        bytes: &[u8],
        privileged: bool,
        time_ms: u64,
    ) -> std::result::Result<String, String> {
        let signature = proof.signature_bytes()?;
        if let Some(uid) = proof.uid {
            let by = signing::verify(HOST_NAMESPACE, &signing::witness(bytes, uid), &signature)?;
            return match self.host.as_ref().is_some_and(|host| host.key_data() == by.key_data()) {
                true => Ok(format!("uid {uid} without a signature, which root's file allowed")),
                false => Err("the host has not signed which user decided".into()),
            };
        }
        let key = signing::verify(NAMESPACE, bytes, &signature)?;
        let print = fingerprint(&key);
        let recorded = self.list.find(&key);
        let given = self.trusted.approvers.iter().find(|known| known.key.key_data() == key.key_data());
        let of_terminal = self.terminals.iter().find(|known| known.key.key_data() == key.key_data());
        let of_chain = recorded.filter(|_| self.trusted.of_chain).or(of_terminal);
        let approver = given.or(of_chain).ok_or_else(|| format!("the key {print} is none that counts"))?;
        for known in [Some(approver), recorded].into_iter().flatten() {
            known.check_time(time_ms)?;
            if privileged && !known.root {
                return Err(format!("the key {} may not decide what runs as root", known.title()));
            }
        }
        Ok(approver.title())
    }

    /// Counts the use of a grant, and remembers when one was given.
    fn count_use(&mut self, record: &Record) -> std::result::Result<(), String> {
        let id = text(&record.data, "grant");
        if text(&record.data, "statement").is_empty() {
            return Ok(());
        }
        let proof =
            Proof { statement: text(&record.data, "statement").into(), signature: String::new(), uid: None };
        let (statement, _) = proof.statement()?;
        if id.is_empty() {
            if statement.decision.remember.is_some() {
                self.given.insert(statement.id(), record.boot_ns);
            }
            return Ok(());
        }
        let used = self.uses.entry(statement.id()).or_default();
        *used += 1;
        match statement.decision.remember {
            Some(Remember::Times(times)) if *used > times => {
                Err(format!("the grant {id} was for {times} times, and this is number {used}"))
            }
            _ => Ok(()),
        }
    }

    fn started(&mut self, record: &Record) {
        let key = text(&record.data, "request");
        if self.host.is_none() {
            self.findings.before += 1;
            return;
        }
        let privileged = record.data.get("privileged") == Some(&Value::Bool(true));
        let request = self.requests.get(key);
        let privileged = privileged || request.is_some_and(|request| request.privileged);
        let digest = text(&record.data, "digest");
        let allowed = match request {
            None => Err("its request is not in the chain".to_owned()),
            Some(request) if request.digest != digest => Err("it is not what was asked for".to_owned()),
            Some(Request { allowed: None, .. }) => Err("no decision before it allows it".to_owned()),
            Some(Request { allowed: Some((_, allowed)), .. }) => allowed.clone(),
        };
        match allowed {
            Ok(by) if privileged => *self.findings.privileged.entry(by).or_default() += 1,
            Ok(_) => {}
            Err(why) => {
                let problem = format!("record {}: request {key} was started, and {why}", record.seq);
                self.findings.problems.push(problem);
            }
        }
    }

    /// Records that did not take effect allow nothing.
    fn voided(&mut self, data: &Value) {
        let number = |name: &str| data.get(name).and_then(Value::as_u64).unwrap_or_default();
        let (from, to) = (number("from"), number("to"));
        for request in self.requests.values_mut() {
            if request.allowed.as_ref().is_some_and(|(seq, _)| (from..=to).contains(seq)) {
                request.allowed = None;
            }
        }
    }
}

fn milliseconds(record: &Record) -> u64 {
    u64::try_from(record.time.as_millisecond()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
