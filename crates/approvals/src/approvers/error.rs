//! Why a key may not decide, or why the list of approvers cannot be read or changed.

use super::{APPROVERS_MAX, NAME_CHARS_MAX};
use crate::signing::SignedError;
use outpost_sys::Errno;
use std::path::PathBuf;
use thiserror::Error;

/// Why a key may not decide, or why a change of the approvers is refused. `key` is a name with a fingerprint.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ApproverError {
    #[error("the key {key} is revoked")]
    Revoked { key: String },
    #[error("the key {key} has expired")]
    Expired { key: String },
    #[error("the key {key} may not decide what runs as root")]
    NotForRoot { key: String },
    #[error("the key {key} may not decide on this host, {host}")]
    NotOnHost { key: String, host: String },
    #[error("the key {key} may not decide for user {user}")]
    NotForUser { key: String, user: String },
    #[error("the key {fingerprint} is not enrolled as an approver")]
    NotApprover { fingerprint: String },
    #[error("the key {fingerprint} is not enrolled")]
    NotEnrolled { fingerprint: String },
    #[error("the key: {0}")]
    Key(#[source] ssh_key::Error),
    #[error("a name has 1 to {NAME_CHARS_MAX} printable ASCII characters")]
    Name,
    #[error("another key has the name {0}")]
    NameInUse(String),
    #[error("the key {key} was revoked; enroll a new one")]
    EnrolledAndRevoked { key: String },
    #[error("the key is enrolled already, as {key}")]
    Enrolled { key: String },
    #[error("there are {APPROVERS_MAX} approvers already")]
    TooMany,
    #[error("this is the last key that can decide; enroll another one first")]
    LastKey,
    #[error("the first key signs its own enrollment")]
    FirstKey,
    #[error("the scope of {signer} is smaller than that of {key}")]
    SmallerScope { signer: String, key: String },
    #[error("the key statement is for another host")]
    OtherHost,
    #[error(transparent)]
    Signed(#[from] SignedError),
}

impl From<ApproverError> for crate::Error {
    fn from(error: ApproverError) -> crate::Error {
        crate::Error::Key(error.to_string())
    }
}

/// Why root's file of approvers cannot be read or written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}: {cause}", path.display())]
pub struct RootFileError {
    pub(super) path: PathBuf,
    #[source]
    pub(super) cause: RootFileCause,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum RootFileCause {
    #[error(transparent)]
    System(#[from] Errno),
    #[error("others than root can change {}", .0.display())]
    Writable(PathBuf),
    #[error("the file is not UTF-8")]
    NotUtf8,
    #[error(transparent)]
    Parse(#[from] toml::de::Error),
    #[error(transparent)]
    Encode(#[from] toml::ser::Error),
    #[error("this host has no user {0:?}")]
    NoUser(String),
    #[error("{name:?}: {errno}")]
    FindUser { name: String, errno: Errno },
    #[error("approver {name:?}: {why}")]
    Entry { name: String, why: EntryError },
}

impl From<std::io::Error> for RootFileCause {
    fn from(error: std::io::Error) -> RootFileCause {
        RootFileCause::System(Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}

/// What is wrong with one approver of root's file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum EntryError {
    #[error("key: {0}")]
    Key(#[from] ssh_key::Error),
    #[error("{0:?} is not a time in RFC 3339")]
    Time(String),
    #[error(transparent)]
    Refused(#[from] ApproverError),
}
