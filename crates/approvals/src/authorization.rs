//! Checks an audit chain: every started command had a signed decision, a signed grant, or a rule.

use crate::approvers::{Approver, ApproverError, ApproverList};
use crate::question::Remember;
use crate::signing::{
    self, HOST_NAMESPACE, KeyChange, NAMESPACE, Proof, PublicKey, Signed, SignedError, Statement, fingerprint,
};
use outpost_ledger::audit::{self, Filter, Head, Record};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::Path;

/// Heads kept for comparison. A statement is submitted within ten minutes, so older heads are not needed.
const HEADS_MAX: usize = 1 << 20;

/// Maximum difference between the clocks of approver and host.
const CLOCK_SKEW_MS: u64 = 6 * 60 * 1000;

/// The keys to trust.
#[derive(Clone, Debug, Default)]
pub struct TrustedKeys {
    /// Trust the keys that the chain itself records as enrolled.
    pub from_chain: bool,
    /// Keys from outside the chain.
    pub approvers: Vec<Approver>,
    /// The host key, if it is known. Otherwise the chain's own host key is used.
    pub host: Option<PublicKey>,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Privileged commands by what authorized them.
    pub privileged: BTreeMap<String, u64>,
    /// Commands that were started before decisions were signed.
    pub before_signing: u64,
    /// Remarks that are not violations.
    pub notes: Vec<String>,
    /// Commands that were started without authorization, and invalid statements.
    pub problems: Vec<String>,
}

/// Checks the chain in a directory, or an exported chain. Does not check the hashes; [`audit::verify`] does.
pub fn check(chain: &Path, trusted: TrustedKeys) -> audit::Result<Findings> {
    let mut checker = Checker::new(trusted);
    for record in audit::read(chain, Filter::default())? {
        checker.record(&record?);
    }
    Ok(checker.findings)
}

/// Why a key statement of the chain is not valid, or why a start was not authorized.
#[derive(Clone, Debug, thiserror::Error)]
enum Violation {
    #[error(transparent)]
    Signed(#[from] SignedError),
    #[error(transparent)]
    Approver(#[from] ApproverError),
    #[error("{0}")]
    Key(#[from] ssh_key::Error),
    #[error("a key was enrolled before the host key was recorded")]
    NoHostKey,
    #[error("the host did not enroll the terminal key")]
    TerminalKey,
    #[error("a decision for a session cannot authorize root")]
    SessionForRoot,
    #[error("the hash of the rules is missing")]
    NoRulesHash,
    #[error("the kind of decision is unknown")]
    UnknownDecision,
    #[error("the decision is not signed")]
    Unsigned,
    #[error("the statement is for another host")]
    OtherHost,
    #[error("the statement does not allow this digest")]
    OtherDigest,
    #[error("the statement is for another audit chain: it refers to {0}")]
    OtherChain(Head),
    #[error("the statement is about another question")]
    OtherQuestion,
    #[error("the statement was not valid at that time")]
    OtherTime,
    #[error("the signed statement contains no grant")]
    NoGrant,
    #[error("the grant for {0} minutes had expired")]
    GrantExpired(u64),
    #[error("the grant {id} allows {times} uses, and this is use {used}")]
    GrantUsedUp { id: String, times: u32, used: u32 },
    #[error("the host did not sign the deciding uid")]
    UnsignedUid,
    #[error("the key {0} is not trusted")]
    UntrustedKey(String),
    #[error("the chain has no such request")]
    NoRequest,
    #[error("its digest differs from the request")]
    DigestDiffers,
    #[error("no earlier decision allows it")]
    Undecided,
}

/// A request that has not ended.
struct Request {
    question: Option<String>,
    digest: String,
    privileged: bool,
    /// The decision's `seq`, and what authorized the request or why the decision is invalid.
    allowed: Option<(u64, Result<String, Violation>)>,
}

struct Checker {
    trusted: TrustedKeys,
    /// The approvers that the chain records.
    list: ApproverList,
    /// Terminal keys, enrolled by the host.
    terminals: Vec<Approver>,
    host: Option<PublicKey>,
    heads: VecDeque<Head>,
    requests: HashMap<String, Request>,
    by_question: HashMap<String, String>,
    /// Uses of each grant.
    grant_uses: HashMap<String, u32>,
    /// When each grant was given, on the boot-time clock.
    grant_times: HashMap<String, u64>,
    findings: Findings,
}

fn text_field<'d>(data: &'d Value, name: &str) -> &'d str {
    data.get(name).and_then(Value::as_str).unwrap_or_default()
}

impl Checker {
    fn new(trusted: TrustedKeys) -> Checker {
        Checker {
            host: trusted.host.clone(),
            trusted,
            list: ApproverList::default(),
            terminals: Vec::new(),
            heads: VecDeque::new(),
            requests: HashMap::new(),
            by_question: HashMap::new(),
            grant_uses: HashMap::new(),
            grant_times: HashMap::new(),
            findings: Findings::default(),
        }
    }

