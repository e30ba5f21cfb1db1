//! The approvers: public keys with a name, a scope and an end, and what may change about them.

mod own;
mod root_file;

pub(crate) use own::OwnList;
pub use root_file::RootFile;

use crate::question::Question;
use crate::signing::{KeyAction, KeyChange, PublicKey, fingerprint};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The longest name of an approver.
const NAME_CHARS_MAX: usize = 64;

/// Approvers of one host.
const APPROVERS_MAX: usize = 1000;

/// One approver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approver {
    pub key: PublicKey,
    pub name: String,
    /// May decide what runs with root's rights.
    pub root: bool,
    /// Users whose questions it may decide; all users where none is named.
    pub users: Vec<String>,
    /// On which hosts; on all where none is named.
    pub hosts: Vec<String>,
    /// Unix time after which the key is void; 0 for never.
    pub not_after_ms: u64,
    /// Unix time at which it was revoked.
    pub revoked_ms: Option<u64>,
}

/// What a decision is about, as far as scopes care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matter {
    pub privileged: bool,
    /// The user whose process asks.
    pub uid: u32,
}

impl Matter {
    pub fn of(question: &Question) -> Matter {
        let own = outpost_sys::limits::effective_uid;
        Matter { privileged: question.privileged, uid: question.uid.unwrap_or_else(own) }
    }
}

/// An approver as clients receive it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    pub name: String,
    /// One line of OpenSSH: kind and base64.
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
    /// Its decisions count now.
    pub usable: bool,
}

impl Approver {
    /// How messages and records name it.
    pub fn title(&self) -> String {
        format!("{} ({})", self.name, fingerprint(&self.key))
    }

    /// Why a signature of this key at this time does not count.
    pub(crate) fn check_time(&self, now_ms: u64) -> Result<(), String> {
        if self.revoked_ms.is_some_and(|revoked| now_ms >= revoked) {
            return Err(format!("the key {} is revoked", self.title()));
        }
        match self.not_after_ms != 0 && now_ms >= self.not_after_ms {
            true => Err(format!("the key {} has expired", self.title())),
            false => Ok(()),
        }
    }

    fn check_scope(&self, matter: &Matter, host: &str) -> Result<(), String> {
        let title = self.title();
        if matter.privileged && !self.root {
            return Err(format!("the key {title} may not decide what runs as root"));
        }
        if !self.hosts.is_empty() && !self.hosts.iter().any(|name| name == host) {
            return Err(format!("the key {title} may not decide on this host, {host}"));
        }
        if self.users.is_empty() {
            return Ok(());
        }
        let user = outpost_sys::user::by_uid(matter.uid).ok().flatten();
        let user = user.map(|user| user.name.to_string_lossy().into_owned());
        let user = user.unwrap_or_else(|| matter.uid.to_string());
        match self.users.contains(&user) {
            true => Ok(()),
            false => Err(format!("the key {title} may not decide for user {user}")),
        }
    }

    /// Whether this one may decide whatever the other may.
    fn covers(&self, other: &Approver) -> bool {
        let within = |mine: &[String], theirs: &[String]| {
            mine.is_empty() || (!theirs.is_empty() && theirs.iter().all(|name| mine.contains(name)))
        };
        (self.root || !other.root) && within(&self.users, &other.users) && within(&self.hosts, &other.hosts)
    }

    pub fn listed(&self, now_ms: u64) -> Listed {
        let bare = PublicKey::from(self.key.key_data().clone());
        Listed {
            name: self.name.clone(),
            key: bare.to_openssh().unwrap_or_default(),
            fingerprint: fingerprint(&self.key),
            root: self.root,
            users: self.users.clone(),
            hosts: self.hosts.clone(),
            expires: (self.not_after_ms != 0).then(|| date(self.not_after_ms)),
            revoked: self.revoked_ms.map(date),
            usable: self.check_time(now_ms).is_ok(),
        }
    }
}

impl KeyChange {
    /// The approver that an enrolment makes.
    pub(crate) fn approver(&self) -> Result<Approver, String> {
        Ok(Approver {
            key: PublicKey::from_bytes(&self.key).map_err(|error| format!("the key: {error}"))?,
            name: self.name.clone(),
            root: self.root,
            users: self.users.clone(),
            hosts: self.hosts.clone(),
            not_after_ms: self.not_after_ms,
            revoked_ms: None,
        })
    }
}

