//! Whose decisions count: checks statements and their signatures against this host's key and its approvers.

use crate::approvers::{Approver, List, Matter, OwnList, RootFile};
use crate::audit::Event;
use crate::ledger::{Books, Ledger};
use crate::question::Question;
use crate::signing::{
    self, HOST_NAMESPACE, HostKey, KeyAction, KeyChange, NAMESPACE, Proof, PublicKey, Signed, Signer,
    Statement, VALID_MS,
};
use crate::{Error, Result, unix_ms};
use serde_json::json;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) const SCHEMA: &str = "create table if not exists host_keys (key text primary key) strict;";

/// How far an approver's clock may be ahead of ours.
const CLOCK_AHEAD_MS: u64 = 5 * 60 * 1000;

/// The digest of the secret that approvers had before they had keys.
const OLD_SECRET: &str = "approver.sha256";

/// The answer to a client that still has the old secret.
pub(crate) const OLD_SECRET_REFUSED: &str = "the approver's secret is not used any more: decisions are signed\n\
    hint: `outpost approvals enroll` makes a key and removes what is left of the secret";

/// Everything that decisions are checked against.
pub struct Trust {
    dir: PathBuf,
    host: HostKey,
    host_name: String,
    /// Root's directory of policy: where it exists, only approvers in it count.
    etc: PathBuf,
    /// Approvers come from root's file also where the directory does not exist.
    is_guard: bool,
    own: Mutex<std::result::Result<OwnList, String>>,
    from_root: Mutex<Option<FromRoot>>,
    /// The key of the terminal that this very process asks on.
    terminal: Mutex<Option<Approver>>,
}

/// What root's file had when it was in this state.
type FromRoot = (Stamp, std::result::Result<Arc<List>, String>);

/// Distinguishes one state of root's file from another.
type Stamp = Option<(u64, u64, i64, i64)>;

/// A decision that counts.
pub struct Verified {
    pub statement: Statement,
    /// The approver, for people.
    pub signer: String,
}

impl Trust {
    pub(crate) fn open(dir: &Path, etc: &Path, is_guard: bool) -> Result<Trust> {
        let host = HostKey::open(&dir.join("host.key"))?;
        let own = OwnList::open(dir, host.blob());
        if let Err(error) = &own {
            tracing::error!(%error, "nothing can be approved");
        }
        let host_name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Ok(Trust {
            dir: dir.to_owned(),
            host_name: host_name.trim().to_owned(),
            own: Mutex::new(own.map_err(|error| error.to_string())),
            host,
            etc: etc.to_owned(),
            is_guard,
            from_root: Mutex::default(),
            terminal: Mutex::default(),
        })
    }

    pub fn host(&self) -> &HostKey {
        &self.host
    }

    /// Root's file, where approvers come from it.
    pub fn root_file(&self) -> Option<RootFile> {
        (self.is_guard || std::fs::symlink_metadata(&self.etc).is_ok()).then(|| RootFile::in_dir(&self.etc))
    }

    /// The approvers as they are now; the reason where the list cannot be used.
    pub fn list(&self) -> std::result::Result<Arc<List>, String> {
        let list = match self.root_file() {
            Some(file) => self.roots_list(&file)?,
            None => match &*self.own.lock().unwrap_or_else(PoisonError::into_inner) {
                Ok(own) => own.list.clone(),
                Err(why) => return Err(why.clone()),
            },
        };
        let terminal = self.terminal.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let own_uid = outpost_sys::limits::effective_uid();
        match terminal.filter(|_| self.root_file().is_none() || list.trusted.contains(&own_uid)) {
            None => Ok(list),
            Some(terminal) => {
                let mut list = (*list).clone();
                list.approvers.push(terminal);
                Ok(Arc::new(list))
            }
        }
    }