    fn record(&mut self, record: &Record) {
        let data = &record.data;
        match record.event.as_str() {
            "key" => {
                if let Err(why) = self.on_key(record) {
                    self.findings.problems.push(format!("record {}: {why}", record.seq));
                }
            }
            "received" => self.on_received(data),
            "decided" => self.on_decided(record),
            "started" => self.on_started(record),
            "ended" => {
                if let Some(request) = self.requests.remove(text_field(data, "request")) {
                    request.question.map(|question| self.by_question.remove(&question));
                }
            }
            "voided" => self.on_voided(data),
            _ => {}
        }
        if let Some(head) = record.head() {
            if self.heads.len() >= HEADS_MAX {
                self.heads.pop_front();
            }
            self.heads.push_back(head);
        }
    }

    fn on_key(&mut self, record: &Record) -> Result<(), Violation> {
        let data = &record.data;
        let key = PublicKey::from_openssh(text_field(data, "key"))?;
        let print = fingerprint(&key);
        if text_field(data, "action") == "host" {
            let known = self.trusted.host.as_ref().or(self.host.as_ref());
            if known.is_some_and(|known| known.key_data() != key.key_data()) {
                let note = format!("record {}: the host key changed to {print}", record.seq);
                self.findings.notes.push(note);
            }
            if self.trusted.host.is_none() {
                self.host = Some(key);
            }
            return Ok(());
        }
        let signed = Signed {
            statement: text_field(data, "statement").into(),
            signature: text_field(data, "signature").into(),
        };
        let bytes = signed.statement_bytes()?;
        let change = KeyChange::decode(&bytes)?;
        let host = self.host.as_ref().ok_or(Violation::NoHostKey)?;
        if host.to_bytes().ok().as_deref() != Some(&change.host) {
            return Err(ApproverError::OtherHost.into());
        }
        let signature = signed.signature_bytes()?;
        if text_field(data, "action") == "terminal" {
            let by = signing::verify(HOST_NAMESPACE, &bytes, &signature)?;
            if by.key_data() != host.key_data() {
                return Err(Violation::TerminalKey);
            }
            self.terminals.push(change.approver()?);
            return Ok(());
        }
        let by = signing::verify(NAMESPACE, &bytes, &signature)?;
        if data.get("first") == Some(&Value::Bool(true)) {
            let again = if self.list.approvers.is_empty() { "" } else { " and replaces all earlier keys" };
            let note = format!("record {}: the key {print} was trusted on first use{again}", record.seq);
            self.findings.notes.push(note);
            // Decisions of earlier keys stay valid.
            let fresh = ApproverList::default();
            let earlier = std::mem::replace(&mut self.list, fresh).approvers;
            let applied = self.list.apply(&change, &by, change.issued_ms);
            self.list.approvers.extend(
                earlier
                    .into_iter()
                    .map(|old| Approver { revoked_ms: old.revoked_ms.or(Some(time_ms(record))), ..old }),
            );
            return Ok(applied?);
        }
        Ok(self.list.apply(&change, &by, time_ms(record))?)
    }

