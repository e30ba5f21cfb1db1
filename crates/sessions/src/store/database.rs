//! The tables of the sessions face in the daemon's ledger: sessions, their messages, and their order.

use crate::FACE;
use crate::agents::{Cli, Mode};
use crate::session::{Created, Session, Stage, State, Turn};
use crate::store::turn_log;
use crate::turn::checkpoint::TurnCheckpoint;
use crate::turn::output::TurnEnd;
use crate::turn::sandbox::Sandbox;
use jiff::Timestamp;
use outpost_approvals::Queue;
use outpost_ledger::{Error, LedgerTx, Result};
use std::collections::{HashMap, VecDeque};
use std::path::Path;

/// The tables of this face. `session_order` numbers sessions in the order of creation, because timestamps can be equal
/// or go back. Sessions of older versions have no number; the insert gives them one by timestamp.
pub const SCHEMA: &str = "
    create table if not exists sessions (
        id text primary key,
        path text not null,
        cli text not null,
        mode text not null,
        model text,
        sdk_id text,
        sandbox text,
        created_ms integer not null,
        active_ms integer not null,
        next_turn integer not null default 1
    ) strict, without rowid;
    create table if not exists session_turns (
        session text not null references sessions (id) on delete cascade,
        number integer not null,
        message text,
        is_over integer not null default 0,
        is_cancelled integer not null default 0,
        first_seq integer not null default 0,
        events integer not null default 0,
        bytes integer not null default 0,
        primary key (session, number)
    ) strict, without rowid;
    create table if not exists session_order (
        number integer primary key autoincrement,
        session text not null unique references sessions (id) on delete cascade
    ) strict;
    insert into session_order (session)
        select id from sessions where id not in (select session from session_order) order by created_ms, id;
";

/// Inserts a session and returns its number in the order of creation.
pub(crate) fn insert(tx: &mut LedgerTx<'_>, session: &NewSession) -> Result<u64> {
    let sql = "insert into sessions (id, path, cli, mode, model, sandbox, created_ms, active_ms)
        values (?, ?, ?, ?, ?, ?, ?, ?)";
    let sandbox = session.sandbox.as_ref().map(serde_json::to_string).transpose();
    let sandbox = sandbox.map_err(|error| Error::Refused(format!("cannot store the sandbox: {error}")))?;
    let created = session.created.as_millisecond();
    let values = (
        &session.id,
        &session.path,
        session.cli.name(),
        session.mode.name(),
        &session.model,
        sandbox,
        created,
        created,
    );
    tx.execute("insert a session", sql, values)?;
    let sql = "insert into session_order (session) values (?) returning number";
    let numbers = tx.rows("number a session", sql, (&session.id,), |row| row.get::<_, i64>(0))?;
    Ok(numbers.first().copied().unwrap_or_default().cast_unsigned())
}

/// A session to insert.
pub(crate) struct NewSession {
    pub(crate) id: String,
    pub(crate) path: String,
    pub(crate) cli: Cli,
    pub(crate) mode: Mode,
    pub(crate) model: Option<String>,
    pub(crate) sandbox: Option<Sandbox>,
    pub(crate) created: Timestamp,
}

pub(crate) fn delete(tx: &mut LedgerTx<'_>, id: &str) -> Result<()> {
    tx.execute("delete a session", "delete from sessions where id = ?", (id,)).map(|_| ())
}

/// Stores the mode, model and conversation id.
pub(crate) fn update(
    tx: &mut LedgerTx<'_>,
    id: &str,
    mode: Mode,
    model: Option<&str>,
    conversation_id: Option<&str>,
) -> Result<()> {
    let sql = "update sessions set mode = ?, model = ?, sdk_id = ? where id = ?";
    tx.execute("update a session", sql, (mode.name(), model, conversation_id, id)).map(|_| ())
}

pub(crate) fn insert_turn(
    tx: &mut LedgerTx<'_>,
    session: &str,
    number: u64,
    message: &str,
    active: Timestamp,
) -> Result<()> {
    let number = number.cast_signed();
    let sql = "insert into session_turns (session, number, message) values (?, ?, ?)";
    tx.execute("insert a message", sql, (session, number, message))?;
    let sql = "update sessions set next_turn = max(next_turn, ?), active_ms = ? where id = ?";
    tx.execute("update the activity time", sql, (number + 1, active.as_millisecond(), session)).map(|_| ())
}

/// Marks all open turns as cancelled, so that the next worker does not run them.
pub(crate) fn cancel_turns(tx: &mut LedgerTx<'_>, session: &str) -> Result<()> {
    let sql = "update session_turns set is_cancelled = 1 where session = ? and is_over = 0";
    tx.execute("cancel messages", sql, (session,)).map(|_| ())
}

/// Marks a turn as finished and deletes its message.
pub(crate) fn end_turn(
    tx: &mut LedgerTx<'_>,
    session: &str,
    turn: &Turn,
    conversation_id: Option<&str>,
    active: Timestamp,
) -> Result<()> {
    let sql = "update session_turns set is_over = 1, message = null, first_seq = ?, events = ?, bytes = ?
        where session = ? and number = ?";
    let [first, events, bytes, number] =
        [turn.first_seq, turn.events, turn.bytes, turn.number].map(u64::cast_signed);
    tx.execute("end a turn", sql, (first, events, bytes, session, number))?;
    let sql = "update sessions set sdk_id = ?, active_ms = ? where id = ?";
    tx.execute("update the conversation", sql, (conversation_id, active.as_millisecond(), session))
        .map(|_| ())
}

