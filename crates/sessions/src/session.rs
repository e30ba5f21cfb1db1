//! The state of one session: its settings, its queue of messages, and the progress of each turn.

use crate::agents::{Cli, Mode};
use crate::store::delivered_count;
use jiff::Timestamp;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Maximum number of messages that one session queues, and their total size.
const QUEUED_MAX: usize = 1000;
const QUEUED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The current time in milliseconds, the precision of the database, so that every worker reports the same value.
pub(crate) fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
}

/// The progress of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The message is being written to the database. The turn cannot start yet.
    Persisting,
    Queued,
    Running,
    /// The terminal event is on disk. The process may still be exiting.
    Finished,
}

/// A message and the events that answer it.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pub(crate) number: u64,
    pub(crate) stage: Stage,
    /// Empty once the turn is finished.
    pub(crate) message: String,
    /// The sender reads this turn on a stream of its own.
    pub(crate) has_own_stream: bool,
    /// `session.interrupt` or `session.destroy` cancelled the turn.
    pub(crate) is_cancelled: bool,
    /// `session.resume` chose another conversation after this turn began. Its conversation id is ignored.
    pub(crate) conversation_replaced: bool,
    /// Number of the first event; 0 until the turn runs.
    pub(crate) first_seq: u64,
    /// Events on disk, and their size in bytes.
    pub(crate) events: u64,
    pub(crate) bytes: u64,
    /// Events that a client has received. `None` until the count was loaded from disk.
    pub(crate) delivered: Option<u64>,
    /// Why the log has no terminal event: it could not be written.
    pub(crate) failure: Option<String>,
}

/// Why a running turn is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Interrupted,
    Destroyed,
}

pub(crate) struct State {
    pub(crate) mode: Mode,
    pub(crate) model: Option<String>,
    pub(crate) conversation_id: Option<String>,
    pub(crate) active: Timestamp,
    /// Oldest first: turns whose events are kept, then queued ones.
    pub(crate) turns: VecDeque<Turn>,
    pub(crate) next_turn: u64,
    pub(crate) next_seq: u64,
    /// The last client disconnected before the end of its stream.
    pub(crate) client_gone: bool,
    /// The first turn of each open stream.
    pub(crate) streams: Vec<u64>,
    /// A task runs the turns of this session.
    pub(crate) has_runner: bool,
    pub(crate) is_destroyed: bool,
}

/// When a session was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Created {
    pub(crate) at: Timestamp,
    /// Strictly increasing, independent of the clock.
    pub(crate) order: u64,
}

/// One session. Fields outside of `state` never change.
pub(crate) struct Session {
    pub(crate) id: String,
    pub(crate) path: PathBuf,
    pub(crate) cli: Cli,
    pub(crate) created: Created,
    /// Directory of the event logs.
    pub(crate) dir: PathBuf,
    pub(crate) sandbox: Option<crate::turn::sandbox::Sandbox>,
    state: Mutex<State>,
    /// Counts changes of `state`, to wake waiting tasks.
    changes: watch::Sender<u64>,
    /// Requests the running turn to stop.
    pub(crate) stop: watch::Sender<Option<Stop>>,
}

/// The outcome of accepting a message.
pub(crate) enum Accepted {
    /// The turn is next; its events are streamed to the sender.
    Live {
        turn: u64,
    },
    /// Other turns run first.
    Queued {
        turn: u64,
        position: usize,
    },
    Full,
    Destroyed,
}

