//! The approvers of a daemon without root's policy: a log of key changes, each signed by an earlier key.

use super::{ApproverError, ApproverList};
use crate::signing::{KeyChange, NAMESPACE, Signed, verify};
use crate::{Error, Result};
use outpost_sys::file::{self, Open};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FILE: &str = "approvers.jsonl";

/// Room for more than a thousand changes of the maximum size.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The log of changes and the resulting list.
pub(crate) struct SignedList {
    path: PathBuf,
    host: Vec<u8>,
    changes: Vec<Signed>,
    /// The newest issue time. Later changes are applied at this time or later, so a revocation cannot be
    /// backdated.
    latest_ms: u64,
    pub(crate) list: Arc<ApproverList>,
}

impl SignedList {
    /// Replays the log. A change that is not valid after the earlier ones invalidates the whole file.
    pub(crate) fn open(dir: &Path, host: &[u8]) -> Result<SignedList> {
        let path = dir.join(FILE);
        let mut signed_list =
            SignedList { path, host: host.to_vec(), changes: Vec::new(), latest_ms: 0, list: Arc::default() };
        let fail =
            |reason: &dyn std::fmt::Display| Error::file("use the approvers in", &signed_list.path, reason);
        let opened = match file::open(&signed_list.path, Open::Read) {
            Err(outpost_sys::Errno::NOENT) => return Ok(signed_list),
            opened => opened.map_err(|errno| fail(&errno))?,
        };
        let bytes = file::read_whole(&opened, FILE_BYTES_MAX).map_err(|errno| fail(&errno))?;
        let mut changes = Vec::new();
        let mut list = ApproverList::default();
        let mut latest_ms = 0;
        for (at, line) in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).enumerate() {
            let fail = |why: &dyn std::fmt::Display| fail(&format!("line {}: {why}", at + 1));
            let signed: Signed = serde_json::from_slice(line).map_err(|error| fail(&error))?;
            let (change, signer) = verify_change(&signed, &signed_list.host).map_err(|error| fail(&error))?;
            latest_ms = change.issued_ms.max(latest_ms);
            list.apply(&change, &signer, latest_ms).map_err(|error| fail(&error))?;
            changes.push(signed);
        }
        (signed_list.changes, signed_list.latest_ms) = (changes, latest_ms);
        signed_list.list = Arc::new(list);
        Ok(signed_list)
    }

    /// Returns the list after one more change. The caller records the change and then calls
    /// [`commit`](SignedList::commit).
    pub(crate) fn apply(
        &self,
        signed: &Signed,
        now_ms: u64,
    ) -> std::result::Result<(KeyChange, ApproverList), ApproverError> {
        let (change, signer) = verify_change(signed, &self.host)?;
        let mut list = (*self.list).clone();
        // Apply at the same time or later than a replay would, so that the replay accepts the change too.
        list.apply(&change, &signer, now_ms.max(self.latest_ms).max(change.issued_ms))?;
        Ok((change, list))
    }

    /// Rewrites the file with one more change. The file is on disk when this returns.
    pub(crate) fn commit(&mut self, signed: Signed, change: &KeyChange, list: ApproverList) -> Result<()> {
        let fail = |reason: &dyn std::fmt::Display| Error::file("write", &self.path, reason);
        let mut text = Vec::new();
        for change in self.changes.iter().chain([&signed]) {
            serde_json::to_writer(&mut text, change).map_err(|error| fail(&error))?;
            text.push(b'\n');
        }
        replace(&self.path, &text, 0o600).map_err(|error| fail(&error))?;
        self.changes.push(signed);
        self.latest_ms = self.latest_ms.max(change.issued_ms);
        self.list = Arc::new(list);
        Ok(())
    }
}

/// Replaces a file atomically.
pub(super) fn replace(path: &Path, text: &[u8], mode: u32) -> std::io::Result<()> {
    let new = path.with_extension("new");
    let mut file = std::fs::File::from(file::open(&new, Open::Replace)?);
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(mode))?;
    file.write_all(text)?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    let dir = file::open(path.parent().unwrap_or(Path::new("/")), Open::Directory)?;
    Ok(file::sync_directory(&dir)?)
}

fn verify_change(
    signed: &Signed,
    host: &[u8],
) -> std::result::Result<(KeyChange, crate::signing::PublicKey), ApproverError> {
    let bytes = signed.statement_bytes()?;
    let change = KeyChange::decode(&bytes)?;
    if change.host != host {
        return Err(ApproverError::OtherHost);
    }
    let signer = verify(NAMESPACE, &bytes, &signed.signature_bytes()?)?;
    Ok((change, signer))
}