pub(crate) fn delete_turns_before(tx: &mut LedgerTx<'_>, session: &str, number: u64) -> Result<()> {
    let sql = "delete from session_turns where session = ? and number < ? and is_over = 1";
    tx.execute("delete turns", sql, (session, number.cast_signed())).map(|_| ())
}

/// Loads all sessions. `dir` holds the event logs, with one subdirectory per session.
pub(crate) fn load(tx: &mut LedgerTx<'_>, dir: &Path) -> Result<Vec<Session>> {
    let mut turns: HashMap<String, VecDeque<Turn>> = HashMap::new();
    let sql = "select session, number, message, is_over, is_cancelled, first_seq, events, bytes
        from session_turns order by session, number";
    let rows = tx.rows("read turns", sql, (), |row| {
        let number = |at: usize| row.get::<_, i64>(at).map(i64::cast_unsigned);
        let is_over = row.get::<_, i64>(3)? != 0;
        let turn = Turn {
            number: number(1)?,
            stage: if is_over { Stage::Finished } else { Stage::Queued },
            message: row.get::<_, Option<String>>(2)?.unwrap_or_default(),
            has_own_stream: false,
            is_cancelled: row.get::<_, i64>(4)? != 0,
            conversation_replaced: false,
            first_seq: number(5)?,
            events: number(6)?,
            bytes: number(7)?,
            delivered: None,
            failure: None,
        };
        Ok((row.get::<_, String>(0)?, turn))
    })?;
    for (session, turn) in rows {
        turns.entry(session).or_default().push_back(turn);
    }
    let sql = "select id, path, cli, mode, model, sdk_id, sandbox, created_ms, active_ms, next_turn, number
        from sessions join session_order on session = id";
    let sessions = tx.rows("read sessions", sql, (), |row| {
        let id: String = row.get(0)?;
        let (cli, mode): (String, String) = (row.get(2)?, row.get(3)?);
        let time =
            |at: usize| row.get::<_, i64>(at).map(|ms| Timestamp::from_millisecond(ms).unwrap_or_default());
        let sandbox: Option<String> = row.get(6)?;
        // An unknown mode of a newer version becomes the most restrictive one.
        let mode = Mode::from_name(&mode).unwrap_or(Mode::Plan);
        let state = State {
            conversation_id: row.get(5)?,
            turns: turns.remove(&id).unwrap_or_default(),
            next_turn: row.get::<_, i64>(9)?.cast_unsigned(),
            ..State::new(mode, row.get(4)?, time(8)?)
        };
        let sandbox = sandbox.as_deref().map(Sandbox::from_stored);
        let cli = Cli::from_name(&cli).unwrap_or(Cli::Claude);
        let path: String = row.get(1)?;
        let created = Created { at: time(7)?, order: row.get::<_, i64>(10)?.cast_unsigned() };
        let session_dir = dir.join(&id);
        Ok(Session::new(id, path.into(), cli, created, session_dir, sandbox, state))
    })?;
    let mut checkpoints = Vec::new();
    for session in &sessions {
        let mut state = session.state();
        let conversation = state.conversation_id.clone();
        // A turn with a checkpoint is running. Clients may have seen the events that the checkpoint covers.
        if let Some(open) = state.turns.iter_mut().find(|turn| turn.stage != Stage::Finished)
            && let Some(checkpoint) = turn_log::read_checkpoint::<TurnCheckpoint>(&session.dir, open.number)
        {
            open.stage = Stage::Running;
            open.first_seq = checkpoint.first_seq;
            (open.events, open.bytes) = (checkpoint.next_seq - checkpoint.first_seq, checkpoint.bytes);
            open.is_cancelled |= checkpoint.end == TurnEnd::Final;
            open.conversation_replaced =
                ![&checkpoint.initial_conversation_id, &checkpoint.conversation_id].contains(&&conversation);
            checkpoints.push(checkpoint);
        }
        let ends = state.turns.iter().map(|turn| turn.first_seq + turn.events);
        state.next_seq = ends.max().unwrap_or_default().max(1);
    }
    // A worker stores a question before the checkpoint that names it. If it dies in between, the adapter asks again, so
    // the question is deleted here.
    for id in Queue::ids(tx, FACE)? {
        if !checkpoints.iter().any(|checkpoint| checkpoint.has_question(&id)) {
            Queue::delete(tx, &id)?;
        }
    }
    Ok(sessions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use outpost_ledger::Ledger;

    #[tokio::test]
    async fn sessions_of_older_databases_are_numbered_by_timestamp_and_new_ones_follow() {
        let (older, _) = SCHEMA.split_once("create table if not exists session_order").unwrap();
        let rows = [("b", 5), ("c", 3), ("a", 5)].map(|(id, ms)| {
            format!(
                "insert into sessions (id, path, cli, mode, created_ms, active_ms)
                 values ('{id}', '/', 'claude', 'auto', {ms}, {ms});"
            )
        });
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(dir.path(), &[older, &rows.concat(), SCHEMA, SCHEMA]).unwrap();
        let created = Timestamp::from_millisecond(1).unwrap();
        let new = NewSession {
            id: "0".into(),
            path: "/".into(),
            cli: Cli::Claude,
            mode: Mode::Auto,
            model: None,
            sandbox: None,
            created,
        };
        let order = ledger.transact(move |tx| insert(tx, &new)).await.unwrap();
        let numbered = ledger.transact(|tx| {
            let sql = "select session from session_order order by number";
            tx.rows("read the order", sql, (), |row| row.get::<_, String>(0))
        });
        assert_eq!((order, numbered.await.unwrap()), (4, ["c", "a", "b", "0"].map(str::to_owned).to_vec()));
    }
}
