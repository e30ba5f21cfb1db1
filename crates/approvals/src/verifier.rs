//! Verifies decisions: their statements and signatures, against the host key and the approvers.

use crate::approvers::{
    Approver, ApproverError, ApproverList, RequestAttributes, RootFile, RootFileError, SignedList,
};
use crate::question::Question;
use crate::signing::{
    self, HOST_NAMESPACE, HostKey, KeyAction, KeyChange, NAMESPACE, Proof, PublicKey, Signed, SignedError,
    Signer, Statement, VALID_MS,
};
use crate::{Error, Result};
use outpost_ledger::audit::Event;
use outpost_ledger::unix_ms;
use outpost_ledger::{Ledger, LedgerTx};
use serde_json::json;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) const SCHEMA: &str = "create table if not exists host_keys (key text primary key) strict;";

/// How far an approver's clock may be ahead of the host's clock.
const CLOCK_AHEAD_MS: u64 = 5 * 60 * 1000;

/// File with the hash of the approver secret of an earlier version.
const OLD_SECRET: &str = "approver.sha256";

/// The reply to a client that still sends the old secret.
pub(crate) const OLD_SECRET_REFUSED: &str = "the approver's secret is not used any more: decisions are signed\n\
    hint: `outpost approvals enroll` makes a key and removes what is left of the secret";

/// The keys and approvers that decisions are verified against.
pub struct Verifier {
    dir: PathBuf,
    host: HostKey,
    host_name: String,
    /// Root's policy directory. If it exists, only the approvers in it count.
    etc: PathBuf,
    /// The approvers come from root's file even if the directory does not exist.
    is_guard: bool,
    signed_list: Mutex<std::result::Result<SignedList, ListError>>,
    root_list: Mutex<Option<CachedRootList>>,
    /// The key of this process's own terminal.
    terminal: Mutex<Option<Approver>>,
}

/// The content of root's file, and its stamp at load time.
type CachedRootList = (FileStamp, std::result::Result<Arc<ApproverList>, RootFileError>);

/// Detects a change of root's file: inode, size and ctime.
type FileStamp = Option<(u64, u64, i64, i64)>;

/// Why the approvers cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    #[error(transparent)]
    Root(#[from] RootFileError),
    /// The log of key changes cannot be read or replayed, for this reason.
    #[error("{0}")]
    Signed(String),
}