    fn roots_list(&self, file: &RootFile) -> std::result::Result<Arc<List>, String> {
        let stamp = std::fs::metadata(file.path()).ok();
        let stamp = stamp.map(|of| (of.ino(), of.len(), of.ctime(), of.ctime_nsec()));
        let mut known = self.from_root.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((then, list)) = &*known
            && *then == stamp
        {
            return list.clone();
        }
        let list = file.read().map(Arc::new);
        if let Err(why) = &list {
            tracing::error!(why, "nothing can be approved");
        }
        known.insert((stamp, list)).1.clone()
    }

    /// Whether decisions of this user count without a signature.
    pub(crate) fn trusts(&self, uid: u32) -> bool {
        self.list().is_ok_and(|list| list.trusted.contains(&uid))
    }

    /// Records the host's key, once: from then on every decision in the chain is signed.
    pub(crate) fn record_host(&self, books: &mut Books<'_>) -> Result<()> {
        let key = self.host.public().to_openssh().unwrap_or_default();
        if books.execute("store the host's key", "insert or ignore into host_keys values (?)", (&key,))? == 0
        {
            return Ok(());
        }
        let print = signing::fingerprint(self.host.public());
        books.record(Event::Key, &json!({ "action": "host", "key": key, "fingerprint": print }))?;
        books.must_last();
        Ok(())
    }

    /// Makes a key that counts until this process ends, for the terminal that it asks on itself. The host signs its
    /// enrolment.
    pub(crate) async fn enroll_terminal(&self, ledger: &Ledger) -> Result<Signer> {
        let signer = Signer::random()?;
        let blob = signer.key().to_bytes().map_err(|error| Error::Key(error.to_string()))?;
        let change = KeyChange::new(KeyAction::Enroll, self.host.blob(), ledger.head(), &blob, "terminal");
        let bytes = change.encode();
        let signed = Signed::new(&bytes, &self.host.sign(&bytes)?);
        let mut data = record(&change, &signed, &format!("uid {}", outpost_sys::limits::effective_uid()));
        data["action"] = json!("terminal");
        let write = move |books: &mut Books<'_>| {
            books.record(Event::Key, &data)?;
            books.must_last();
            Ok(())
        };
        ledger.write(write).await?;
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

    /// The proof of a decision that a user made without a signature, if root's file allows that.
    pub(crate) fn witness(&self, statement: &Signed, uid: u32) -> Result<Proof> {
        if !self.trusts(uid) {
            return Err(Error::Key(self.unsigned()));
        }
        let bytes = statement.statement_bytes().map_err(Error::Key)?;
        let signature = self.host.sign(&signing::witness(&bytes, uid))?;
        let signature = signing::base64(&signature);
        Ok(Proof { statement: statement.statement.clone(), signature, uid: Some(uid) })
    }

    /// Why a decision without a signature does not count, and what to do.
    fn unsigned(&self) -> String {
        let hint = match (self.root_file(), self.list()) {
            (_, Ok(list)) if !list.approvers.is_empty() => {
                "sign it with an approver's key: --key FILE, or a key in ssh-agent".to_owned()
            }
            (Some(file), _) => format!(
                "root enrols a key with `sudo outpost approvals enroll`, or names this user under trusted_users in {}",
                file.path().display()
            ),
            (None, _) => "make a key with `outpost approvals enroll`".to_owned(),
        };
        format!("a decision needs an approver's signature\nhint: {hint}")
    }

    /// Checks a decision about a question that waits, when it comes in.
    pub(crate) fn check_new(&self, question: &Question, proof: &Proof) -> Result<Verified> {
        let verified = self.check(question, proof).map_err(Error::Key)?;
        let Statement { issued_ms, expires_ms, .. } = verified.statement;
        check_window(issued_ms, expires_ms)?;
        Ok(verified)
    }

    /// Checks that a decision about a question counts now: by its signature, and by what is known of the key by now.
    pub fn check(&self, question: &Question, proof: &Proof) -> std::result::Result<Verified, String> {
        let verified = self.examine(proof, &Matter::of(question))?;
        let statement = &verified.statement;
        if statement.question != question.id {
            return Err("the statement is about another question".into());
        }
        if statement.digest != question.digest || statement.shown != signing::shown(question) {
            return Err(format!(
                "question {} is about something else than what was decided; show it again",
                question.id
            ));
        }
        Ok(verified)
    }

