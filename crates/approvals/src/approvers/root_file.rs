//! `/etc/outpost/approvers.toml`: the approvers that root names. The file is used only if no user but root can
//! write it.

use super::signed_list::replace;
use super::{Approver, ApproverList, rfc3339};
use crate::signing::PublicKey;
use jiff::Timestamp;
use outpost_sys::file::{self, Open};
use outpost_sys::{Errno, root_only};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

const FILE_BYTES_MAX: u64 = 1 << 20;

/// The path of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootFile {
    path: PathBuf,
}

/// The TOML document.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct TomlFile {
    /// Users that may decide without a signature.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    trusted_users: Vec<String>,
    /// Users that see all questions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    viewers: Vec<String>,
    approver: Vec<TomlApprover>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TomlApprover {
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
    /// The file in root's policy directory.
    pub fn in_dir(etc: &Path) -> RootFile {
        RootFile { path: etc.join("approvers.toml") }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the list. A missing file is an empty list. The error contains the path and the cause.
    pub fn read(&self) -> Result<ApproverList, String> {
        let TomlFile { trusted_users, viewers, approver } = self.read_toml()?;
        let mut list = ApproverList {
            approvers: Vec::new(),
            trusted_uids: resolve_uids(&trusted_users).map_err(|why| self.error(&why))?,
            viewer_uids: resolve_uids(&viewers).map_err(|why| self.error(&why))?,
        };
        for entry in approver {
            let name = entry.name.clone();
            let enrolled = entry.approver().and_then(|approver| list.enroll(approver));
            enrolled.map_err(|why| self.error(&format!("approver {name:?}: {why}")))?;
        }
        Ok(list)
    }

    fn read_toml(&self) -> Result<TomlFile, String> {
        let opened = match file::open(&self.path, Open::Read) {
            Err(Errno::NOENT) => return Ok(TomlFile::default()),
            opened => opened.map_err(|errno| self.error(&errno.to_string()))?,
        };
        if let Some(weak) = root_only::weak_spot(&self.path) {
            return Err(self.error(&format!("others than root can change {}", weak.display())));
        }
        let bytes =
            file::read_whole(&opened, FILE_BYTES_MAX).map_err(|errno| self.error(&errno.to_string()))?;
        let text = String::from_utf8(bytes).map_err(|_| self.error("the file is not UTF-8"))?;
        toml::from_str(&text).map_err(|error| self.error(&error.to_string()))
    }

    /// Replaces the approvers in the file. `trusted_users` and `viewers` stay.
    pub fn write(&self, list: &ApproverList) -> Result<(), String> {
        let users = self.read_toml()?;
        let approver = list.approvers.iter().map(TomlApprover::from_approver).collect::<Result<_, _>>()?;
        let text = toml::to_string(&TomlFile { approver, ..users }).map_err(|error| error.to_string())?;
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        std::fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        replace(&self.path, text.as_bytes(), 0o644).map_err(|error| self.error(&error.to_string()))
    }

    fn error(&self, why: &str) -> String {
        format!("{}: {why}", self.path.display())
    }
}

impl TomlApprover {
    fn from_approver(approver: &Approver) -> Result<TomlApprover, String> {
        let key = PublicKey::from(approver.key.key_data().clone());
        Ok(TomlApprover {
            name: approver.name.clone(),
            key: key.to_openssh().map_err(|error| error.to_string())?,
            root: approver.root,
            users: approver.users.clone(),
            hosts: approver.hosts.clone(),
            expires: (approver.not_after_ms != 0).then(|| rfc3339(approver.not_after_ms)),
            revoked: approver.revoked_ms.map(rfc3339),
        })
    }

    fn approver(self) -> Result<Approver, String> {
        Ok(Approver {
            key: PublicKey::from_openssh(&self.key).map_err(|error| format!("key: {error}"))?,
            name: self.name,
            root: self.root,
            users: self.users,
            hosts: self.hosts,
            not_after_ms: self.expires.as_deref().map(parse_time).transpose()?.unwrap_or(0),
            revoked_ms: self.revoked.as_deref().map(parse_time).transpose()?,
        })
    }
}

fn parse_time(text: &str) -> Result<u64, String> {
    let time: Timestamp = text.parse().map_err(|_| format!("{text:?} is not a time in RFC 3339"))?;
    Ok(u64::try_from(time.as_millisecond()).unwrap_or(0))
}

fn resolve_uids(names: &[String]) -> Result<Vec<u32>, String> {
    let find = |name: &String| match outpost_sys::user::by_name(name) {
        Ok(Some(user)) => Ok(user.uid),
        Ok(None) => Err(format!("this host has no user {name:?}")),
        Err(errno) => Err(format!("{name:?}: {errno}")),
    };
    names.iter().map(find).collect()
}
