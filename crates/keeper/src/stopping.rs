//! Stopping on a signal: a worker ends the processes in order, whatever happens to workers meanwhile.

use crate::keeper::Keeper;
use crate::message::Event;
use crate::table::OWN_SLOT;
use crate::worker::Worker;
use outpost_sys::signal::Signal;
use std::time::{Duration, Instant};

/// A worker must take the request to stop within this time of the signal. Otherwise the children are killed.
const TAKE_PATIENCE: Duration = Duration::from_secs(30);

/// A worker that has the request and has not begun to stop after this time stays: a relay may keep its processes.
const DECIDE_PATIENCE: Duration = Duration::from_secs(5);

/// A stop that is under way.
#[derive(Clone, Copy)]
pub(crate) struct Stopping {
    /// When the children are killed if no worker takes the request.
    take_by: Instant,
    /// When a worker that has the request has decided to stay.
    decide_by: Option<Instant>,
    /// The worker has begun to stop.
    begun: bool,
}

impl Keeper {
    fn stopping(&mut self) -> &mut Stopping {
        let take_by = Instant::now() + TAKE_PATIENCE;
        self.stopping.get_or_insert(Stopping { take_by, decide_by: None, begun: false })
    }

    /// SIGTERM or SIGINT. The worker may have got the same signal and be dead already: then the next one is asked.
    pub(crate) fn shut_down(&mut self) {
        self.stopping();
        if self.worker.is_some() {
            return self.tell(Event::Shutdown);
        }
        self.start_worker_to_stop();
    }

    /// The worker has begun to stop. From here on another worker is only started to finish that.
    pub(crate) fn stop_begun(&mut self) {
        self.stopping().begun = true;
    }

    /// Another worker has taken its place.
    pub(crate) fn ask_to_stop(&mut self) {
        if let Some(stopping) = &mut self.stopping {
            stopping.decide_by = None;
            self.tell(Event::Shutdown);
        }
    }

    /// The worker has ended during a stop. False when there is none.
    pub(crate) fn worker_ended_in_stop(&mut self, worker: &Worker) -> bool {
        let Some(stopping) = self.stopping else { return false };
        match worker.listens && stopping.take_by > Instant::now() {
            true => self.start_worker_to_stop(),
            false => self.end_children(),
        }
        true
    }

    fn start_worker_to_stop(&mut self) {
        self.start_worker();
        if self.worker.is_none() {
            self.end_children();
        }
    }

    /// No worker can end them in order: kills all children rather than leaving them without an owner.
    fn end_children(&mut self) {
        let slots: Vec<u64> = self.table.keys().copied().filter(|slot| *slot != OWN_SLOT).collect();
        for slot in slots {
            self.signal(slot, Signal::KILL, true);
        }
        self.worker.iter().for_each(Worker::kill);
        self.end = Some(1);
    }

    pub(crate) fn next_stop(&self) -> Option<Instant> {
        let stopping = self.stopping.filter(|stopping| !stopping.begun)?;
        Some(stopping.decide_by.unwrap_or(stopping.take_by))
    }

    pub(crate) fn keep_stopping(&mut self, now: Instant) {
        let taken = self.events.is_empty() && self.worker.as_ref().is_some_and(|worker| worker.listens);
        let Some(stopping) = self.stopping.as_mut().filter(|stopping| !stopping.begun) else { return };
        if !taken {
            if stopping.take_by <= now {
                self.end_children();
            }
        } else if *stopping.decide_by.get_or_insert(now + DECIDE_PATIENCE) <= now {
            self.stopping = None;
        }
    }
}
