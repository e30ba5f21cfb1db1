//! What a human is asked and what may come of it.

use crate::signing::Proof;
use serde::{Deserialize, Serialize};

/// Something that waits for a human. Every text in it is printable ASCII: what came from elsewhere was escaped where the
/// question was made, so that one text stands for one thing only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// Made by the daemon; nothing a requester says goes into it.
    pub id: String,
    /// Who asks: a face of the daemon.
    pub face: String,
    /// SHA-256, in hexadecimal digits, of everything that is being decided.
    pub digest: String,
    /// What it is about, in one line, never cut.
    pub title: String,
    /// Everything that is being decided, in the order to be read.
    pub sections: Vec<Section>,
    /// What a careful reader should not miss.
    pub warnings: Vec<String>,
    /// It would run with more rights than the daemon has.
    pub privileged: bool,
    /// Whether an approver may have the answer remembered for the very same digest.
    pub rememberable: bool,
    /// The user whose process asks, where one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// When it was asked, in milliseconds of Unix time.
    pub asked_ms: u64,
    /// When it will have been answered by nobody.
    pub deadline_ms: u64,
}

/// A part of a question under a heading.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    pub heading: String,
    pub lines: Vec<Line>,
    /// The words of whoever asked: nobody has checked them.
    #[serde(default, skip_serializing_if = "is_false")]
    pub claimed: bool,
}

/// One line of a section: a name, where it has one, and a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    pub value: String,
}

/// For how long an answer holds for the same digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Remember {
    Times(u32),
    Minutes(u32),
}

/// What an approver says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    pub allow: bool,
    /// For whoever asked, when it is denied.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remember: Option<Remember>,
}

/// How a question ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    Decided {
        #[serde(flatten)]
        decision: Decision,
        /// Which approver, by which way.
        by: String,
        /// What makes it count; nothing that is stored counts without.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        proof: Option<Box<Proof>>,
    },
    /// Nobody answered in time.
    Expired,
    /// Whoever asked has left.
    Withdrawn,
    /// There is no way to ask anybody.
    Unanswerable { why: String },
}

pub(crate) fn is_false(flag: &bool) -> bool {
    !*flag
}
