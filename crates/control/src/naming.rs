//! Which process a name means: the engine's number, an id, or an address. One that means several is refused.

use crate::wire::{self, Failure};
use outpost_engine::{Engine, Key, Process, Slot};
use std::fmt::Write;

/// As many as a human reads.
const CANDIDATES_SHOWN: usize = 16;

pub(crate) async fn find(engine: &Engine, name: &str) -> Result<Process, Failure> {
    if let Ok(slot) = name.parse::<Slot>()
        && let Some(process) = engine.get(slot).await
    {
        return Ok(process);
    }
    let mut found = engine.list().await;
    found.retain(|process| answers_to(process.key(), name));
    match (found.pop(), found.is_empty()) {
        (Some(process), true) => Ok(process),
        (Some(last), false) => {
            found.push(last);
            Err(ambiguous(name, &found))
        }
        (None, _) => Err(Failure {
            kind: "unknown".into(),
            message: format!("there is no process {name:?}; `outpost ps --all` lists them"),
        }),
    }
}

/// By its id, `FACE/ID` or `FACE/SCOPE/ID`.
fn answers_to(key: &Key, name: &str) -> bool {
    let below = |name: &str, part: &str| name.strip_prefix(part)?.strip_prefix('/').map(str::to_owned);
    let in_face = below(name, &key.face);
    let in_scope = in_face.as_deref().and_then(|name| below(name, &key.scope));
    name == key.id || in_face.as_deref() == Some(&key.id) || in_scope.as_deref() == Some(&key.id)
}

fn ambiguous(name: &str, found: &[Process]) -> Failure {
    let mut message = format!("{name:?} is the name of {} processes; say which by its number:", found.len());
    for process in found.iter().rev().take(CANDIDATES_SHOWN) {
        let Key { face, scope, id } = process.key();
        let state = if process.status().exit().is_some() { "ended" } else { "running" };
        let address = wire::address(face, scope, id);
        let _infallible = write!(message, "\n  {}  {}  {state}", process.slot(), address.escape_debug());
    }
    if let Some(more @ 1..) = found.len().checked_sub(CANDIDATES_SHOWN) {
        let _infallible = write!(message, "\n  and {more} more, which `outpost ps --all` lists");
    }
    Failure { kind: "ambiguous".into(), message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_answers_to_its_id_and_to_its_addresses() {
        let session = Key::new("sessions", "5f-e", "1");
        for name in ["1", "sessions/1", "sessions/5f-e/1"] {
            assert!(answers_to(&session, name), "{name}");
        }
        for name in ["", "2", "sessions", "sessions/", "5f-e/1", "relay/1", "sessions/5f-e", "sessions//1"] {
            assert!(!answers_to(&session, name), "{name}");
        }
        let plain = Key::new("control", "", "a/b");
        assert!(["a/b", "control/a/b"].iter().all(|name| answers_to(&plain, name)));
        assert_eq!(wire::address("control", "", "a/b"), "control/a/b");
    }
}