    /// Checks that a grant is signed for this digest, by a key that counts now. Its time is on the clock since boot, which its
    /// row has: one that can be set would end or revive it.
    pub fn check_grant(
        &self,
        digest: &str,
        matter: &Matter,
        proof: &Proof,
    ) -> std::result::Result<Verified, String> {
        let verified = self.examine(proof, matter)?;
        let statement = &verified.statement;
        if statement.digest != digest || !statement.decision.allow {
            return Err("the statement of the grant is about something else".into());
        }
        match statement.decision.remember {
            None => Err("the statement of the grant grants nothing".into()),
            Some(_) => Ok(verified),
        }
    }

    fn examine(&self, proof: &Proof, matter: &Matter) -> std::result::Result<Verified, String> {
        let (statement, bytes) = proof.statement()?;
        if statement.host != self.host.blob() {
            return Err("the statement is for another host".into());
        }
        let list = self.list()?;
        let signature = proof.signature_bytes()?;
        let signer = match proof.uid {
            None => {
                let key = signing::verify(NAMESPACE, &bytes, &signature)?;
                list.admit(&key, matter, &self.host_name, unix_ms())?.title()
            }
            Some(uid) => {
                let key = signing::verify(HOST_NAMESPACE, &signing::witness(&bytes, uid), &signature)?;
                if key.key_data() != self.host.public().key_data() || !list.trusted.contains(&uid) {
                    return Err(format!("uid {uid} may not decide without a signature"));
                }
                format!("uid {uid} without a signature")
            }
        };
        Ok(Verified { statement, signer })
    }

    /// The host's signature over an accepted statement. It is the same each time.
    pub(crate) fn receipt(&self, statement: &Signed) -> Result<String> {
        let bytes = statement.statement_bytes().map_err(Error::Key)?;
        Ok(signing::base64(&self.host.sign(&signing::receipt(&bytes))?))
    }

    /// What is left of the time of secrets.
    fn old_secret(&self) -> PathBuf {
        self.dir.join(OLD_SECRET)
    }

    pub(crate) fn has_old_secret(&self) -> bool {
        self.old_secret().exists()
    }

    /// Changes this daemon's own list: recorded first, so that no key counts that the audit chain does not have.
    pub(crate) fn change(&self, books: &mut Books<'_>, signed: &Signed, peer: &str) -> Result<String> {
        if let Some(file) = self.root_file() {
            return Err(Error::Refused(format!(
                "the approvers of this host are in {}\nhint: root changes them, with `sudo outpost approvals …`",
                file.path().display()
            )));
        }
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let own = own.as_mut().map_err(|why| Error::Refused(why.clone()))?;
        let is_first = own.list.approvers.is_empty();
        let (change, list) = own.with(signed, unix_ms()).map_err(Error::Key)?;
        check_window(change.issued_ms, change.expires_ms)?;
        let key = PublicKey::from_bytes(&change.key).map_err(|error| Error::Key(error.to_string()))?;
        let mut data = record(&change, signed, peer);
        if is_first {
            data["first"] = json!(true);
        }
        books.record(Event::Key, &data)?;
        books.must_last();
        own.commit(signed.clone(), &change, list)?;
        let old = self.old_secret();
        if is_first && old.exists() {
            std::fs::remove_file(&old).map_err(|error| Error::file("remove", &old, error))?;
        }
        Ok(signing::fingerprint(&key))
    }
}

/// A change of keys, as the audit chain has it.
fn record(change: &KeyChange, signed: &Signed, peer: &str) -> serde_json::Value {
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
        return refuse("the statement was made in the future");
    }
    match now_ms >= expires_ms {
        true => refuse("the statement has expired"),
        false => Ok(()),
    }
}
