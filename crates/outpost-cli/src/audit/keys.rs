//! The trusted keys of `outpost audit verify`: an allowed-signers file, or the keys of this host.

use crate::paths::Paths;
use outpost_approvals::approvers::{Approver, RootFile};
use outpost_approvals::authorization::TrustedKeys;
use outpost_approvals::signing::PublicKey;
use std::path::Path;

/// The name of the host key in an allowed-signers file.
const HOST: &str = "host";

/// Reads the output of `outpost approvals keys --allowed-signers`.
pub(super) fn from_file(file: &Path) -> Result<TrustedKeys, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut trusted = TrustedKeys::default();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |why: &dyn std::fmt::Display| format!("{}:{}: {why}", file.display(), at + 1);
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_kind = |word: &&str| ["ssh-", "ecdsa-", "sk-"].iter().any(|kind| word.starts_with(kind));
        let kind = words.iter().position(is_kind).filter(|at| *at > 0);
        let kind = kind.ok_or_else(|| wrong(&"expected a name and an OpenSSH public key"))?;
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

/// The keys recorded in the chain, and those in root's approver file.
pub(super) fn of_this_host(paths: &Paths) -> Result<TrustedKeys, String> {
    let approvers = RootFile::in_dir(&paths.guard.etc()).read().map_err(|error| error.to_string())?.approvers;
    Ok(TrustedKeys { from_chain: true, approvers, host: None })
}
