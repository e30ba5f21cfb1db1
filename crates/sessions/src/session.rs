//! One conversation: its settings, its messages in order, and how far each of their answers has got.

use crate::agents::{Cli, Mode};
use crate::delivery;
use jiff::Timestamp;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Messages that may wait in one session, and their size together.
const WAITING_MAX: usize = 1000;
const WAITING_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The time as the books keep it, so that it is told the same by every worker.
pub(crate) fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
}

/// How far the answer to a message has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// On its way into the books; nothing happens before it is there.
    Entering,
    Waiting,
    Running,
    /// Its terminal event stands. Its process may still be ending.
    Over,
}

/// A message and the events that answer it.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pub(crate) number: u64,
    pub(crate) stage: Stage,
    /// Until it is over.
    pub(crate) message: String,
    /// Whoever sent it has a stream for it alone.
    pub(crate) is_answered_apart: bool,
    /// Nobody wants it any more.
    pub(crate) is_cancelled: bool,
    /// Another conversation was resumed since it began: what it says of its own is of no account.
    pub(crate) is_left: bool,
    /// Of its first event, once it runs.
    pub(crate) first_seq: u64,
    /// Events that stand, and their size.
    pub(crate) events: u64,
    pub(crate) bytes: u64,
    /// Events that were handed to a client; None while nobody has looked.
    pub(crate) delivered: Option<u64>,
    /// Why its record ends without a terminal event: it could not be written.
    pub(crate) failure: Option<String>,
}

/// Why a turn is ended from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Interrupted,
    Destroyed,
}

pub(crate) struct State {
    pub(crate) mode: Mode,
    pub(crate) model: Option<String>,
    pub(crate) sdk_id: Option<String>,
    pub(crate) active: Timestamp,
    /// Oldest first: those whose events are kept, and those to come.
    pub(crate) turns: VecDeque<Turn>,
    pub(crate) next_turn: u64,
    pub(crate) next_seq: u64,
    /// A client hung up and none has come since.
    pub(crate) is_deserted: bool,
    /// Turns that streams which are open now began with.
    pub(crate) streams: Vec<u64>,
    /// Somebody runs the turns.
    pub(crate) is_driven: bool,
    pub(crate) is_destroyed: bool,
}

/// When a session was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Created {
    pub(crate) at: Timestamp,
    /// Larger than that of every session before it, whatever the clock did.
    pub(crate) order: u64,
}

/// The session. What never changes stands open.
pub(crate) struct Session {
    pub(crate) id: String,
    pub(crate) path: PathBuf,
    pub(crate) cli: Cli,
    pub(crate) created: Created,
    /// Where the records of its turns are.
    pub(crate) dir: PathBuf,
    pub(crate) sandbox: Option<crate::confine::Sandbox>,
    state: Mutex<State>,
    /// Counts changes, for whoever waits for one.
    changes: watch::Sender<u64>,
    /// How the turn that runs is told to end.
    pub(crate) stop: watch::Sender<Option<Stop>>,
}

/// What becomes of a message.
pub(crate) enum Accepted {
    /// It is next: its answer is streamed to whoever sent it.
    Live {
        turn: u64,
    },
    /// Others are before it.
    Queued {
        turn: u64,
        position: usize,
    },
    Full,
    Gone,
}

/// A session's messages and answers in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueStats {
    pub(crate) user_pending: usize,
    pub(crate) response_pending: u64,
    pub(crate) client_connected: bool,
}

