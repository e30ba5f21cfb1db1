//! Process lookup: resolves a slot number, an id or an address to one process and refuses an ambiguous id.

use crate::wire::{self, Failure};
use outpost_engine::{Engine, Key, Process, Slot};
use std::fmt::Write;

/// Longest list of candidates in the message about an ambiguous id.
const CANDIDATES_SHOWN: usize = 16;

pub(crate) async fn find(engine: &Engine, reference: &str) -> Result<Process, Failure> {
    if let Ok(slot) = reference.parse::<Slot>()
        && let Some(process) = engine.get(slot).await
    {
        return Ok(process);
    }
    let mut found = engine.list().await;
    found.retain(|process| matches(process.key(), reference));
    match (found.pop(), found.is_empty()) {
        (Some(process), true) => Ok(process),
        (Some(last), false) => {
            found.push(last);
            Err(ambiguous(reference, &found))
        }
        (None, _) => Err(Failure {
            kind: "unknown".into(),
            message: format!("no such process: {reference:?}; `outpost ps --all` lists all processes"),
        }),
    }
}

/// Whether the reference is the id, `FACE/ID` or `FACE/SCOPE/ID` of this key.
fn matches(key: &Key, reference: &str) -> bool {
    let below = |path: &str, part: &str| path.strip_prefix(part)?.strip_prefix('/').map(str::to_owned);
    let in_face = below(reference, &key.face);
    let in_scope = in_face.as_deref().and_then(|path| below(path, &key.scope));
    reference == key.id || in_face.as_deref() == Some(&key.id) || in_scope.as_deref() == Some(&key.id)
}

fn ambiguous(reference: &str, found: &[Process]) -> Failure {
    let mut message = format!("{} processes match {reference:?}; choose one by its number:", found.len());
    for process in found.iter().rev().take(CANDIDATES_SHOWN) {
        let Key { face, scope, id } = process.key();
        let state = if process.status().exit().is_some() { "ended" } else { "running" };
        let address = wire::address(face, scope, id);
        let _infallible = write!(message, "\n  {}  {}  {state}", process.slot(), address.escape_debug());
    }
    if let Some(more @ 1..) = found.len().checked_sub(CANDIDATES_SHOWN) {
        let _infallible = write!(message, "\n  and {more} more; `outpost ps --all` lists them");
    }
    Failure { kind: "ambiguous".into(), message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_by_its_id_and_its_addresses() {
        let session = Key::new("sessions", "5f-e", "1");
        for reference in ["1", "sessions/1", "sessions/5f-e/1"] {
            assert!(matches(&session, reference), "{reference}");
        }
        for reference in
            ["", "2", "sessions", "sessions/", "5f-e/1", "relay/1", "sessions/5f-e", "sessions//1"]
        {
            assert!(!matches(&session, reference), "{reference}");
        }
        let unscoped = Key::new("control", "", "a/b");
        assert!(["a/b", "control/a/b"].iter().all(|reference| matches(&unscoped, reference)));
        assert_eq!(wire::address("control", "", "a/b"), "control/a/b");
    }
}
