//! Approvers: public keys with a name, a scope and an expiry, and the changes that other keys may make to them.

mod error;
mod root_file;
mod signed_list;

pub use error::{ApproverError, RootFileError};
pub use root_file::RootFile;
pub(crate) use signed_list::SignedList;

use crate::question::Question;
use crate::signing::{KeyAction, KeyChange, PublicKey, fingerprint};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Maximum length of an approver's name.
const NAME_CHARS_MAX: usize = 64;

/// Maximum number of approvers of one host.
const APPROVERS_MAX: usize = 1000;

/// A public key that may decide, and its scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approver {
    pub key: PublicKey,
    pub name: String,
    /// May decide what runs as root.
    pub root: bool,
    /// Users whose questions this key may decide. Empty: all users.
    pub users: Vec<String>,
    /// Host names where this key may decide. Empty: all hosts.
    pub hosts: Vec<String>,
    /// Expiry in Unix milliseconds; 0 means never.
    pub not_after_ms: u64,
    /// Time of revocation in Unix milliseconds.
    pub revoked_ms: Option<u64>,
}

/// The attributes of a request that an approver's scope is checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestAttributes {
    pub privileged: bool,
    /// The user that owns the asking process.
    pub uid: u32,
}

impl RequestAttributes {
    pub fn of(question: &Question) -> RequestAttributes {
        let own = outpost_sys::process::effective_uid;
        RequestAttributes { privileged: question.privileged, uid: question.uid.unwrap_or_else(own) }
    }
}

/// An approver as sent to clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApproverInfo {
    pub name: String,
    /// OpenSSH format: algorithm and base64.
    pub key: String,
    pub fingerprint: String,
    pub root: bool,
    pub users: Vec<String>,
    pub hosts: Vec<String>,
    /// RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<String>,
    /// The key is neither expired nor revoked.
    pub usable: bool,
}

impl Approver {
    /// Name and fingerprint, for messages and audit records.
    pub fn title(&self) -> String {
        format!("{} ({})", self.name, fingerprint(&self.key))
    }

    /// Fails if the key is expired or revoked at this time.
    pub(crate) fn check_time(&self, now_ms: u64) -> Result<(), ApproverError> {
        if self.revoked_ms.is_some_and(|revoked| now_ms >= revoked) {
            return Err(ApproverError::Revoked { key: self.title() });
        }
        match self.not_after_ms != 0 && now_ms >= self.not_after_ms {
            true => Err(ApproverError::Expired { key: self.title() }),
            false => Ok(()),
        }
    }

    /// Fails if the key may not decide what runs as root, and this would.
    pub(crate) fn check_root(&self, privileged: bool) -> Result<(), ApproverError> {
        match privileged && !self.root {
            true => Err(ApproverError::NotForRoot { key: self.title() }),
            false => Ok(()),
        }
    }

    fn check_scope(&self, request: &RequestAttributes, host: &str) -> Result<(), ApproverError> {
        self.check_root(request.privileged)?;
        if !self.hosts.is_empty() && !self.hosts.iter().any(|name| name == host) {
            return Err(ApproverError::NotOnHost { key: self.title(), host: host.to_owned() });
        }
        if self.users.is_empty() {
            return Ok(());
        }
        let user = outpost_sys::user::by_uid(request.uid).ok().flatten();
        let user = user.map(|user| user.name.to_string_lossy().into_owned());
        let user = user.unwrap_or_else(|| request.uid.to_string());
        match self.users.contains(&user) {
            true => Ok(()),
            false => Err(ApproverError::NotForUser { key: self.title(), user }),
        }
    }

    /// Whether the scope of this key includes the scope of the other.
    fn covers(&self, other: &Approver) -> bool {
        let within = |mine: &[String], theirs: &[String]| {
            mine.is_empty() || (!theirs.is_empty() && theirs.iter().all(|name| mine.contains(name)))
        };
        (self.root || !other.root) && within(&self.users, &other.users) && within(&self.hosts, &other.hosts)
    }

    pub fn info(&self, now_ms: u64) -> ApproverInfo {
        let bare = PublicKey::from(self.key.key_data().clone());
        ApproverInfo {
            name: self.name.clone(),
            key: bare.to_openssh().unwrap_or_default(),
            fingerprint: fingerprint(&self.key),
            root: self.root,
            users: self.users.clone(),
            hosts: self.hosts.clone(),
            expires: (self.not_after_ms != 0).then(|| rfc3339(self.not_after_ms)),
            revoked: self.revoked_ms.map(rfc3339),
            usable: self.check_time(now_ms).is_ok(),
        }
    }
}

impl KeyChange {
    /// The approver that an enrollment creates.
    pub(crate) fn approver(&self) -> Result<Approver, ApproverError> {
        Ok(Approver {
            key: PublicKey::from_bytes(&self.key).map_err(ApproverError::Key)?,
            name: self.name.clone(),
            root: self.root,
            users: self.users.clone(),
            hosts: self.hosts.clone(),
            not_after_ms: self.not_after_ms,
            revoked_ms: None,
        })
    }
}

