//! The limits on pending permission questions: their number and their size.
//!
//! A question must fit into a message to approvers, into the turn's checkpoint and into an audit record, and a human
//! must be able to read it. A request that does not fit is denied with the reason. It is never truncated.

use outpost_approvals::Question;
use outpost_ledger::hex;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use thiserror::Error;

/// Maximum number of bytes of a tool's input, as JSON.
pub(crate) const INPUT_BYTES_MAX: usize = 1024 * 1024;

/// Maximum number of bytes of a question as approvers receive it, with its texts escaped.
const QUESTION_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Maximum number of pending questions of one session, and of all sessions.
const SESSION_MAX: Usage = Usage { questions: 32, bytes: 4 * 1024 * 1024 };
const ALL_MAX: Usage = Usage { questions: 512, bytes: 32 * 1024 * 1024 };

/// Why a request is denied without asking, as the reason for the agent.
#[derive(Debug, Error)]
pub(crate) enum QuotaError {
    #[error(
        "Denied without asking: the input has {bytes} bytes (SHA-256 {digest}), and an approver is shown at most \
         {INPUT_BYTES_MAX} before escaping. Do it in smaller steps."
    )]
    TooLarge { bytes: usize, digest: String },
    #[error(
        "Denied without asking: of {whose}, {questions} questions or {bytes} bytes may wait for an approver at once."
    )]
    TooMany { whose: &'static str, questions: usize, bytes: usize },
}

/// A number of questions and the size of their inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    questions: usize,
    bytes: usize,
}

impl Usage {
    fn has_room(self, bytes: usize, max: Usage) -> bool {
        self.questions < max.questions && self.bytes.saturating_add(bytes) <= max.bytes
    }

    fn add(&mut self, bytes: usize) {
        self.questions += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, bytes: usize) {
        self.questions = self.questions.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// The usage of all sessions.
#[derive(Clone, Debug, Default)]
pub(crate) struct TotalUsage(Arc<Mutex<Usage>>);

impl TotalUsage {
    fn lock(&self) -> MutexGuard<'_, Usage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The usage of one turn by question id. Dropping it releases all of it.
#[derive(Debug)]
pub(crate) struct PermissionQuota {
    total: TotalUsage,
    usage: Usage,
    reserved: HashMap<String, usize>,
}

impl PermissionQuota {
    pub(crate) fn new(total: &TotalUsage) -> PermissionQuota {
        PermissionQuota { total: total.clone(), usage: Usage::default(), reserved: HashMap::new() }
    }

    /// Reserves quota for a new question.
    pub(crate) fn reserve(&mut self, question: &Question, input: &Value) -> Result<(), QuotaError> {
        let text = input.to_string();
        let bytes = text.len();
        let shown_bytes = || serde_json::to_vec(question).map_or(usize::MAX, |text| text.len());
        if bytes > INPUT_BYTES_MAX || shown_bytes() > QUESTION_BYTES_MAX {
            let digest = hex(&Sha256::digest(text.as_bytes()));
            return Err(QuotaError::TooLarge { bytes, digest });
        }
        if !self.usage.has_room(bytes, SESSION_MAX) {
            return Err(too_many("this session", SESSION_MAX));
        }
        if !self.total.lock().has_room(bytes, ALL_MAX) {
            return Err(too_many("all sessions", ALL_MAX));
        }
        self.add(&question.id, bytes);
        Ok(())
    }

    /// Reserves quota for a question of the previous worker, beyond the limits if need be.
    pub(crate) fn reserve_restored(&mut self, question: &str, input: &Value) {
        self.add(question, input.to_string().len());
    }

    fn add(&mut self, question: &str, bytes: usize) {
        self.usage.add(bytes);
        self.total.lock().add(bytes);
        self.reserved.insert(question.to_owned(), bytes);
    }

    pub(crate) fn release(&mut self, question: &str) {
        if let Some(bytes) = self.reserved.remove(question) {
            self.usage.remove(bytes);
            self.total.lock().remove(bytes);
        }
    }
}

impl Drop for PermissionQuota {
    fn drop(&mut self) {
        let mut total = self.total.lock();
        self.reserved.values().for_each(|bytes| total.remove(*bytes));
    }
}

fn too_many(whose: &'static str, max: Usage) -> QuotaError {
    QuotaError::TooMany { whose, questions: max.questions, bytes: max.bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn question(id: usize) -> Question {
        let question = json!({
            "id": id.to_string(), "face": "", "uid": 0, "digest": "", "title": "", "sections": [], "warnings": [],
            "privileged": false, "rememberable": false, "asked_ms": 0, "deadline_ms": 0,
        });
        serde_json::from_value(question).unwrap()
    }

    #[test]
    fn a_session_is_limited_and_a_release_makes_room() {
        let total = TotalUsage::default();
        let mut quota = PermissionQuota::new(&total);
        for id in 0..SESSION_MAX.questions {
            quota.reserve(&question(id), &json!("x")).unwrap();
        }
        let refused = quota.reserve(&question(99), &json!("x")).unwrap_err().to_string();
        assert!(refused.contains("32 questions"), "{refused}");
        quota.release("0");
        quota.reserve(&question(99), &json!("x")).unwrap();
        drop(quota);
        assert_eq!(*total.lock(), Usage::default());

        let mut quota = PermissionQuota::new(&total);
        let large = json!("x".repeat(INPUT_BYTES_MAX - 2));
        for id in 0..4 {
            quota.reserve(&question(id), &large).unwrap();
        }
        assert!(quota.reserve(&question(4), &json!("x")).unwrap_err().to_string().contains("4194304 bytes"));
        assert!(
            PermissionQuota::new(&total).reserve(&question(5), &json!("x")).is_ok(),
            "another session has a quota of its own"
        );
    }

    #[test]
    fn all_sessions_together_are_limited() {
        let total = TotalUsage::default();
        let mut quotas: Vec<PermissionQuota> = (0..17).map(|_| PermissionQuota::new(&total)).collect();
        for (number, quota) in quotas.iter_mut().enumerate() {
            for id in 0..SESSION_MAX.questions {
                let reserved = quota.reserve(&question(id), &json!("x"));
                assert_eq!(reserved.is_ok(), number < 16, "{reserved:?}");
            }
        }
    }

    #[test]
    fn an_oversized_input_is_denied_with_its_size_and_hash() {
        let mut quota = PermissionQuota::new(&TotalUsage::default());
        let input = json!({ "content": "x".repeat(INPUT_BYTES_MAX) });
        let refused = quota.reserve(&question(1), &input).unwrap_err().to_string();
        let digest = hex(&Sha256::digest(input.to_string().as_bytes()));
        assert!(refused.contains(&digest) && refused.contains("1048590 bytes"), "{refused}");
        let oversized = Question { title: "x".repeat(QUESTION_BYTES_MAX), ..question(2) };
        assert!(quota.reserve(&oversized, &json!("x")).is_err());
    }
}