impl Session {
    pub(crate) fn new(
        id: String,
        path: PathBuf,
        cli: Cli,
        created: Created,
        dir: PathBuf,
        sandbox: Option<crate::confine::Sandbox>,
        state: State,
    ) -> Session {
        Session {
            id,
            path,
            cli,
            created,
            dir,
            sandbox,
            state: Mutex::new(state),
            changes: watch::Sender::new(0),
            stop: watch::Sender::new(None),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes whoever waits for a change.
    pub(crate) fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Takes a message in. It does not run before [`Session::entered`].
    pub(crate) fn accept(&self, message: &str) -> Accepted {
        let mut state = self.state();
        if state.is_destroyed {
            return Accepted::Gone;
        }
        let open = || state.turns.iter().filter(|turn| turn.stage != Stage::Over);
        let waiting = open().filter(|turn| turn.stage != Stage::Running).count();
        let bytes: usize = open().map(|turn| turn.message.len()).sum();
        if waiting >= WAITING_MAX || bytes + message.len() > WAITING_BYTES_MAX {
            return Accepted::Full;
        }
        let is_busy = open().any(|turn| !turn.is_cancelled);
        let number = state.next_turn;
        state.next_turn += 1;
        state.active = now();
        state.turns.push_back(Turn {
            number,
            stage: Stage::Entering,
            message: message.to_owned(),
            is_answered_apart: !is_busy,
            is_cancelled: false,
            is_left: false,
            first_seq: 0,
            events: 0,
            bytes: 0,
            delivered: Some(0),
            failure: None,
        });
        match is_busy {
            true => Accepted::Queued { turn: number, position: waiting + 1 },
            false => Accepted::Live { turn: number },
        }
    }

    /// The message is in the books, or could not be written there.
    pub(crate) fn entered(&self, turn: u64, is_written: bool) {
        let mut state = self.state();
        match is_written {
            true => {
                if let Some(turn) = state.turn_mut(turn) {
                    turn.stage = Stage::Waiting;
                }
            }
            false => state.turns.retain(|known| known.number != turn),
        }
        drop(state);
        self.changed();
    }

    /// The next turn to run, if there is one and nobody runs the turns yet. The caller does from now on.
    pub(crate) fn drive(&self) -> Option<Turn> {
        let mut state = self.state();
        if state.is_driven {
            return None;
        }
        let next = state.next_ready();
        state.is_driven = next.is_some();
        next
    }

    /// The same for who runs them already; who gets none has stopped doing so.
    pub(crate) fn drive_on(&self) -> Option<Turn> {
        let mut state = self.state();
        let next = state.next_ready();
        state.is_driven = next.is_some();
        next
    }

    /// The turns are not run any more; those that wait stay. Returns no turn, as [`Session::drive_on`] does then.
    pub(crate) fn leave(&self) -> Option<Turn> {
        self.state().is_driven = false;
        None
    }

    /// Ends what runs and what waits. Whether there was anything.
    pub(crate) fn interrupt(&self, why: Stop) -> bool {
        let mut state = self.state();
        state.is_destroyed |= why == Stop::Destroyed;
        let mut found = false;
        let mut is_running = false;
        for turn in state.turns.iter_mut().filter(|turn| turn.stage != Stage::Over) {
            found |= !turn.is_cancelled;
            is_running |= turn.stage == Stage::Running;
            turn.is_cancelled = true;
        }
        if is_running || why == Stop::Destroyed {
            self.stop.send_replace(Some(why));
        }
        drop(state);
        self.changed();
        found
    }

    pub(crate) fn queue_stats(&self) -> QueueStats {
        let mut state = self.state();
        let user_pending = state.turns.iter().filter(|turn| turn.is_waiting()).count();
        let live = state.streams.iter().min().copied().unwrap_or(u64::MAX);
        let dir = &self.dir;
        let unread = state.turns.iter_mut().filter(|turn| turn.number < live).map(|turn| turn.unread(dir));
        let response_pending = unread.sum();
        QueueStats { user_pending, response_pending, client_connected: !state.is_deserted }
    }

    /// A stream that begins with this turn is open.
    pub(crate) fn stream_opened(&self, turn: u64) {
        let mut state = self.state();
        state.streams.push(turn);
        state.is_deserted = false;
    }

    /// It has ended: with its `[DONE]`, or because the client hung up.
    pub(crate) fn stream_closed(&self, turn: u64, is_done: bool) {
        let mut state = self.state();
        if let Some(at) = state.streams.iter().position(|begun| *begun == turn) {
            state.streams.swap_remove(at);
        }
        if !is_done && state.streams.is_empty() {
            state.is_deserted = true;
        }
        drop(state);
        self.changed();
    }
}

impl State {
    /// Of a session that nothing has been said in.
    pub(crate) fn new(mode: Mode, model: Option<String>, active: Timestamp) -> State {
        State {
            mode,
            model,
            sdk_id: None,
            active,
            turns: VecDeque::new(),
            next_turn: 1,
            next_seq: 1,
            is_deserted: false,
            streams: Vec::new(),
            is_driven: false,
            is_destroyed: false,
        }
    }

    pub(crate) fn turn_mut(&mut self, number: u64) -> Option<&mut Turn> {
        let at = self.turns.binary_search_by_key(&number, |turn| turn.number).ok()?;
        self.turns.get_mut(at)
    }

    pub(crate) fn turn(&self, number: u64) -> Option<&Turn> {
        let at = self.turns.binary_search_by_key(&number, |turn| turn.number).ok()?;
        self.turns.get(at)
    }

    /// The next turn goes on with this conversation, whatever those say that have begun.
    pub(crate) fn resume(&mut self, conversation: Option<String>) {
        self.sdk_id = conversation;
        let begun = |turn: &&mut Turn| matches!(turn.stage, Stage::Running | Stage::Over);
        self.turns.iter_mut().filter(begun).for_each(|turn| turn.is_left = true);
    }

    /// A turn begins with this conversation. Perhaps it was resumed just now.
    pub(crate) fn begins(&mut self, turn: u64, conversation: Option<&str>) {
        let is_left = self.sdk_id.as_deref() != conversation;
        if let Some(turn) = self.turn_mut(turn) {
            turn.is_left = is_left;
        }
    }

    /// What a turn says of its conversation.
    pub(crate) fn converses(&mut self, turn: u64, conversation: Option<String>) {
        if self.turn(turn).is_some_and(|turn| !turn.is_left) {
            self.sdk_id = conversation;
        }
    }

    /// Whether a message is being answered or waits for it.
    pub(crate) fn is_busy(&self) -> bool {
        self.turns.iter().rev().any(|turn| turn.stage != Stage::Over)
    }

    /// Whether nothing more is written or read of it.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.streams.is_empty() && !self.is_driven && !self.is_busy()
    }

    pub(crate) fn status(&self) -> &'static str {
        if self.is_busy() { "busy" } else { "idle" }
    }

    fn next_ready(&mut self) -> Option<Turn> {
        let next_seq = self.next_seq;
        let next = self.turns.iter_mut().find(|turn| turn.stage != Stage::Over)?;
        if !matches!(next.stage, Stage::Waiting | Stage::Running) {
            return None;
        }
        if next.stage == Stage::Waiting {
            next.stage = Stage::Running;
            next.first_seq = next_seq;
        }
        Some(next.clone())
    }
}

impl Turn {
    fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Entering | Stage::Waiting) && !self.is_cancelled
    }

    /// Events that no client has been handed.
    pub(crate) fn unread(&mut self, dir: &std::path::Path) -> u64 {
        let delivered = *self.delivered.get_or_insert_with(|| delivery::load(dir, self.number));
        self.events.saturating_sub(delivered)
    }
}