    fn on_received(&mut self, data: &Value) {
        let Some(stages) = data.get("pipeline") else { return };
        if stages.is_null() {
            return;
        }
        let question = data.get("question").and_then(Value::as_str).map(str::to_owned);
        let key = text_field(data, "request").to_owned();
        if let Some(question) = &question {
            self.by_question.insert(question.clone(), key.clone());
        }
        let privileged = data.get("privileged") == Some(&Value::Bool(true));
        let digest = text_field(data, "digest").to_owned();
        self.requests.insert(key, Request { question, digest, privileged, allowed: None });
    }

    fn on_decided(&mut self, record: &Record) {
        let data = &record.data;
        let asked = self.by_question.get(text_field(data, "question")).cloned();
        let key = asked.unwrap_or_else(|| text_field(data, "request").to_owned());
        let Some(request) = self.requests.get(&key) else { return };
        if data.get("allow") != Some(&Value::Bool(true)) {
            return;
        }
        let privileged = request.privileged;
        let allowed = match text_field(data, "decision") {
            "" | "grant" => self.check_signed(record, request),
            "session" if !privileged => Ok("a human at the terminal, for the session".to_owned()),
            "session" => Err(Violation::SessionForRoot),
            rule if rule.starts_with("rule:") && text_field(data, "rules_sha256").len() == 64 => {
                Ok(format!("{rule} of the rules with sha256 {}", text_field(data, "rules_sha256")))
            }
            rule if rule.starts_with("rule:") => Err(Violation::NoRulesHash),
            _ => Err(Violation::UnknownDecision),
        };
        let used = allowed.and_then(|by| self.count_use(record).map(|()| by));
        if let Some(request) = self.requests.get_mut(&key) {
            request.allowed = Some((record.seq, used));
        }
    }

    /// Returns the signer of a decision that is valid for this request.
    fn check_signed(&self, record: &Record, request: &Request) -> Result<String, Violation> {
        let data = &record.data;
        let proof = Proof {
            statement: text_field(data, "statement").into(),
            signature: text_field(data, "signature").into(),
            uid: data.get("uid").and_then(Value::as_u64).and_then(|uid| u32::try_from(uid).ok()),
        };
        if proof.signature.is_empty() {
            return Err(Violation::Unsigned);
        }
        let (statement, bytes) = proof.statement()?;
        let signer = self.find_signer(&proof, &bytes, request.privileged, time_ms(record))?;
        self.check_statement(&statement, record, request)?;
        Ok(signer)
    }

    fn check_statement(
        &self,
        statement: &Statement,
        record: &Record,
        request: &Request,
    ) -> Result<(), Violation> {
        let host = self.host.as_ref().and_then(|host| host.to_bytes().ok());
        if host.as_deref() != Some(&statement.host) {
            return Err(Violation::OtherHost);
        }
        if statement.digest != request.digest || !statement.decision.allow {
            return Err(Violation::OtherDigest);
        }
        let oldest = self.heads.front().map_or(u64::MAX, |oldest| oldest.seq);
        if statement.head.seq >= oldest && !self.heads.contains(&statement.head) {
            return Err(Violation::OtherChain(statement.head));
        }
        let time_ms = time_ms(record);
        if text_field(&record.data, "decision") == "grant" {
            return self.check_grant(statement, record);
        }
        if Some(&statement.question) != request.question.as_ref() {
            return Err(Violation::OtherQuestion);
        }
        let within = time_ms.saturating_add(CLOCK_SKEW_MS) >= statement.issued_ms
            && time_ms <= statement.expires_ms.saturating_add(CLOCK_SKEW_MS);
        if within { Ok(()) } else { Err(Violation::OtherTime) }
    }

    /// Whether a grant was valid at that time, by the boot-time clock.
    fn check_grant(&self, statement: &Statement, record: &Record) -> Result<(), Violation> {
        let minutes = match statement.decision.remember {
            None => return Err(Violation::NoGrant),
            Some(Remember::Times(_)) => return Ok(()),
            Some(Remember::Minutes(minutes)) => u64::from(minutes),
        };
        let Some(given_ns) = self.grant_times.get(&statement.id()) else { return Ok(()) };
        match record.boot_ns.checked_sub(*given_ns) {
            Some(age_ns) if age_ns <= minutes.saturating_mul(60_000_000_000) => Ok(()),
            _ => Err(Violation::GrantExpired(minutes)),
        }
    }

