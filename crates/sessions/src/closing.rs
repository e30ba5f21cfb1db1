//! What is left to do when a turn is over: its end in the books, and older answers that nobody needs any more.

use crate::face::Face;
use crate::session::{self, Session, Stage, State};
use crate::{Error, delivery, records, turn_log};
use std::sync::Arc;

/// Answers that were read are kept for clients that come with a cursor, so many turns and bytes of a session.
const KEPT_TURNS_MAX: usize = 64;
const KEPT_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Its record cannot be written, so its clients cannot be told more than that it is over.
pub(crate) fn give_up(session: &Session, number: u64, error: &Error) {
    if let Some(turn) = session.state().turn_mut(number) {
        turn.stage = Stage::Over;
        turn.message = String::new();
        turn.failure = Some(error.to_string());
    }
    session.changed();
}

/// Writes the end of a turn into the books, and forgets old ones.
pub(crate) async fn close(face: &Arc<Face>, session: &Arc<Session>, number: u64) {
    let (turn, active, dropped) = {
        let mut state = session.state();
        state.active = session::now();
        let Some(turn) = state.turn_mut(number) else { return };
        turn.stage = Stage::Over;
        turn.message = String::new();
        let turn = turn.clone();
        let dropped = drop_old(&mut state, session);
        (turn, state.active, dropped)
    };
    for number in &dropped {
        turn_log::remove(&session.dir, *number);
        delivery::remove(&session.dir, *number);
    }
    let closed = session.clone();
    let kept_from = dropped.last().map_or(0, |last| last + 1);
    let written = face.books().write(move |books| {
        // As it stands when it is written: a conversation that was resumed meanwhile stays so.
        let sdk_id = closed.state().sdk_id.clone();
        records::end_turn(books, &closed.id, &turn, sdk_id.as_deref(), active)?;
        records::delete_turns_before(books, &closed.id, kept_from)
    });
    if let Err(error) = written.await {
        tracing::error!(session = session.id, turn = number, %error, "the end of a turn is not in the books");
    }
}

/// The oldest answers go, those that were read, while there are too many or too large ones.
fn drop_old(state: &mut State, session: &Session) -> Vec<u64> {
    let live = state.streams.iter().min().copied().unwrap_or(u64::MAX);
    let mut bytes: u64 = state.turns.iter().map(|turn| turn.bytes).sum();
    let mut dropped = Vec::new();
    while state.turns.len() > KEPT_TURNS_MAX || (bytes > KEPT_BYTES_MAX && state.turns.len() > 1) {
        let Some(oldest) = state.turns.front_mut() else { break };
        if oldest.stage != Stage::Over || oldest.number >= live || oldest.unread(&session.dir) > 0 {
            break;
        }
        bytes -= oldest.bytes;
        dropped.push(oldest.number);
        state.turns.pop_front();
    }
    dropped
}