/// RFC 3339 with seconds.
fn rfc3339(unix_ms: u64) -> String {
    let time = i64::try_from(unix_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    time.map(|time| format!("{time:.0}")).unwrap_or_default()
}

/// Checks an approver's name. It appears in messages and audit records, so it must be printable.
pub fn check_name(name: &str) -> Result<(), ApproverError> {
    let printable = name.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    match printable && name.trim() == name && (1..=NAME_CHARS_MAX).contains(&name.len()) {
        true => Ok(()),
        false => Err(ApproverError::Name),
    }
}

/// The approvers of a host, and its users with special rights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApproverList {
    pub approvers: Vec<Approver>,
    /// Users that may decide without a signature. Only root's file can set this.
    pub trusted_uids: Vec<u32>,
    /// Users that see all questions.
    pub viewer_uids: Vec<u32>,
}

impl ApproverList {
    pub fn find(&self, key: &PublicKey) -> Option<&Approver> {
        self.approvers.iter().find(|approver| approver.key.key_data() == key.key_data())
    }

    fn find_approver(&self, key: &PublicKey) -> Result<&Approver, ApproverError> {
        self.find(key).ok_or_else(|| ApproverError::NotApprover { fingerprint: fingerprint(key) })
    }

    fn find_mut(&mut self, key: &PublicKey) -> Option<&mut Approver> {
        self.approvers.iter_mut().find(|approver| approver.key.key_data() == key.key_data())
    }

    /// Returns the approver with this key, if it may decide this request now.
    pub fn authorize(
        &self,
        key: &PublicKey,
        request: &RequestAttributes,
        host: &str,
        now_ms: u64,
    ) -> Result<&Approver, ApproverError> {
        let found = self.find_approver(key)?;
        found.check_time(now_ms)?;
        found.check_scope(request, host)?;
        Ok(found)
    }

    fn is_usable(&self, now_ms: u64) -> bool {
        self.approvers.iter().any(|approver| approver.check_time(now_ms).is_ok())
    }

    /// Applies a change that `signer` has signed. The first key signs its own enrollment.
    pub fn apply(
        &mut self,
        change: &KeyChange,
        signer: &PublicKey,
        now_ms: u64,
    ) -> Result<(), ApproverError> {
        let wanted = change.approver()?;
        let key = wanted.key.clone();
        let target = match change.action {
            KeyAction::Enroll => wanted.clone(),
            _ => {
                let found = self.find(&key).filter(|found| found.revoked_ms.is_none()).cloned();
                found.ok_or_else(|| ApproverError::NotEnrolled { fingerprint: fingerprint(&key) })?
            }
        };
        self.check_signer(&target, signer, now_ms)?;
        match change.action {
            KeyAction::Enroll => self.enroll(wanted),
            KeyAction::Rename => {
                self.check_new_name(&change.name)?;
                self.change(&key, |found| found.name = change.name.clone())
            }
            KeyAction::Expire => self.change(&key, |found| found.not_after_ms = change.not_after_ms),
            KeyAction::Revoke => {
                let mut without = self.clone();
                without.change(&key, |found| found.revoked_ms = Some(now_ms))?;
                if !without.is_usable(now_ms) {
                    return Err(ApproverError::LastKey);
                }
                *self = without;
                Ok(())
            }
        }
    }

    fn check_signer(&self, target: &Approver, signer: &PublicKey, now_ms: u64) -> Result<(), ApproverError> {
        if self.approvers.is_empty() {
            return match target.key.key_data() == signer.key_data() {
                true => Ok(()),
                false => Err(ApproverError::FirstKey),
            };
        }
        let by = self.find_approver(signer)?;
        by.check_time(now_ms)?;
        match by.covers(target) {
            true => Ok(()),
            false => Err(ApproverError::SmallerScope { signer: by.title(), key: target.title() }),
        }
    }

    /// Adds an approver. Fails if its key or its name is already in use.
    pub fn enroll(&mut self, approver: Approver) -> Result<(), ApproverError> {
        if let Some(found) = self.find(&approver.key) {
            return Err(match found.revoked_ms {
                Some(_) => ApproverError::EnrolledAndRevoked { key: found.title() },
                None => ApproverError::Enrolled { key: found.title() },
            });
        }
        if self.approvers.len() >= APPROVERS_MAX {
            return Err(ApproverError::TooMany);
        }
        check_name(&approver.name)?;
        if approver.revoked_ms.is_none() {
            self.check_new_name(&approver.name)?;
        }
        self.approvers.push(approver);
        Ok(())
    }

    fn check_new_name(&self, name: &str) -> Result<(), ApproverError> {
        check_name(name)?;
        match self.approvers.iter().any(|known| known.name == name && known.revoked_ms.is_none()) {
            true => Err(ApproverError::NameInUse(name.to_owned())),
            false => Ok(()),
        }
    }

    /// Changes one approver in place.
    pub fn change(
        &mut self,
        key: &PublicKey,
        change: impl FnOnce(&mut Approver),
    ) -> Result<(), ApproverError> {
        let found = self.find_mut(key).map(change);
        found.ok_or_else(|| ApproverError::NotEnrolled { fingerprint: fingerprint(key) })
    }
}

#[cfg(test)]
mod tests;
