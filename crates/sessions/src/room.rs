//! How many questions of agents may wait for a human, how large they may be, and what they take now.
//!
//! Every question must fit into the lines of approvers, into the mark of its turn and into a record of the audit, and a human
//! must be able to read it. What does not fit is denied to the agent with the reason: it is never cut.

use outpost_approvals::{Question, hex};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The input of a tool, as JSON.
pub(crate) const INPUT_BYTES_MAX: usize = 1024 * 1024;

/// A question as it is sent to approvers, with everything in it escaped.
const QUESTION_BYTES_MAX: usize = 8 * 1024 * 1024;

/// What waits at once: of one session, and of all together.
const SESSION_MAX: Load = Load { questions: 32, bytes: 4 * 1024 * 1024 };
const ALL_MAX: Load = Load { questions: 512, bytes: 32 * 1024 * 1024 };

/// Questions and the bytes of their inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    questions: usize,
    bytes: usize,
}

impl Load {
    fn has_room(self, bytes: usize, max: Load) -> bool {
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

/// What all sessions' questions take.
#[derive(Clone, Debug, Default)]
pub(crate) struct All(Arc<Mutex<Load>>);

impl All {
    fn load(&self) -> MutexGuard<'_, Load> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the questions of one turn take, by question. Given back at the latest when this is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    all: All,
    load: Load,
    taken: HashMap<String, usize>,
}

impl Room {
    pub(crate) fn new(all: &All) -> Room {
        Room { all: all.clone(), load: Load::default(), taken: HashMap::new() }
    }

    /// Takes room for a question, or says why there is none.
    pub(crate) fn take(&mut self, question: &Question, input: &Value) -> Result<(), String> {
        let text = input.to_string();
        let bytes = text.len();
        let drawn = || serde_json::to_vec(question).map_or(usize::MAX, |text| text.len());
        if bytes > INPUT_BYTES_MAX || drawn() > QUESTION_BYTES_MAX {
            let digest = hex(&Sha256::digest(text.as_bytes()));
            return Err(format!(
                "Denied without asking: the input has {bytes} bytes (SHA-256 {digest}), and a human is shown at most \
                 {INPUT_BYTES_MAX} before escaping. Do it in smaller steps."
            ));
        }
        if !self.load.has_room(bytes, SESSION_MAX) {
            return Err(too_many("this session", SESSION_MAX));
        }
        if !self.all.load().has_room(bytes, ALL_MAX) {
            return Err(too_many("all sessions", ALL_MAX));
        }
        self.occupy(&question.id, bytes);
        Ok(())
    }

    /// Takes room for a question that waits already.
    pub(crate) fn take_again(&mut self, question: &str, input: &Value) {
        self.occupy(question, input.to_string().len());
    }

    fn occupy(&mut self, question: &str, bytes: usize) {
        self.load.add(bytes);
        self.all.load().add(bytes);
        self.taken.insert(question.to_owned(), bytes);
    }

    pub(crate) fn give_back(&mut self, question: &str) {
        if let Some(bytes) = self.taken.remove(question) {
            self.load.remove(bytes);
            self.all.load().remove(bytes);
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut all = self.all.load();
        self.taken.values().for_each(|bytes| all.remove(*bytes));
    }
}

fn too_many(whose: &str, max: Load) -> String {
    format!(
        "Denied without asking: of {whose}, {} questions or {} bytes may wait for a human at once.",
        max.questions, max.bytes
    )
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
    fn a_session_has_so_many_questions_and_bytes_and_gets_them_back() {
        let all = All::default();
        let mut room = Room::new(&all);
        for id in 0..SESSION_MAX.questions {
            room.take(&question(id), &json!("x")).unwrap();
        }
        let refused = room.take(&question(99), &json!("x")).unwrap_err();
        assert!(refused.contains("32 questions"), "{refused}");
        room.give_back("0");
        room.take(&question(99), &json!("x")).unwrap();
        drop(room);
        assert_eq!(*all.load(), Load::default());

        let mut room = Room::new(&all);
        let large = json!("x".repeat(INPUT_BYTES_MAX - 2));
        for id in 0..4 {
            room.take(&question(id), &large).unwrap();
        }
        assert!(room.take(&question(4), &json!("x")).unwrap_err().contains("4194304 bytes"));
        assert!(Room::new(&all).take(&question(5), &json!("x")).is_ok(), "another session asks on");
    }

    #[test]
    fn all_sessions_together_have_a_bound() {
        let all = All::default();
        let mut rooms: Vec<Room> = (0..17).map(|_| Room::new(&all)).collect();
        for (number, room) in rooms.iter_mut().enumerate() {
            for id in 0..SESSION_MAX.questions {
                let taken = room.take(&question(id), &json!("x"));
                assert_eq!(taken.is_ok(), number < 16, "{taken:?}");
            }
        }
    }

    #[test]
    fn what_cannot_be_shown_whole_is_denied_by_size_and_hash() {
        let mut room = Room::new(&All::default());
        let input = json!({ "content": "x".repeat(INPUT_BYTES_MAX) });
        let refused = room.take(&question(1), &input).unwrap_err();
        let digest = hex(&Sha256::digest(input.to_string().as_bytes()));
        assert!(refused.contains(&digest) && refused.contains("1048590 bytes"), "{refused}");
        let drawn = Question { title: "x".repeat(QUESTION_BYTES_MAX), ..question(2) };
        assert!(room.take(&drawn, &json!("x")).is_err());
    }
}
