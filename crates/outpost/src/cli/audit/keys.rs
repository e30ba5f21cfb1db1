//! The keys that `outpost audit verify` accepts: a file of OpenSSH's allowed signers, or what this host has.

use crate::paths::Paths;
use outpost_approvals::approvers::{Approver, RootFile};
use outpost_approvals::audit::Trusted;
use outpost_approvals::signing::PublicKey;
use std::path::Path;

/// How the host's own key is called in such a file.
const HOST: &str = "host";

/// The keys of a file as `outpost approvals keys --allowed-signers` prints it.
pub(super) fn given(file: &Path) -> Result<Trusted, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut trusted = Trusted::default();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |why: &dyn std::fmt::Display| format!("{}:{}: {why}", file.display(), at + 1);
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_kind = |word: &&str| ["ssh-", "ecdsa-", "sk-"].iter().any(|kind| word.starts_with(kind));
        let kind = words.iter().position(is_kind).filter(|at| *at > 0);
        let kind = kind.ok_or_else(|| wrong(&"a line has a name, and a key of OpenSSH behind it"))?;
        let key = words.get(kind..).unwrap_or_default().join(" ");
        let key = PublicKey::from_openssh(&key).map_err(|error| wrong(&error))?;
        let name = words.first().copied().unwrap_or_default();
        if name == HOST {
            trusted.host = Some(key);
            continue;
        }
        trusted.approvers.push(Approver {
            key,
            name: name.to_owned(),
            root: true,
            users: Vec::new(),
            hosts: Vec::new(),
            not_after_ms: 0,
            revoked_ms: None,
        });
    }
    Ok(trusted)
}

/// What the chain has recorded, and what root has named.
pub(super) fn of_this_host(paths: &Paths) -> Result<Trusted, String> {
    let approvers = RootFile::in_dir(&paths.guard.etc()).read()?.approvers;
    Ok(Trusted { of_chain: true, approvers, host: None })
}