/// Why a decision or a grant does not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecisionError {
    #[error("the statement is about another question")]
    OtherQuestion,
    #[error("the decision does not match question {0}; show it again")]
    OtherContent(String),
    #[error("the signed grant does not allow this digest")]
    OtherDigest,
    #[error("the signed statement contains no grant")]
    NoGrant,
    #[error("the statement is for another host")]
    OtherHost,
    #[error("uid {0} may not decide without a signature")]
    UntrustedUid(u32),
    #[error(transparent)]
    Approver(#[from] ApproverError),
    #[error(transparent)]
    Signed(#[from] SignedError),
    #[error(transparent)]
    List(#[from] ListError),
}

impl From<DecisionError> for Error {
    fn from(error: DecisionError) -> Error {
        Error::Key(error.to_string())
    }
}

/// A decision with a valid signature.
pub struct VerifiedDecision {
    pub statement: Statement,
    /// The approver's name and fingerprint.
    pub signer: String,
}

impl Verifier {
    pub(crate) fn open(dir: &Path, etc: &Path, is_guard: bool) -> Result<Verifier> {
        let host = HostKey::open(&dir.join("host.key"))?;
        let signed_list = SignedList::open(dir, host.blob());
        if let Err(error) = &signed_list {
            tracing::error!(%error, "cannot load the approvers; nothing can be approved");
        }
        let host_name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Ok(Verifier {
            dir: dir.to_owned(),
            host_name: host_name.trim().to_owned(),
            signed_list: Mutex::new(signed_list.map_err(|error| ListError::Signed(error.to_string()))),
            host,
            etc: etc.to_owned(),
            is_guard,
            root_list: Mutex::default(),
            terminal: Mutex::default(),
        })
    }

    pub fn host(&self) -> &HostKey {
        &self.host
    }

    /// Root's file, if the approvers come from it.
    pub fn root_file(&self) -> Option<RootFile> {
        (self.is_guard || std::fs::symlink_metadata(&self.etc).is_ok()).then(|| RootFile::in_dir(&self.etc))
    }

    /// The current approvers, or why they cannot be used.
    pub fn list(&self) -> std::result::Result<Arc<ApproverList>, ListError> {
        let list = match self.root_file() {
            Some(file) => self.load_root_list(&file)?,
            None => match &*self.signed_list.lock().unwrap_or_else(PoisonError::into_inner) {
                Ok(signed) => signed.list.clone(),
                Err(why) => return Err(why.clone()),
            },
        };
        let terminal = self.terminal.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let own_uid = outpost_sys::process::effective_uid();
        match terminal.filter(|_| self.root_file().is_none() || list.trusted_uids.contains(&own_uid)) {
            None => Ok(list),
            Some(terminal) => {
                let mut list = (*list).clone();
                list.approvers.push(terminal);
                Ok(Arc::new(list))
            }
        }
    }

    fn load_root_list(&self, file: &RootFile) -> std::result::Result<Arc<ApproverList>, RootFileError> {
        let stamp = std::fs::metadata(file.path()).ok();
        let stamp = stamp.map(|file| (file.ino(), file.len(), file.ctime(), file.ctime_nsec()));
        let mut known = self.root_list.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((then, list)) = &*known
            && *then == stamp
        {
            return list.clone();
        }
        let list = file.read().map(Arc::new);
        if let Err(why) = &list {
            tracing::error!(%why, "cannot load the approvers; nothing can be approved");
        }
        known.insert((stamp, list)).1.clone()
    }

    /// Whether this user may decide without a signature.
    pub(crate) fn is_trusted_uid(&self, uid: u32) -> bool {
        self.list().is_ok_and(|list| list.trusted_uids.contains(&uid))
    }

    /// Records the host key once. From then on, every decision in the chain is signed.
    pub(crate) fn record_host(&self, tx: &mut LedgerTx<'_>) -> Result<()> {
        let key = self.host.public().to_openssh().unwrap_or_default();
        if tx.execute("store the host key", "insert or ignore into host_keys values (?)", (&key,))? == 0 {
            return Ok(());
        }
        let print = signing::fingerprint(self.host.public());
        tx.record(Event::Key, &json!({ "action": "host", "key": key, "fingerprint": print }))?;
        tx.require_fsync();
        Ok(())
    }

    /// Creates a key for the terminal of this process. The key is valid until the process exits. The host signs
    /// its enrollment.
    pub(crate) async fn enroll_terminal(&self, ledger: &Ledger) -> Result<Signer> {
        let signer = Signer::random()?;
        let blob = signer.key().to_bytes().map_err(|error| Error::Key(error.to_string()))?;
        let change = KeyChange::new(KeyAction::Enroll, self.host.blob(), ledger.head(), &blob, "terminal");
        let bytes = change.encode();
        let signed = Signed::new(&bytes, &self.host.sign(&bytes)?);
        let mut data =
            key_record(&change, &signed, &format!("uid {}", outpost_sys::process::effective_uid()));
        data["action"] = json!("terminal");
        let write = move |tx: &mut LedgerTx<'_>| {
            tx.record(Event::Key, &data)?;
            tx.require_fsync();
            Ok(())
        };
        ledger.transact(write).await?;
        let approver = Approver {
            key: signer.key().clone(),
            name: "terminal".into(),
            root: true,
            users: Vec::new(),
            hosts: Vec::new(),
            not_after_ms: 0,
            revoked_ms: None,
        };
        *self.terminal.lock().unwrap_or_else(PoisonError::into_inner) = Some(approver);
        Ok(signer)
    }

    /// Signs, with the host key, that this user made a decision without a signature. Fails unless root's file
    /// allows it.
    pub(crate) fn attest_uid(&self, statement: &Signed, uid: u32) -> Result<Proof> {
        if !self.is_trusted_uid(uid) {
            return Err(Error::Key(self.unsigned_error()));
        }
        let bytes = statement.statement_bytes()?;
        let signature = self.host.sign(&signing::uid_attestation(&bytes, uid))?;
        let signature = signing::base64(&signature);
        Ok(Proof { statement: statement.statement.clone(), signature, uid: Some(uid) })
    }

    /// Why a decision without a signature is rejected, and the next step.
    fn unsigned_error(&self) -> String {
        let hint = match (self.root_file(), self.list()) {
            (_, Ok(list)) if !list.approvers.is_empty() => {
                "sign it with an approver's key: --key FILE, or a key in ssh-agent".to_owned()
            }
            (Some(file), _) => format!(
                "root enrolls a key with `sudo outpost approvals enroll`, or names this user under trusted_users in {}",
                file.path().display()
            ),
            (None, _) => "make a key with `outpost approvals enroll`".to_owned(),
        };
        format!("a decision needs an approver's signature\nhint: {hint}")
    }

    /// Verifies a decision when it is submitted.
    pub(crate) fn check_new(&self, question: &Question, proof: &Proof) -> Result<VerifiedDecision> {
        let verified = self.check(question, proof)?;
        let Statement { issued_ms, expires_ms, .. } = verified.statement;
        check_window(issued_ms, expires_ms)?;
        Ok(verified)
    }

    /// Verifies a decision against its question and the current state of its key. Does not check the submission
    /// window.
    pub fn check(
        &self,
        question: &Question,
        proof: &Proof,
    ) -> std::result::Result<VerifiedDecision, DecisionError> {
        let verified = self.verify_proof(proof, &RequestAttributes::of(question))?;
        let statement = &verified.statement;
        if statement.question != question.id {
            return Err(DecisionError::OtherQuestion);
        }
        if statement.digest != question.digest || statement.shown != signing::shown_hash(question) {
            return Err(DecisionError::OtherContent(question.id.clone()));
        }
        Ok(verified)
    }

    /// Verifies a grant's signature and digest. The row's boot-time clock limits its duration: setting the wall
    /// clock must not end or extend a grant.
    pub fn check_grant(
        &self,
        digest: &str,
        request: &RequestAttributes,
        proof: &Proof,
    ) -> std::result::Result<VerifiedDecision, DecisionError> {
        let verified = self.verify_proof(proof, request)?;
        let statement = &verified.statement;
        if statement.digest != digest || !statement.decision.allow {
            return Err(DecisionError::OtherDigest);
        }
        match statement.decision.remember {
            None => Err(DecisionError::NoGrant),
            Some(_) => Ok(verified),
        }
    }

    fn verify_proof(
        &self,
        proof: &Proof,
        request: &RequestAttributes,
    ) -> std::result::Result<VerifiedDecision, DecisionError> {
        let (statement, bytes) = proof.statement()?;
        if statement.host != self.host.blob() {
            return Err(DecisionError::OtherHost);
        }
        let list = self.list()?;
        let signature = proof.signature_bytes()?;
        let signer = match proof.uid {
            None => {
                let key = signing::verify(NAMESPACE, &bytes, &signature)?;
                list.authorize(&key, request, &self.host_name, unix_ms())?.title()
            }
            Some(uid) => {
                let key =
                    signing::verify(HOST_NAMESPACE, &signing::uid_attestation(&bytes, uid), &signature)?;
                if key.key_data() != self.host.public().key_data() || !list.trusted_uids.contains(&uid) {
                    return Err(DecisionError::UntrustedUid(uid));
                }
                format!("uid {uid} without a signature")
            }
        };
        Ok(VerifiedDecision { statement, signer })
    }

    /// The host's signature over an accepted statement. Deterministic.
    pub(crate) fn receipt(&self, statement: &Signed) -> Result<String> {
        let bytes = statement.statement_bytes()?;
        Ok(signing::base64(&self.host.sign(&signing::receipt_message(&bytes))?))
    }

    fn old_secret(&self) -> PathBuf {
        self.dir.join(OLD_SECRET)
    }

    pub(crate) fn has_old_secret(&self) -> bool {
        self.old_secret().exists()
    }

    /// Changes the signed list. The change is recorded in the audit chain before it takes effect.
    pub(crate) fn change(&self, tx: &mut LedgerTx<'_>, signed: &Signed, peer: &str) -> Result<String> {
        if let Some(file) = self.root_file() {
            return Err(Error::Refused(format!(
                "the approvers of this host are in {}\nhint: root changes them, with `sudo outpost approvals …`",
                file.path().display()
            )));
        }
        let mut signed_list = self.signed_list.lock().unwrap_or_else(PoisonError::into_inner);
        let signed_list = signed_list.as_mut().map_err(|why| Error::Refused(why.to_string()))?;
        let is_first = signed_list.list.approvers.is_empty();
        let (change, list) = signed_list.apply(signed, unix_ms())?;
        check_window(change.issued_ms, change.expires_ms)?;
        let key = PublicKey::from_bytes(&change.key).map_err(|error| Error::Key(error.to_string()))?;
        let mut data = key_record(&change, signed, peer);
        if is_first {
            data["first"] = json!(true);
        }
        tx.record(Event::Key, &data)?;
        tx.require_fsync();
        signed_list.commit(signed.clone(), &change, list)?;
        let old = self.old_secret();
        if is_first && old.exists() {
            std::fs::remove_file(&old).map_err(|error| Error::file("remove", &old, error))?;
        }
        Ok(signing::fingerprint(&key))
    }
}

/// The audit record of a key change.
fn key_record(change: &KeyChange, signed: &Signed, peer: &str) -> serde_json::Value {
    let key = PublicKey::from_bytes(&change.key).ok();
    json!({
        "action": change.action.name(), "name": change.name, "by": peer,
        "key": key.as_ref().and_then(|key| key.to_openssh().ok()),
        "fingerprint": key.as_ref().map(signing::fingerprint),
        "statement": signed.statement, "signature": signed.signature,
    })
}

fn check_window(issued_ms: u64, expires_ms: u64) -> Result<()> {
    let now_ms = unix_ms();
    let refuse = |why: &str| Err(Error::Key(format!("{why}\nhint: compare the clocks of both hosts")));
    if expires_ms.saturating_sub(issued_ms) > VALID_MS {
        return refuse("the statement is valid for too long");
    }
    if issued_ms > now_ms.saturating_add(CLOCK_AHEAD_MS) {
        return refuse("the statement was issued in the future");
    }
    match now_ms >= expires_ms {
        true => refuse("the statement has expired"),
        false => Ok(()),
    }
}
