//! The reactor's timers: what is due when, by one timerfd.

use outpost_journal::Stream;
use outpost_sys::Result;
use outpost_sys::epoll::{Epoll, Interest, Timer};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Work at a set time. Numbers are slots.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Due {
    Pump(u64, Stream),
    DeliverStdin(u64),
    Drain(u64),
    /// Publish the state of a process.
    Publish(u64),
    /// Clean up after ended processes.
    Cleanup,
    /// Write a description or a start record again.
    Record(u64),
    /// Adopt a process again.
    Adopt(u64),
    /// Hand children to the keeper again.
    HandOver,
    /// Have the keeper send processes again that did not fit.
    Missing,
    /// Have the keeper send a started process again.
    Resend(u64),
    ShrinkPipes,
    StartKeeper,
    Retention,
}

pub(crate) struct Timers {
    timer: Timer,
    /// The number makes keys unique and keeps the order.
    due: BTreeMap<(Instant, u64), Due>,
    count: u64,
    /// The time that the timerfd is set to.
    armed: Option<Instant>,
}

impl Timers {
    pub(crate) fn new(epoll: &Epoll, token: u64) -> Result<Timers> {
        let timer = Timer::new()?;
        epoll.add(&timer, token, Interest::Read)?;
        Ok(Timers { timer, due: BTreeMap::new(), count: 0, armed: None })
    }

    pub(crate) fn schedule(&mut self, after: Duration, due: Due) {
        self.count += 1;
        self.due.insert((Instant::now() + after, self.count), due);
    }

    /// Sets the timerfd to what is due next.
    pub(crate) fn arm(&mut self) {
        let next = self.due.first_key_value().map(|((at, _), _)| *at);
        if next != self.armed
            && let Some(at) = next
        {
            match self.timer.set(at.saturating_duration_since(Instant::now())) {
                Ok(()) => self.armed = next,
                Err(errno) => tracing::error!(%errno, "cannot set the timer"),
            }
        }
    }

    /// The timerfd has expired.
    pub(crate) fn clear(&mut self) {
        self.timer.clear();
        self.armed = None;
    }

    /// Takes what is due by `now`.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<Due> {
        self.due.first_entry().filter(|entry| entry.key().0 <= now).map(|entry| entry.remove())
    }
}
