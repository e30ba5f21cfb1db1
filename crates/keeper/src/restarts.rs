//! The back-off between restarts of the worker, and when the keeper gives up.

use outpost_sys::pidfd::{Exit, ExitCause};
use outpost_sys::signal::Signal;
use std::time::{Duration, Instant};

/// The reaction to the end of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Start another after this pause.
    Start(Duration),
    /// Exit: there are no children, and a supervisor can start the daemon again.
    GiveUp,
}

/// Counts of workers that ended before they served.
#[derive(Default)]
pub(crate) struct Restarts {
    /// Failures in a row, and the time of the first.
    failures: u32,
    first_failure: Option<Instant>,
    /// Kills by other processes since a worker last served.
    kills: u32,
    /// Starts of a worker that failed, in a row.
    unstarted: u32,
    /// Whether any worker of this daemon has served.
    ever_served: bool,
}

/// This many failures are retried at once. Later ones are retried after a pause that doubles.
const QUICK_MAX: u32 = 4;
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// A daemon that has served and has no children ends after this many failures over at least this time.
const FINAL_FAILURES: u32 = 10;
const FINAL_AFTER: Duration = Duration::from_secs(120);

/// From this many kills on there is a pause: the cause (mostly a lack of memory) is likely to kill again.
const KILLS_MAX: u32 = 10;
pub(crate) const KILLED_PAUSE: Duration = Duration::from_millis(100);

/// The first pause after a worker could not be started.
const UNSTARTED_PAUSE: Duration = Duration::from_millis(200);

impl Restarts {
    pub(crate) fn served(&mut self) {
        *self = Restarts { ever_served: true, ..Restarts::default() };
    }

    /// Forgets failures, for an attempt on request or with another binary.
    pub(crate) fn forget(&mut self) {
        *self = Restarts { ever_served: self.ever_served, ..Restarts::default() };
    }

    /// Counts the end of a worker. A keeper with children never gives up.
    pub(crate) fn next(&mut self, served: bool, exit: Exit, has_children: bool, now: Instant) -> Next {
        match killed_from_outside(exit) {
            _ if served => self.served(),
            true => (self.failures, self.kills) = (0, self.kills.saturating_add(1)),
            false => {
                self.failures = self.failures.saturating_add(1);
                self.first_failure = self.first_failure.filter(|_| self.failures > 1).or(Some(now));
            }
        }
        if !has_children && self.is_final(now) {
            return Next::GiveUp;
        }
        let pause = if self.kills < KILLS_MAX { Duration::ZERO } else { KILLED_PAUSE };
        Next::Start(match self.failures.checked_sub(QUICK_MAX + 1) {
            Some(doublings) => doubled(PAUSE_MIN, doublings),
            None => pause,
        })
    }

    fn is_final(&self, now: Instant) -> bool {
        let since = self.first_failure.map_or(Duration::ZERO, |first| now.saturating_duration_since(first));
        match self.ever_served {
            true => self.failures >= FINAL_FAILURES && since >= FINAL_AFTER,
            // The caller of `serve` waits for the daemon to start.
            false => self.failures > QUICK_MAX,
        }
    }

    /// Counts a failed start of a worker. Returns the pause before the next attempt.
    pub(crate) fn next_start(&mut self) -> Duration {
        let pause = doubled(UNSTARTED_PAUSE, self.unstarted);
        self.unstarted = self.unstarted.saturating_add(1);
        pause
    }

    pub(crate) fn started(&mut self) {
        self.unstarted = 0;
    }
}

fn doubled(first: Duration, times: u32) -> Duration {
    first.saturating_mul(1u32.checked_shl(times).unwrap_or(u32::MAX)).min(PAUSE_MAX)
}

/// Whether another process killed the worker. Other signals are faults of the worker.
fn killed_from_outside(exit: Exit) -> bool {
    let outside = [Signal::KILL, Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT].map(Signal::number);
    match exit.cause {
        ExitCause::Signal(signal) => outside.contains(&signal),
        ExitCause::Code(_) => false,
        ExitCause::Unknown => true,
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::panic)]
mod tests {
    use super::*;

    const AT_ONCE: Next = Next::Start(Duration::ZERO);

