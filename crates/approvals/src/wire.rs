//! The approver socket: JSON lines, one request and one answer each, and events for those who watch.
//!
//! No secret is sent to it. A process sees the questions of its own user, root and viewers see all. What decides is the
//! signature of a statement, whichever process submits it.

use crate::approvers::Listed;
use crate::question::{Outcome, Question, is_false};
use serde::{Deserialize, Serialize};

/// The longest line either side sends.
pub const LINE_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Questions of about this many bytes go in one line. Each may have several megabytes: all of them might not fit.
pub(crate) const QUESTIONS_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What an approver's client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Which host this is. `client` names the program for the audit, such as `outpost approve`.
    Hello {
        /// Whatever the client chooses anew each time: the host signs it.
        nonce: String,
        #[serde(default)]
        client: String,
    },
    List,
    Show {
        id: String,
    },
    /// Every question there is, and from then on events: `asked`, `settled` and `anew`.
    Watch,
    /// A decision: an encoded statement and its SSHSIG, both in base64. Without a signature it counts only for a user in
    /// `trusted_users` of root's file.
    Decide {
        statement: String,
        #[serde(default)]
        signature: String,
    },
    /// The approvers.
    Keys,
    /// A change of the approvers: an encoded key statement and its SSHSIG.
    ChangeKey {
        statement: String,
        signature: String,
    },
    Grants,
    Revoke {
        id: String,
    },
}

/// What the daemon answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Answer {
    /// Which host this is.
    Hello {
        /// How the audit names this connection.
        name: String,
        /// The host's public key, one line of OpenSSH.
        host: String,
        /// The newest record of the audit chain.
        head: String,
        /// The host's SSHSIG, in base64, over nonce and head.
        signature: String,
        /// This user decides without a signature.
        #[serde(default, skip_serializing_if = "is_false")]
        trusted: bool,
        /// Root's file, where approvers come from it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        approvers_file: Option<String>,
        /// A secret of before there were keys is still there.
        #[serde(default, skip_serializing_if = "is_false")]
        old_secret: bool,
    },
    Questions {
        questions: Vec<Question>,
        /// It is not all of the answer: another line goes on with it.
        #[serde(default, skip_serializing_if = "is_false")]
        more: bool,
    },
    Question {
        question: Box<Question>,
    },
    /// An event: a new question.
    Asked {
        question: Box<Question>,
    },
    /// An event: a question has ended.
    Settled {
        id: String,
        #[serde(flatten)]
        outcome: Outcome,
    },
    /// The decision stands.
    Decided {
        id: String,
        /// The host's SSHSIG, in base64, over the statement's receipt: the same each time.
        receipt: String,
    },
    Keys {
        keys: Vec<Listed>,
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
    /// An event for one that fell too far behind: what waits now, in place of what it missed. What does not fit follows as
    /// `asked`.
    Anew {
        questions: Vec<Question>,
    },
    /// It was not done. `why` says what to do about it.
    Failed {
        why: String,
    },
}

/// A decision that holds for later questions of the same digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    pub id: String,
    pub digest: String,
    /// What it is about, as the question's title had it.
    pub title: String,
    pub by: String,
    /// Uses left, where it was given for a number of times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times_left: Option<u32>,
    /// Seconds left, where it was given for a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
}