/// Queue statistics of a session, as `session.queue_stats` reports them.
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
        sandbox: Option<crate::turn::sandbox::Sandbox>,
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

    /// Wakes all tasks that wait for a change.
    pub(crate) fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Queues a message. The turn does not start before [`Session::persisted`].
    pub(crate) fn accept(&self, message: &str) -> Accepted {
        let mut state = self.state();
        if state.is_destroyed {
            return Accepted::Destroyed;
        }
        let open = || state.turns.iter().filter(|turn| turn.stage != Stage::Finished);
        let waiting = open().filter(|turn| turn.stage != Stage::Running).count();
        let bytes: usize = open().map(|turn| turn.message.len()).sum();
        if waiting >= QUEUED_MAX || bytes + message.len() > QUEUED_BYTES_MAX {
            return Accepted::Full;
        }
        let is_busy = open().any(|turn| !turn.is_cancelled);
        let number = state.next_turn;
        state.next_turn += 1;
        state.active = now();
        state.turns.push_back(Turn {
            number,
            stage: Stage::Persisting,
            message: message.to_owned(),
            has_own_stream: !is_busy,
            is_cancelled: false,
            conversation_replaced: false,
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

    /// Reports whether the message was written to the database. A failed one is removed.
    pub(crate) fn persisted(&self, turn: u64, is_written: bool) {
        let mut state = self.state();
        match is_written {
            true => {
                if let Some(turn) = state.turn_mut(turn) {
                    turn.stage = Stage::Queued;
                }
            }
            false => state.turns.retain(|known| known.number != turn),
        }
        drop(state);
        self.changed();
    }

    /// Returns the next turn and makes the caller the session's runner. `None` if there is a runner already or no turn
    /// is ready.
    pub(crate) fn claim_runner(&self) -> Option<Turn> {
        let mut state = self.state();
        if state.has_runner {
            return None;
        }
        let next = state.next_ready();
        state.has_runner = next.is_some();
        next
    }

    /// For the runner: returns its next turn. Without one, the caller stops being the runner.
    pub(crate) fn advance_runner(&self) -> Option<Turn> {
        let mut state = self.state();
        let next = state.next_ready();
        state.has_runner = next.is_some();
        next
    }

    /// Ends the caller's role as runner. Queued turns stay. Always returns `None`, like [`Session::advance_runner`] at
    /// the end.
    pub(crate) fn release_runner(&self) -> Option<Turn> {
        self.state().has_runner = false;
        None
    }

    /// Stops the running turn and cancels the queued ones. Returns whether there were any.
    pub(crate) fn interrupt(&self, why: Stop) -> bool {
        let mut state = self.state();
        state.is_destroyed |= why == Stop::Destroyed;
        let mut found = false;
        let mut is_running = false;
        for turn in state.turns.iter_mut().filter(|turn| turn.stage != Stage::Finished) {
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
        QueueStats { user_pending, response_pending, client_connected: !state.client_gone }
    }

    /// Registers an open stream that starts at this turn.
    pub(crate) fn stream_opened(&self, turn: u64) {
        let mut state = self.state();
        state.streams.push(turn);
        state.client_gone = false;
    }

    /// Unregisters a stream. `is_done` is false if the client disconnected before `[DONE]`.
    pub(crate) fn stream_closed(&self, turn: u64, is_done: bool) {
        let mut state = self.state();
        if let Some(at) = state.streams.iter().position(|begun| *begun == turn) {
            state.streams.swap_remove(at);
        }
        if !is_done && state.streams.is_empty() {
            state.client_gone = true;
        }
        drop(state);
        self.changed();
    }
}

impl State {
    /// The state of a session without messages.
    pub(crate) fn new(mode: Mode, model: Option<String>, active: Timestamp) -> State {
        State {
            mode,
            model,
            conversation_id: None,
            active,
            turns: VecDeque::new(),
            next_turn: 1,
            next_seq: 1,
            client_gone: false,
            streams: Vec::new(),
            has_runner: false,
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

    /// Sets the conversation of the next turn. Turns that have begun no longer change it.
    pub(crate) fn resume(&mut self, conversation: Option<String>) {
        self.conversation_id = conversation;
        let begun = |turn: &&mut Turn| matches!(turn.stage, Stage::Running | Stage::Finished);
        self.turns.iter_mut().filter(begun).for_each(|turn| turn.conversation_replaced = true);
    }

    /// Records the conversation that a turn begins with. `session.resume` may have replaced it in the meantime.
    pub(crate) fn begin_turn(&mut self, turn: u64, conversation: Option<&str>) {
        let is_left = self.conversation_id.as_deref() != conversation;
        if let Some(turn) = self.turn_mut(turn) {
            turn.conversation_replaced = is_left;
        }
    }

    /// Sets the conversation id that a turn reported, unless `session.resume` replaced it.
    pub(crate) fn set_conversation(&mut self, turn: u64, conversation: Option<String>) {
        if self.turn(turn).is_some_and(|turn| !turn.conversation_replaced) {
            self.conversation_id = conversation;
        }
    }

    /// Whether a turn runs or is queued.
    pub(crate) fn is_busy(&self) -> bool {
        self.turns.iter().rev().any(|turn| turn.stage != Stage::Finished)
    }

    /// Whether no task reads or writes the session's files.
    pub(crate) fn is_quiescent(&self) -> bool {
        self.streams.is_empty() && !self.has_runner && !self.is_busy()
    }

    pub(crate) fn status(&self) -> &'static str {
        if self.is_busy() { "busy" } else { "idle" }
    }

    fn next_ready(&mut self) -> Option<Turn> {
        let next_seq = self.next_seq;
        let next = self.turns.iter_mut().find(|turn| turn.stage != Stage::Finished)?;
        if !matches!(next.stage, Stage::Queued | Stage::Running) {
            return None;
        }
        if next.stage == Stage::Queued {
            next.stage = Stage::Running;
            next.first_seq = next_seq;
        }
        Some(next.clone())
    }
}

impl Turn {
    fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Persisting | Stage::Queued) && !self.is_cancelled
    }

    /// The number of events that no client has received.
    pub(crate) fn unread(&mut self, dir: &std::path::Path) -> u64 {
        let delivered = *self.delivered.get_or_insert_with(|| delivered_count::load(dir, self.number));
        self.events.saturating_sub(delivered)
    }
}
