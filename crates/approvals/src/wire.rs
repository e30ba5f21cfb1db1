//! The protocol of the approver socket: JSON lines, one reply for each request, and events for clients that
//! watch.
//!
//! Clients send no secret. A process sees the questions of its own user; root and viewers see all questions. A
//! decision counts by its signature, whichever process submits it.

use crate::approvers::ApproverInfo;
use crate::question::{Outcome, Question, is_false};
use serde::{Deserialize, Serialize};

/// Maximum length of a line in either direction.
pub const LINE_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Approximate size of a line with questions. One question may have several megabytes, so a list may need
/// several lines.
pub(crate) const QUESTIONS_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A request of an approver's client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Asks for the host's identity. `client` names the program in the audit chain, such as `outpost approve`.
    Hello {
        /// A fresh random value that the host signs.
        nonce: String,
        #[serde(default)]
        client: String,
    },
    List,
    Show {
        id: String,
    },
    /// Returns all pending questions, then sends events: `asked`, `settled` and `anew`.
    Watch,
    /// Submits a decision: an encoded statement and its SSHSIG, both in base64. The signature may be empty only
    /// for a user in `trusted_users` of root's file.
    Decide {
        statement: String,
        #[serde(default)]
        signature: String,
    },
    /// Lists the approvers.
    Keys,
    /// Changes the approvers: an encoded key statement and its SSHSIG, both in base64.
    ChangeKey {
        statement: String,
        signature: String,
    },
    Grants,
    Revoke {
        id: String,
    },
}

/// A reply or an event of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum ServerMessage {
    /// The host's identity.
    Hello {
        /// The client's name in the audit chain.
        name: String,
        /// The host's public key in OpenSSH format.
        host: String,
        /// The newest record of the audit chain.
        head: String,
        /// The host's SSHSIG over nonce and head, in base64.
        signature: String,
        /// This user may decide without a signature.
        #[serde(default, skip_serializing_if = "is_false")]
        trusted: bool,
        /// Path of root's approvers file, if the approvers come from it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        approvers_file: Option<String>,
        /// The approver secret of an earlier version still exists.
        #[serde(default, skip_serializing_if = "is_false")]
        old_secret: bool,
    },
    Questions {
        questions: Vec<Question>,
        /// Another line continues this reply.
        #[serde(default, skip_serializing_if = "is_false")]
        more: bool,
    },
    Question {
        question: Box<Question>,
    },
    /// Event: a new question.
    Asked {
        question: Box<Question>,
    },
    /// Event: a question was settled.
    Settled {
        id: String,
        #[serde(flatten)]
        outcome: Outcome,
    },
    /// The decision was accepted.
    Decided {
        id: String,
        /// The host's SSHSIG over the statement, in base64. The same statement always gets the same receipt.
        receipt: String,
    },
    Keys {
        keys: Vec<ApproverInfo>,
        /// The host's public key.
        host: String,
    },
    KeyChanged {
        fingerprint: String,
    },
    Grants {
        grants: Vec<Grant>,
    },
    Revoked {
        id: String,
    },
    /// Event for a client that missed events: all pending questions. Questions that do not fit into one line
    /// follow as `asked` events.
    #[serde(rename = "anew")]
    Snapshot {
        questions: Vec<Question>,
    },
    /// The request failed. `why` contains the cause and the next step.
    Failed {
        why: String,
    },
}

/// A decision that holds for further questions with the same digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    pub id: String,
    pub digest: String,
    /// The title of the question that was decided.
    pub title: String,
    pub by: String,
    /// Remaining uses of a grant for a number of uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times_left: Option<u32>,
    /// Remaining seconds of a grant for a period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
}
