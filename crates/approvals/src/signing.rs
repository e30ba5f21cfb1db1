//! Signed decisions: what is signed, how, by which keys, and how a signature is checked.
//!
//! Every signature is an SSHSIG, as `ssh-keygen -Y sign` makes it, so OpenSSH can check each of them without this program.
//! docs/approvals.md has the byte layout of what is signed.

mod agent;
mod fields;
mod host;
mod key_change;
mod proof;
mod signature;
mod signer;
mod statement;

pub use agent::Agent;
pub use host::HostKey;
pub use key_change::{KeyAction, KeyChange};
pub use proof::{Proof, hello, receipt, witness};
pub use signature::{Signed, fingerprint, verify};
pub use signer::{KeyFile, Signer};
pub use ssh_key::PublicKey;
pub use statement::{Statement, VALID_MS, shown};

/// The SSHSIG namespace of what approvers sign.
pub const NAMESPACE: &str = "outpost-decision";

/// The SSHSIG namespace of what a host signs.
pub const HOST_NAMESPACE: &str = "outpost-host";

/// Bytes as standard base64.
pub fn base64(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// The bytes of standard base64; none where it is not canonical.
pub fn from_base64(text: &str) -> Option<Vec<u8>> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.decode(text).ok()
}

#[cfg(test)]
mod tests;
