//! The time limits of a turn: its total time, silence, and the time between its result and the exit of its process.

use super::output::TurnEnd;
use crate::face::Face;
use std::time::Duration;
use tokio::time::Instant;

/// How long a CLI may run after its turn has ended.
pub(crate) const EXIT_GRACE: Duration = Duration::from_secs(3);

/// How long a provisional result waits for the exit of a silent CLI.
const PROVISIONAL_MAX: Duration = Duration::from_secs(5);

/// How long a provisional result waits for the exit of a CLI that continues to write.
const PROVISIONAL_TALKING_MAX: Duration = Duration::from_secs(60);

/// The time limits of one turn.
pub(crate) struct Deadlines {
    turn: Option<Instant>,
    silence: Option<Duration>,
    last_activity: Instant,
    /// When the turn ended, finally or provisionally.
    ended: Option<Instant>,
    /// When the CLI closed its standard output without having ended the turn.
    pub(crate) stdout_closed: Option<Instant>,
    /// The process was asked to exit after the end of the turn.
    pub(crate) exit_requested: bool,
}

/// The time limit that a turn has exceeded.
pub(crate) enum Expired {
    /// The process does not exit: the provisional result becomes final.
    Provisional,
    /// The turn has ended, but the process runs.
    Exit,
    /// Standard output is closed, but the process runs.
    StdoutClosed,
    /// The turn takes too long.
    Turn,
    /// The CLI has been silent for too long.
    Silence,
}

impl Deadlines {
    pub(crate) fn new(face: &Face) -> Deadlines {
        let now = Instant::now();
        let turn = face.settings().turn_timeout.map(|timeout| now + timeout);
        Deadlines {
            turn,
            silence: face.settings().silence_timeout,
            last_activity: now,
            ended: None,
            stdout_closed: None,
            exit_requested: false,
        }
    }

    /// Starts or clears the time since the end of the turn.
    pub(crate) fn observe(&mut self, end: &TurnEnd) {
        self.ended = match end {
            TurnEnd::Open => None,
            TurnEnd::Provisional(_) | TurnEnd::Final => Some(self.ended.unwrap_or_else(Instant::now)),
        };
    }

    pub(crate) fn is_stdout_closed(&self) -> bool {
        self.stdout_closed.is_some()
    }

    pub(crate) fn on_activity(&mut self) {
        self.last_activity = Instant::now();
    }

    /// The limit on silence does not apply while a permission question is pending.
    fn next(&self, end: &TurnEnd, has_no_question: bool) -> Option<Instant> {
        let ended = self.ended.unwrap_or(self.last_activity);
        match end {
            // Output after the end does not extend the time.
            TurnEnd::Final => (!self.exit_requested).then(|| ended + EXIT_GRACE),
            TurnEnd::Provisional(_) => {
                Some((self.last_activity + PROVISIONAL_MAX).min(ended + PROVISIONAL_TALKING_MAX))
            }
            TurnEnd::Open => {
                let silence =
                    self.silence.filter(|_| has_no_question).map(|limit| self.last_activity + limit);
                let exit = self.stdout_closed.map(|closed| closed + EXIT_GRACE);
                self.turn.into_iter().chain(silence).chain(exit).min()
            }
        }
    }

    pub(crate) async fn wait(&self, end: &TurnEnd, has_no_question: bool) {
        match self.next(end, has_no_question) {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    pub(crate) fn expired(&self, end: &TurnEnd) -> Expired {
        let is_past = |at: Instant| at <= Instant::now();
        match end {
            TurnEnd::Final => Expired::Exit,
            TurnEnd::Provisional(_) => Expired::Provisional,
            TurnEnd::Open if self.stdout_closed.is_some_and(|closed| is_past(closed + EXIT_GRACE)) => {
                Expired::StdoutClosed
            }
            TurnEnd::Open if self.turn.is_some_and(is_past) => Expired::Turn,
            TurnEnd::Open => Expired::Silence,
        }
    }
}