    fn ended(how: ExitCause) -> Exit {
        Exit { cause: how, ..Exit::UNKNOWN }
    }

    #[test]
    fn a_daemon_that_never_served_ends_after_five_failures_in_a_row() {
        let (mut restarts, now) = (Restarts::default(), Instant::now());
        for _ in 0..4 {
            assert_eq!(restarts.next(false, ended(ExitCause::Code(1)), false, now), AT_ONCE);
        }
        assert_eq!(restarts.next(false, ended(ExitCause::Signal(6)), false, now), Next::GiveUp);
    }

    #[test]
    fn a_keeper_with_children_never_gives_up_and_slows_down() {
        let mut restarts = Restarts::default();
        let mut now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..200 {
            let next = restarts.next(false, ended(ExitCause::Code(1)), true, now);
            let Next::Start(pause) = next else { panic!("{next:?}") };
            now += pause;
            pauses.push(pause.as_secs());
        }
        assert_eq!(pauses[..12], [0, 0, 0, 0, 1, 2, 4, 8, 16, 30, 30, 30]);
        assert!(pauses[12..].iter().all(|pause| *pause == 30));
    }

    #[test]
    fn a_daemon_that_has_served_ends_only_after_failures_spread_over_time() {
        let (mut restarts, begun) = (Restarts::default(), Instant::now());
        restarts.served();
        for failures in 1..100 {
            let next = restarts.next(false, ended(ExitCause::Code(1)), false, begun);
            assert_ne!(next, Next::GiveUp, "{failures} failures within no time");
        }
        let later = begun + FINAL_AFTER;
        assert_eq!(restarts.next(false, ended(ExitCause::Code(1)), false, later), Next::GiveUp);
        restarts.forget();
        assert_eq!(
            restarts.next(false, ended(ExitCause::Code(1)), false, later),
            AT_ONCE,
            "an attempt on request"
        );
        for _ in 2..10 {
            assert_ne!(
                restarts.next(false, ended(ExitCause::Code(1)), false, later + FINAL_AFTER),
                Next::GiveUp
            );
        }
    }

    #[test]
    fn a_worker_killed_from_outside_or_that_served_is_always_restarted() {
        let (mut restarts, now) = (Restarts::default(), Instant::now());
        for round in 0..100 {
            assert_eq!(restarts.next(false, ended(ExitCause::Signal(9)), false, now), AT_ONCE, "{round}");
            assert_eq!(restarts.next(true, ended(ExitCause::Signal(11)), false, now), AT_ONCE, "{round}");
            assert_eq!(restarts.next(false, ended(ExitCause::Code(1)), false, now), AT_ONCE, "{round}");
        }
    }

    #[test]
    fn workers_killed_before_they_serve_are_restarted_with_a_pause_from_the_tenth_on() {
        let (mut restarts, now) = (Restarts::default(), Instant::now());
        for round in 1..10 {
            assert_eq!(restarts.next(false, ended(ExitCause::Signal(9)), false, now), AT_ONCE, "{round}");
        }
        for round in 10..100 {
            let slowly = Next::Start(KILLED_PAUSE);
            assert_eq!(restarts.next(false, ended(ExitCause::Signal(9)), false, now), slowly, "{round}");
            // A failure in between does not reset the pause.
            assert_eq!(restarts.next(false, ended(ExitCause::Code(1)), false, now), slowly, "{round}");
        }
        assert_eq!(restarts.next(true, ended(ExitCause::Signal(9)), false, now), AT_ONCE);
        assert_eq!(restarts.next(false, ended(ExitCause::Signal(9)), false, now), AT_ONCE);
    }

    #[test]
    fn a_worker_that_cannot_be_started_is_tried_for_ever_and_more_and_more_slowly() {
        let mut restarts = Restarts::default();
        let pauses: Vec<u128> = (0..40).map(|_| restarts.next_start().as_millis()).collect();
        assert_eq!(pauses[..9], [200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000]);
        assert!(pauses[9..].iter().all(|pause| *pause == 30_000));
        restarts.started();
        assert_eq!(restarts.next_start().as_millis(), 200);
    }
}
