//! The end of a finished turn in the database, and the deletion of old event logs.

use crate::Error;
use crate::face::Face;
use crate::session::{self, Session, Stage, State};
use crate::store::{database, delivered_count, turn_log};
use std::sync::Arc;

/// How many read turns of a session are kept for clients with a cursor, and how many bytes.
const KEPT_TURNS_MAX: usize = 64;
const KEPT_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Finishes a turn whose log cannot be written. Its streams end with this error.
pub(crate) fn fail_turn(session: &Session, number: u64, error: &Error) {
    if let Some(turn) = session.state().turn_mut(number) {
        turn.stage = Stage::Finished;
        turn.message = String::new();
        turn.failure = Some(error.to_string());
    }
    session.changed();
}

/// Writes the end of a turn to the database and deletes old turns.
pub(crate) async fn finish_turn(face: &Arc<Face>, session: &Arc<Session>, number: u64) {
    let (turn, active, dropped) = {
        let mut state = session.state();
        state.active = session::now();
        let Some(turn) = state.turn_mut(number) else { return };
        turn.stage = Stage::Finished;
        turn.message = String::new();
        let turn = turn.clone();
        let dropped = remove_old(&mut state, session);
        (turn, state.active, dropped)
    };
    for number in &dropped {
        turn_log::remove(&session.dir, *number);
        delivered_count::remove(&session.dir, *number);
    }
    let closed = session.clone();
    let kept_from = dropped.last().map_or(0, |last| last + 1);
    let written = face.ledger().transact(move |tx| {
        // Read inside the transaction, so that a concurrent `session.resume` is not overwritten.
        let conversation_id = closed.state().conversation_id.clone();
        database::end_turn(tx, &closed.id, &turn, conversation_id.as_deref(), active)?;
        database::delete_turns_before(tx, &closed.id, kept_from)
    });
    if let Err(error) = written.await {
        tracing::error!(session = session.id, turn = number, %error, "cannot write the end of a turn to the database");
    }
}

/// Removes the oldest turns beyond the limits. Turns with unread events and turns of open streams stay.
fn remove_old(state: &mut State, session: &Session) -> Vec<u64> {
    let live = state.streams.iter().min().copied().unwrap_or(u64::MAX);
    let mut bytes: u64 = state.turns.iter().map(|turn| turn.bytes).sum();
    let mut dropped = Vec::new();
    while state.turns.len() > KEPT_TURNS_MAX || (bytes > KEPT_BYTES_MAX && state.turns.len() > 1) {
        let Some(oldest) = state.turns.front_mut() else { break };
        if oldest.stage != Stage::Finished || oldest.number >= live || oldest.unread(&session.dir) > 0 {
            break;
        }
        bytes -= oldest.bytes;
        dropped.push(oldest.number);
        state.turns.pop_front();
    }
    dropped
}
