//! What a turn may take: as a whole, in silence, and after its CLI has said that it is done.

use crate::face::Face;
use crate::output::End;
use std::time::Duration;
use tokio::time::Instant;

/// How long a CLI may live on after it has said how the turn ended.
pub(crate) const EXIT_GRACE: Duration = Duration::from_secs(3);

/// How long the word of a CLI that it is done is kept back for its exit to confirm it.
const HELD_MAX: Duration = Duration::from_secs(5);

/// The same for one that goes on talking.
const HELD_TALKING_MAX: Duration = Duration::from_secs(60);

/// What a turn may take.
pub(crate) struct Limits {
    turn: Option<Instant>,
    silence: Option<Duration>,
    heard: Instant,
    /// Since when its CLI has said how it ends, or closed its output without having ended.
    done: Option<Instant>,
    pub(crate) muted: Option<Instant>,
    /// Its process was asked to end after the turn had.
    pub(crate) gave_up: bool,
}

pub(crate) enum Expired {
    /// Its word that it is done is taken for it.
    Held,
    /// It is done and lives on.
    Exit,
    /// It has closed its output and lives on.
    Mute,
    /// The turn has taken too long, or its CLI has said nothing for too long.
    Time,
    Silence,
}

impl Limits {
    pub(crate) fn new(face: &Face) -> Limits {
        let now = Instant::now();
        let turn = face.settings().turn_patience.map(|patience| now + patience);
        Limits {
            turn,
            silence: face.settings().silence_patience,
            heard: now,
            done: None,
            muted: None,
            gave_up: false,
        }
    }

    pub(crate) fn note(&mut self, end: &End) {
        self.done = match end {
            End::Open => None,
            End::Held(_) | End::Told => Some(self.done.unwrap_or_else(Instant::now)),
        };
    }

    pub(crate) fn is_mute(&self) -> bool {
        self.muted.is_some()
    }

    pub(crate) fn heard(&mut self) {
        self.heard = Instant::now();
    }

    /// Who waits for a human is silent for good reason.
    fn next(&self, end: &End, asks_nothing: bool) -> Option<Instant> {
        let done = self.done.unwrap_or(self.heard);
        match end {
            // Whatever it goes on saying.
            End::Told => (!self.gave_up).then(|| done + EXIT_GRACE),
            End::Held(_) => Some((self.heard + HELD_MAX).min(done + HELD_TALKING_MAX)),
            End::Open => {
                let silence = self.silence.filter(|_| asks_nothing).map(|silence| self.heard + silence);
                let mute = self.muted.map(|muted| muted + EXIT_GRACE);
                self.turn.into_iter().chain(silence).chain(mute).min()
            }
        }
    }

    pub(crate) async fn wait(&self, end: &End, asks_nothing: bool) {
        match self.next(end, asks_nothing) {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    pub(crate) fn expired(&self, end: &End) -> Expired {
        match end {
            End::Told => Expired::Exit,
            End::Held(_) => Expired::Held,
            End::Open if self.muted.is_some_and(|muted| muted + EXIT_GRACE <= Instant::now()) => {
                Expired::Mute
            }
            End::Open if self.turn.is_some_and(|at| at <= Instant::now()) => Expired::Time,
            End::Open => Expired::Silence,
        }
    }
}
