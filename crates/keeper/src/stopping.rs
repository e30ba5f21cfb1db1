//! Stopping on a signal: the worker ends the processes in order. If it dies meanwhile, another one is started for that.

use crate::keeper::Keeper;
use crate::message::Event;
use crate::table::OWN_SLOT;
use crate::worker::Worker;
use outpost_sys::signal::Signal;
use std::time::{Duration, Instant};

/// A worker must have received `Shutdown` within this time of the signal. Otherwise the children are killed.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(30);

/// A worker that has received `Shutdown` and has not begun to stop after this time stays: a relay may keep its
/// processes.
const DECIDE_TIMEOUT: Duration = Duration::from_secs(5);

/// A stop in progress.
#[derive(Clone, Copy)]
pub(crate) struct Stopping {
    /// When the children are killed if no worker has received `Shutdown`.
    receive_by: Instant,
    /// When a worker that has received `Shutdown` has decided to stay.
    decide_by: Option<Instant>,
    /// The worker has begun to stop.
    begun: bool,
}

impl Keeper {
    fn stopping(&mut self) -> &mut Stopping {
        let receive_by = Instant::now() + RECEIVE_TIMEOUT;
        self.stopping.get_or_insert(Stopping { receive_by, decide_by: None, begun: false })
    }

    /// SIGTERM or SIGINT. The same signal may have killed the worker. Then the next one gets `Shutdown`.
    pub(crate) fn shut_down(&mut self) {
        self.stopping();
        if self.worker.current().is_some() {
            return self.events.push(Event::Shutdown);
        }
        self.start_worker_to_stop();
    }

    /// The worker has begun to stop. From here on the keeper starts another worker only to finish that.
    pub(crate) fn stop_begun(&mut self) {
        self.stopping().begun = true;
    }

    /// Another worker runs: it gets `Shutdown` too.
    pub(crate) fn repeat_shutdown(&mut self) {
        if let Some(stopping) = &mut self.stopping {
            stopping.decide_by = None;
            self.events.push(Event::Shutdown);
        }
    }

    /// The worker has ended. False when no stop is in progress.
    pub(crate) fn worker_ended_in_stop(&mut self, worker: &Worker) -> bool {
        let Some(stopping) = self.stopping else { return false };
        match worker.is_subscribed && stopping.receive_by > Instant::now() {
            true => self.start_worker_to_stop(),
            false => self.kill_children_and_end(),
        }
        true
    }

    fn start_worker_to_stop(&mut self) {
        self.start_worker();
        if self.worker.current().is_none() {
            self.kill_children_and_end();
        }
    }

    /// Kills all children, since no worker can end them in order.
    fn kill_children_and_end(&mut self) {
        let slots: Vec<u64> = self.table.keys().copied().filter(|slot| *slot != OWN_SLOT).collect();
        for slot in slots {
            self.signal(slot, Signal::KILL, true);
        }
        self.worker.kill();
        self.end = Some(1);
    }

    pub(crate) fn next_stop(&self) -> Option<Instant> {
        let stopping = self.stopping.filter(|stopping| !stopping.begun)?;
        Some(stopping.decide_by.unwrap_or(stopping.receive_by))
    }

    pub(crate) fn handle_stopping(&mut self, now: Instant) {
        let received =
            !self.events.has_notices() && self.worker.current().is_some_and(|worker| worker.is_subscribed);
        let Some(stopping) = self.stopping.as_mut().filter(|stopping| !stopping.begun) else { return };
        if !received {
            if stopping.receive_by <= now {
                self.kill_children_and_end();
            }
        } else if *stopping.decide_by.get_or_insert(now + DECIDE_TIMEOUT) <= now {
            self.stopping = None;
        }
    }
}
