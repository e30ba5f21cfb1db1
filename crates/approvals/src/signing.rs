//! Signed statements: their encoding, the keys that sign them, and their verification.
//!
//! Every signature is an SSHSIG, as `ssh-keygen -Y sign` makes it. OpenSSH alone can verify each of them.
//! docs/approvals.md specifies the byte layout.

mod encoding;
mod error;
mod host_key;
mod key_change;
mod proof;
mod signer;
mod ssh_agent;
mod sshsig;
mod statement;

pub use error::{DecodeError, SignedError};
pub use host_key::HostKey;
pub use key_change::{KeyAction, KeyChange};
pub use proof::{Proof, hello_message, receipt_message, uid_attestation};
pub use signer::{KeyFile, Signer};
pub use ssh_agent::Agent;
pub use ssh_key::PublicKey;
pub use sshsig::{Signed, fingerprint, verify};
pub use statement::{Statement, VALID_MS, shown_hash};

/// The SSHSIG namespace of approvers' signatures.
pub const NAMESPACE: &str = "outpost-decision";

/// The SSHSIG namespace of host signatures.
pub const HOST_NAMESPACE: &str = "outpost-host";

/// Encodes bytes as standard base64.
pub fn base64(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// Decodes standard base64; `None` if it is not canonical.
pub fn from_base64(text: &str) -> Option<Vec<u8>> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.decode(text).ok()
}

#[cfg(test)]
mod tests;
