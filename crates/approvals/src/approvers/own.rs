//! The approvers of a daemon without root's policy: every change is a statement that an earlier key has signed.

use super::List;
use crate::signing::{KeyChange, NAMESPACE, Signed, verify};
use crate::{Error, Result};
use outpost_sys::file::{self, Open};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FILE: &str = "approvers.jsonl";

/// More than a thousand changes of the longest kind.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The list and all that led to it.
pub(crate) struct OwnList {
    path: PathBuf,
    host: Vec<u8>,
    changes: Vec<Signed>,
    /// The newest time of issue: no later change counts as made before it.
    latest_ms: u64,
    pub(crate) list: Arc<List>,
}

impl OwnList {
    /// Replays the file. One change that does not follow from those before it voids the file: it names no approver then.
    pub(crate) fn open(dir: &Path, host: &[u8]) -> Result<OwnList> {
        let path = dir.join(FILE);
        let mut own =
            OwnList { path, host: host.to_vec(), changes: Vec::new(), latest_ms: 0, list: Arc::default() };
        let fail = |reason: &dyn std::fmt::Display| Error::file("use the approvers in", &own.path, reason);
        let opened = match file::open(&own.path, Open::Read) {
            Err(outpost_sys::Errno::NOENT) => return Ok(own),
            opened => opened.map_err(|errno| fail(&errno))?,
        };
        let bytes = file::read_whole(&opened, FILE_BYTES_MAX).map_err(|errno| fail(&errno))?;
        let mut changes = Vec::new();
        let mut list = List::default();
        let mut latest_ms = 0;
        for (at, line) in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).enumerate() {
            let replayed = serde_json::from_slice::<Signed>(line).map_err(|error| error.to_string());
            let replayed = replayed.and_then(|signed| {
                let (change, signer) = open_change(&signed, &own.host)?;
                latest_ms = change.issued_ms.max(latest_ms);
                list.apply(&change, &signer, latest_ms)?;
                Ok(signed)
            });
            changes.push(replayed.map_err(|why| fail(&format!("line {}: {why}", at + 1)))?);
        }
        (own.changes, own.latest_ms) = (changes, latest_ms);
        own.list = Arc::new(list);
        Ok(own)
    }

    /// The list with one more change, to be [`commit`](OwnList::commit)ted when it is recorded.
    pub(crate) fn with(
        &self,
        signed: &Signed,
        now_ms: u64,
    ) -> std::result::Result<(KeyChange, List), String> {
        let (change, signer) = open_change(signed, &self.host)?;
        let mut list = (*self.list).clone();
        // Whatever holds then holds when the file is replayed.
        list.apply(&change, &signer, now_ms.max(self.latest_ms).max(change.issued_ms))?;
        Ok((change, list))
    }

    /// Writes the file anew with one more change, and has it on the disk when this returns.
    pub(crate) fn commit(&mut self, signed: Signed, change: &KeyChange, list: List) -> Result<()> {
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

/// Replaces a file at once: it has its old content or all of the new one.
pub(super) fn replace(path: &Path, text: &[u8], mode: u32) -> std::io::Result<()> {
    let new = path.with_extension("new");
    let mut file = std::fs::File::from(file::open(&new, Open::Replace)?);
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(mode))?;
    file.write_all(text)?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    let dir = file::open(path.parent().unwrap_or(Path::new("/")), Open::Directory)?;
    Ok(file::sync_names(&dir)?)
}

fn open_change(
    signed: &Signed,
    host: &[u8],
) -> std::result::Result<(KeyChange, crate::signing::PublicKey), String> {
    let bytes = signed.statement_bytes()?;
    let change = KeyChange::decode(&bytes)?;
    if change.host != host {
        return Err("the key statement is for another host".into());
    }
    let signer = verify(NAMESPACE, &bytes, &signed.signature_bytes()?)?;
    Ok((change, signer))
}
