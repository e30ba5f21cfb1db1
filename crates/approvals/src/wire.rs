//! The approver socket: JSON lines, one request and one answer each, and events for those who watch.
//!
//! A connection of another user than the daemon's is an approver by what the kernel says of it, if the daemon's
//! settings name that user (root always is). One of the daemon's own user has to prove that it knows the approver's
//! secret first: whoever runs as that user may be the very agent that asks.

use crate::question::{Outcome, Question, Remember, is_false};
use serde::{Deserialize, Serialize};

/// The longest line either side sends.
pub const LINE_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Questions of about this many bytes go in one line. Each may have several megabytes: all of them might not fit.
pub(crate) const QUESTIONS_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What an approver's client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Proves who we are; the first of a connection that the kernel's word does not suffice for. `client` names the program
    /// for the audit, such as `outpost approve`.
    Prove {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        secret: Option<String>,
        #[serde(default)]
        client: String,
    },
    /// Makes the approver's secret, if there is none yet; with the old one proven before, a new one.
    Enroll,
    List,
    Show {
        id: String,
    },
    /// Every question there is, and from then on events: `asked`, `settled` and `anew`.
    Watch,
    /// `digest` is the one that was shown.
    Decide {
        id: String,
        digest: String,
        allow: bool,
        #[serde(default)]
        note: String,
        #[serde(default)]
        remember: Option<Remember>,
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
    /// Proven. `name` is how the audit calls this approver.
    Welcome {
        name: String,
    },
    /// The only time that the secret is told.
    Enrolled {
        secret: String,
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
        /// It will be done for who proves to know the approver's secret.
        #[serde(default, skip_serializing_if = "is_false")]
        secret_wanted: bool,
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
