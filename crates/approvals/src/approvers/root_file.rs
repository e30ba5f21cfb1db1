//! `/etc/outpost/approvers.toml`: the approvers that root names, read only where root alone can have written them.

use super::own::replace;
use super::{Approver, List, date};
use crate::signing::PublicKey;
use jiff::Timestamp;
use outpost_sys::file::{self, Open};
use outpost_sys::{Errno, root_only};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

const BYTES_MAX: u64 = 1 << 20;

/// The file at its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootFile {
    path: PathBuf,
}

/// As it is written.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Written {
    /// Users that decide without a signature.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    trusted_users: Vec<String>,
    /// Users that see every question.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    viewers: Vec<String>,
    approver: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    key: String,
    #[serde(default)]
    root: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    users: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    hosts: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    revoked: Option<String>,
}

impl RootFile {
    /// The file in root's directory of policy.
    pub fn in_dir(etc: &Path) -> RootFile {
        RootFile { path: etc.join("approvers.toml") }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The list; an empty one where there is no file. The error names what is wrong with the file.
    pub fn read(&self) -> Result<List, String> {
        let Written { trusted_users, viewers, approver } = self.written()?;
        let mut list = List {
            approvers: Vec::new(),
            trusted: uids(&trusted_users).map_err(|why| self.wrong(&why))?,
            viewers: uids(&viewers).map_err(|why| self.wrong(&why))?,
        };
        for entry in approver {
            let name = entry.name.clone();
            let enrolled = entry.approver().and_then(|approver| list.enroll(approver));
            enrolled.map_err(|why| self.wrong(&format!("approver {name:?}: {why}")))?;
        }
        Ok(list)
    }

    fn written(&self) -> Result<Written, String> {
        let opened = match file::open(&self.path, Open::Read) {
            Err(Errno::NOENT) => return Ok(Written::default()),
            opened => opened.map_err(|errno| self.wrong(&errno.to_string()))?,
        };
        if let Some(weak) = root_only::weak_spot(&self.path) {
            return Err(self.wrong(&format!("others than root can change {}", weak.display())));
        }
        let bytes = file::read_whole(&opened, BYTES_MAX).map_err(|errno| self.wrong(&errno.to_string()))?;
        let text = String::from_utf8(bytes).map_err(|_| self.wrong("it is not UTF-8"))?;
        toml::from_str(&text).map_err(|error| self.wrong(&error.to_string()))
    }

    /// Writes the approvers anew. The users that the file names stay.
    pub fn write(&self, list: &List) -> Result<(), String> {
        let users = self.written()?;
        let approver = list.approvers.iter().map(Entry::of).collect::<Result<_, _>>()?;
        let text = toml::to_string(&Written { approver, ..users }).map_err(|error| error.to_string())?;
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        std::fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        replace(&self.path, text.as_bytes(), 0o644).map_err(|error| self.wrong(&error.to_string()))
    }

    fn wrong(&self, why: &str) -> String {
        format!("{}: {why}", self.path.display())
    }
}

impl Entry {
    fn of(approver: &Approver) -> Result<Entry, String> {
        let key = PublicKey::from(approver.key.key_data().clone());
        Ok(Entry {
            name: approver.name.clone(),
            key: key.to_openssh().map_err(|error| error.to_string())?,
            root: approver.root,
            users: approver.users.clone(),
            hosts: approver.hosts.clone(),
            expires: (approver.not_after_ms != 0).then(|| date(approver.not_after_ms)),
            revoked: approver.revoked_ms.map(date),
        })
    }

    fn approver(self) -> Result<Approver, String> {
        Ok(Approver {
            key: PublicKey::from_openssh(&self.key).map_err(|error| format!("key: {error}"))?,
            name: self.name,
            root: self.root,
            users: self.users,
            hosts: self.hosts,
            not_after_ms: self.expires.as_deref().map(time).transpose()?.unwrap_or(0),
            revoked_ms: self.revoked.as_deref().map(time).transpose()?,
        })
    }
}

fn time(text: &str) -> Result<u64, String> {
    let time: Timestamp = text.parse().map_err(|_| format!("{text:?} is not a time in RFC 3339"))?;
    Ok(u64::try_from(time.as_millisecond()).unwrap_or(0))
}

fn uids(names: &[String]) -> Result<Vec<u32>, String> {
    let find = |name: &String| match outpost_sys::user::by_name(name) {
        Ok(Some(user)) => Ok(user.uid),
        Ok(None) => Err(format!("this host has no user {name:?}")),
        Err(errno) => Err(format!("{name:?}: {errno}")),
    };
    names.iter().map(find).collect()
}