/// RFC 3339, to the second.
fn date(unix_ms: u64) -> String {
    let time = i64::try_from(unix_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    time.map(|time| format!("{time:.0}")).unwrap_or_default()
}

/// What may be an approver's name: it stands in messages and records.
pub fn check_name(name: &str) -> Result<(), String> {
    let printable = name.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    match printable && name.trim() == name && (1..=NAME_CHARS_MAX).contains(&name.len()) {
        true => Ok(()),
        false => Err(format!("a name has 1 to {NAME_CHARS_MAX} printable ASCII characters")),
    }
}

/// The approvers of a host, and the users whose word counts without a signature.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct List {
    pub approvers: Vec<Approver>,
    /// Users that decide without a signature. Only root's file names any.
    pub trusted: Vec<u32>,
    /// Users that see every question.
    pub viewers: Vec<u32>,
}

impl List {
    pub fn find(&self, key: &PublicKey) -> Option<&Approver> {
        self.approvers.iter().find(|approver| approver.key.key_data() == key.key_data())
    }

    fn find_mut(&mut self, key: &PublicKey) -> Option<&mut Approver> {
        self.approvers.iter_mut().find(|approver| approver.key.key_data() == key.key_data())
    }

    /// The approver whose signature this is, if it counts for the matter now.
    pub fn admit(
        &self,
        key: &PublicKey,
        matter: &Matter,
        host: &str,
        now_ms: u64,
    ) -> Result<&Approver, String> {
        let print = fingerprint(key);
        let found = self.find(key).ok_or_else(|| format!("the key {print} is not an approver's here"))?;
        found.check_time(now_ms)?;
        found.check_scope(matter, host)?;
        Ok(found)
    }

    fn is_usable(&self, now_ms: u64) -> bool {
        self.approvers.iter().any(|approver| approver.check_time(now_ms).is_ok())
    }

    /// Makes a change that `signer` has signed. The first key of all signs its own enrolment.
    pub fn apply(&mut self, change: &KeyChange, signer: &PublicKey, now_ms: u64) -> Result<(), String> {
        let wanted = change.approver()?;
        let key = wanted.key.clone();
        let target = match change.action {
            KeyAction::Enroll => wanted.clone(),
            _ => {
                let found = self.find(&key).filter(|found| found.revoked_ms.is_none()).cloned();
                found.ok_or_else(|| format!("the key {} is not enrolled", fingerprint(&key)))?
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
                    return Err("this is the last key that can decide; enrol another one first".into());
                }
                *self = without;
                Ok(())
            }
        }
    }

    fn check_signer(&self, target: &Approver, signer: &PublicKey, now_ms: u64) -> Result<(), String> {
        if self.approvers.is_empty() {
            return match target.key.key_data() == signer.key_data() {
                true => Ok(()),
                false => Err("the first key signs its own enrolment".into()),
            };
        }
        let print = fingerprint(signer);
        let by = self.find(signer).ok_or_else(|| format!("the key {print} is not an approver's here"))?;
        by.check_time(now_ms)?;
        match by.covers(target) {
            true => Ok(()),
            false => Err(format!("the scope of {} is smaller than that of {}", by.title(), target.title())),
        }
    }

    /// Adds an approver under a name that is free.
    pub fn enroll(&mut self, approver: Approver) -> Result<(), String> {
        if let Some(found) = self.find(&approver.key) {
            return Err(match found.revoked_ms {
                Some(_) => format!("the key {} was revoked; enrol a new one", found.title()),
                None => format!("the key is enrolled already, as {}", found.title()),
            });
        }
        if self.approvers.len() >= APPROVERS_MAX {
            return Err(format!("there are {APPROVERS_MAX} approvers already"));
        }
        check_name(&approver.name)?;
        if approver.revoked_ms.is_none() {
            self.check_new_name(&approver.name)?;
        }
        self.approvers.push(approver);
        Ok(())
    }

    fn check_new_name(&self, name: &str) -> Result<(), String> {
        check_name(name)?;
        match self.approvers.iter().any(|known| known.name == name && known.revoked_ms.is_none()) {
            true => Err(format!("another key has the name {name}")),
            false => Ok(()),
        }
    }

    /// Changes one approver in place.
    pub fn change(&mut self, key: &PublicKey, change: impl FnOnce(&mut Approver)) -> Result<(), String> {
        let print = fingerprint(key);
        self.find_mut(key).map(change).ok_or_else(|| format!("the key {print} is not enrolled"))
    }
}

#[cfg(test)]
mod tests;
