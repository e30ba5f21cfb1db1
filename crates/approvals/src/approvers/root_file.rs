//! `/etc/outpost/approvers.toml`: the approvers that root names. The file is used only if no user but root can
//! write it.

use super::error::{EntryError, RootFileCause};
use super::signed_list::replace;
use super::{Approver, ApproverList, RootFileError, rfc3339};
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

    /// Reads the list. A missing file is an empty list.
    pub fn read(&self) -> Result<ApproverList, RootFileError> {
        self.read_toml().and_then(approver_list).map_err(|cause| self.error(cause))
    }

    fn read_toml(&self) -> Result<TomlFile, RootFileCause> {
        let opened = match file::open(&self.path, Open::Read) {
            Err(Errno::NOENT) => return Ok(TomlFile::default()),
            opened => opened?,
        };
        if let Some(weak) = root_only::weak_spot(&self.path) {
            return Err(RootFileCause::Writable(weak));
        }
        let bytes = file::read_whole(&opened, FILE_BYTES_MAX)?;
        let text = String::from_utf8(bytes).map_err(|_| RootFileCause::NotUtf8)?;
        Ok(toml::from_str(&text)?)
    }

    /// Replaces the approvers in the file. `trusted_users` and `viewers` stay.
    pub fn write(&self, list: &ApproverList) -> Result<(), RootFileError> {
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        std::fs::create_dir_all(dir)
            .map_err(|error| RootFileError { path: dir.to_owned(), cause: error.into() })?;
        self.write_toml(list).map_err(|cause| self.error(cause))
    }

    fn write_toml(&self, list: &ApproverList) -> Result<(), RootFileCause> {
        let users = self.read_toml()?;
        let approver = list.approvers.iter().map(TomlApprover::from_approver).collect::<Result<_, _>>()?;
        let text = toml::to_string(&TomlFile { approver, ..users })?;
        Ok(replace(&self.path, text.as_bytes(), 0o644)?)
    }

    fn error(&self, cause: RootFileCause) -> RootFileError {
        RootFileError { path: self.path.clone(), cause }
    }
}

fn approver_list(file: TomlFile) -> Result<ApproverList, RootFileCause> {
    let mut list = ApproverList {
        approvers: Vec::new(),
        trusted_uids: resolve_uids(&file.trusted_users)?,
        viewer_uids: resolve_uids(&file.viewers)?,
    };
    for entry in file.approver {
        let name = entry.name.clone();
        let enrolled = entry.approver().and_then(|approver| Ok(list.enroll(approver)?));
        enrolled.map_err(|why| RootFileCause::Entry { name, why })?;
    }
    Ok(list)
}

impl TomlApprover {
    fn from_approver(approver: &Approver) -> Result<TomlApprover, RootFileCause> {
        let key = PublicKey::from(approver.key.key_data().clone());
        Ok(TomlApprover {
            name: approver.name.clone(),
            key: key
                .to_openssh()
                .map_err(|error| RootFileCause::Entry { name: approver.name.clone(), why: error.into() })?,
            root: approver.root,
            users: approver.users.clone(),
            hosts: approver.hosts.clone(),
            expires: (approver.not_after_ms != 0).then(|| rfc3339(approver.not_after_ms)),
            revoked: approver.revoked_ms.map(rfc3339),
        })
    }

    fn approver(self) -> Result<Approver, EntryError> {
        Ok(Approver {
            key: PublicKey::from_openssh(&self.key)?,
            name: self.name,
            root: self.root,
            users: self.users,
            hosts: self.hosts,
            not_after_ms: self.expires.as_deref().map(parse_time).transpose()?.unwrap_or(0),
            revoked_ms: self.revoked.as_deref().map(parse_time).transpose()?,
        })
    }
}

fn parse_time(text: &str) -> Result<u64, EntryError> {
    let time: Timestamp = text.parse().map_err(|_| EntryError::Time(text.to_owned()))?;
    Ok(u64::try_from(time.as_millisecond()).unwrap_or(0))
}

fn resolve_uids(names: &[String]) -> Result<Vec<u32>, RootFileCause> {
    let find = |name: &String| match outpost_sys::user::by_name(name) {
        Ok(Some(user)) => Ok(user.uid),
        Ok(None) => Err(RootFileCause::NoUser(name.clone())),
        Err(errno) => Err(RootFileCause::FindUser { name: name.clone(), errno }),
    };
    names.iter().map(find).collect()
}
