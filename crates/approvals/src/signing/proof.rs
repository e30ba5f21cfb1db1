//! The proof of a decision: an approver's signature, or the host's attestation of the deciding uid.

use super::encoding::Encoder;
use super::{Signed, SignedError, Statement};
use outpost_ledger::audit::Head;
use serde::{Deserialize, Serialize};

const WITNESS_MAGIC: &str = "outpost-decision-by-uid";
const RECEIPT_MAGIC: &str = "outpost-decision-receipt";
const HELLO_MAGIC: &str = "outpost-hello";

/// A statement and its signature, as stored in the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proof {
    /// The encoded [`Statement`], in base64.
    pub statement: String,
    /// An SSHSIG in base64: an approver's over the statement, or the host's over [`uid_attestation`] if `uid`
    /// is set.
    pub signature: String,
    /// The user that decided without a signature, from the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
}

impl Proof {
    pub fn signed(signed: Signed) -> Proof {
        Proof { statement: signed.statement, signature: signed.signature, uid: None }
    }

    /// Returns the statement and its encoded bytes.
    pub fn statement(&self) -> Result<(Statement, Vec<u8>), SignedError> {
        let bytes = self.signed_part().statement_bytes()?;
        Ok((Statement::decode(&bytes)?, bytes))
    }

    pub fn signature_bytes(&self) -> Result<Vec<u8>, SignedError> {
        self.signed_part().signature_bytes()
    }

    /// Adds the proof to an audit record.
    pub fn add_to(&self, record: &mut serde_json::Value) {
        record["statement"] = self.statement.clone().into();
        record["signature"] = self.signature.clone().into();
        if let Some(uid) = self.uid {
            record["uid"] = uid.into();
        }
    }

    fn signed_part(&self) -> Signed {
        Signed { statement: self.statement.clone(), signature: self.signature.clone() }
    }
}

/// The message that the host signs for a decision by uid.
pub fn uid_attestation(statement: &[u8], uid: u32) -> Vec<u8> {
    Encoder::new(WITNESS_MAGIC).string(statement).number(uid.into()).bytes()
}

/// The message that the host signs for an accepted statement.
pub fn receipt_message(statement: &[u8]) -> Vec<u8> {
    Encoder::new(RECEIPT_MAGIC).string(statement).bytes()
}

/// The message that the host signs to prove possession of its key: the client's nonce and the audit head.
pub fn hello_message(nonce: &str, head: &Head) -> Vec<u8> {
    Encoder::new(HELLO_MAGIC).string(nonce).head(head).bytes()
}
