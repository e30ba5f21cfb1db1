//! What makes a decision count: a statement with an approver's signature, or with the host's word on which user made it.

use super::fields::Fields;
use super::{Signed, Statement};
use crate::audit::Head;
use serde::{Deserialize, Serialize};

const WITNESS_MAGIC: &str = "outpost-decision-by-uid";
const RECEIPT_MAGIC: &str = "outpost-decision-receipt";
const HELLO_MAGIC: &str = "outpost-hello";

/// A decision with its proof, as the books and the audit chain have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proof {
    /// The encoded [`Statement`], in base64.
    pub statement: String,
    /// An SSHSIG in base64: an approver's over the statement, or the host's over [`witness`] where `uid` is set.
    pub signature: String,
    /// The user that decided without a signature, as the kernel named it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
}

impl Proof {
    pub fn signed(signed: Signed) -> Proof {
        Proof { statement: signed.statement, signature: signed.signature, uid: None }
    }

    /// The statement, and the bytes that it was decoded from.
    pub fn statement(&self) -> Result<(Statement, Vec<u8>), String> {
        let bytes = self.signed_part().statement_bytes()?;
        Ok((Statement::decode(&bytes)?, bytes))
    }

    pub fn signature_bytes(&self) -> Result<Vec<u8>, String> {
        self.signed_part().signature_bytes()
    }

    /// Adds it to a record of the audit chain.
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

/// What the host signs when a user decided by uid.
pub fn witness(statement: &[u8], uid: u32) -> Vec<u8> {
    Fields::new(WITNESS_MAGIC).string(statement).number(uid.into()).bytes()
}

/// What the host signs when it has accepted a statement.
pub fn receipt(statement: &[u8]) -> Vec<u8> {
    Fields::new(RECEIPT_MAGIC).string(statement).bytes()
}

/// What the host signs to prove its key to a client, with the head of its audit chain.
pub fn hello(nonce: &str, head: &Head) -> Vec<u8> {
    Fields::new(HELLO_MAGIC).string(nonce).head(head).bytes()
}