    fn find_signer(
        &self,
        proof: &Proof,
        bytes: &[u8],
        privileged: bool,
        time_ms: u64,
    ) -> Result<String, Violation> {
        let signature = proof.signature_bytes()?;
        if let Some(uid) = proof.uid {
            let by = signing::verify(HOST_NAMESPACE, &signing::uid_attestation(bytes, uid), &signature)?;
            return match self.host.as_ref().is_some_and(|host| host.key_data() == by.key_data()) {
                true => Ok(format!("uid {uid} without a signature, which root's file allowed")),
                false => Err(Violation::UnsignedUid),
            };
        }
        let key = signing::verify(NAMESPACE, bytes, &signature)?;
        let recorded = self.list.find(&key);
        let given = self.trusted.approvers.iter().find(|known| known.key.key_data() == key.key_data());
        let from_terminal = self.terminals.iter().find(|known| known.key.key_data() == key.key_data());
        let from_chain = recorded.filter(|_| self.trusted.from_chain).or(from_terminal);
        let approver = given.or(from_chain).ok_or_else(|| Violation::UntrustedKey(fingerprint(&key)))?;
        for known in [Some(approver), recorded].into_iter().flatten() {
            known.check_time(time_ms)?;
            known.check_root(privileged)?;
        }
        Ok(approver.title())
    }

    /// Counts a use of a grant, or notes the time of a new grant.
    fn count_use(&mut self, record: &Record) -> Result<(), Violation> {
        let id = text_field(&record.data, "grant");
        if text_field(&record.data, "statement").is_empty() {
            return Ok(());
        }
        let proof = Proof {
            statement: text_field(&record.data, "statement").into(),
            signature: String::new(),
            uid: None,
        };
        let (statement, _) = proof.statement()?;
        if id.is_empty() {
            if statement.decision.remember.is_some() {
                self.grant_times.insert(statement.id(), record.boot_ns);
            }
            return Ok(());
        }
        let used = self.grant_uses.entry(statement.id()).or_default();
        *used += 1;
        match statement.decision.remember {
            Some(Remember::Times(times)) if *used > times => {
                Err(Violation::GrantUsedUp { id: id.to_owned(), times, used: *used })
            }
            _ => Ok(()),
        }
    }

    fn on_started(&mut self, record: &Record) {
        let key = text_field(&record.data, "request");
        if self.host.is_none() {
            self.findings.before_signing += 1;
            return;
        }
        let privileged = record.data.get("privileged") == Some(&Value::Bool(true));
        let request = self.requests.get(key);
        let privileged = privileged || request.is_some_and(|request| request.privileged);
        let digest = text_field(&record.data, "digest");
        let allowed = match request {
            None => Err(Violation::NoRequest),
            Some(request) if request.digest != digest => Err(Violation::DigestDiffers),
            Some(Request { allowed: None, .. }) => Err(Violation::Undecided),
            Some(Request { allowed: Some((_, allowed)), .. }) => allowed.clone(),
        };
        match allowed {
            Ok(by) if privileged => *self.findings.privileged.entry(by).or_default() += 1,
            Ok(_) => {}
            Err(why) => {
                let problem =
                    format!("record {}: request {key} was started without authorization: {why}", record.seq);
                self.findings.problems.push(problem);
            }
        }
    }

    /// Voided records authorize nothing.
    fn on_voided(&mut self, data: &Value) {
        let number = |name: &str| data.get(name).and_then(Value::as_u64).unwrap_or_default();
        let (from, to) = (number("from"), number("to"));
        for request in self.requests.values_mut() {
            if request.allowed.as_ref().is_some_and(|(seq, _)| (from..=to).contains(seq)) {
                request.allowed = None;
            }
        }
    }
}

fn time_ms(record: &Record) -> u64 {
    u64::try_from(record.time.as_millisecond()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
