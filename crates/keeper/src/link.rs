//! The link to the worker: its requests, and the events that the keeper sends.

use crate::LINK_VERSION;
use crate::keeper::{Keeper, LINK};
use crate::log::log;
use crate::message::{Component, MESSAGE_BYTES_MAX, NOT_ADOPTED, ProcessState, Request};
use crate::spawn_request::SpawnRequest;
use crate::table::{Entry, Pending};
use crate::worker::Worker;
use outpost_sys::epoll::Interest;
use outpost_sys::{Errno, message};
use std::os::fd::OwnedFd;

/// Requests handled in one turn of the loop.
const REQUESTS_AT_ONCE: usize = 64;

/// Maximum number of refused requests of one worker that are logged. The others are counted, so that a broken worker
/// does not fill the disk.
pub(crate) const REFUSALS_LOGGED_MAX: u64 = 8;

impl Keeper {
    pub(crate) fn handle_requests(&mut self) {
        if let Some(worker) = self.worker.current_mut()
            && worker.is_backpressured
        {
            worker.is_backpressured = self.epoll.modify(&worker.link, LINK, Interest::Read).is_err();
        }
        for _ in 0..REQUESTS_AT_ONCE {
            if !self.handle_request() {
                break;
            }
        }
    }

    /// Handles one request of the worker; false when there is none.
    pub(crate) fn handle_request(&mut self) -> bool {
        let Some(worker) = self.worker.current().filter(|worker| !worker.is_link_closed) else {
            return false;
        };
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let mut fds = Vec::new();
        let request = match message::receive(&worker.link, &mut bytes, &mut fds) {
            Ok(Some(len)) => bytes.get(..len).and_then(Request::decode),
            Err(Errno::MSGSIZE) => None,
            Err(Errno::AGAIN | Errno::NOMEM | Errno::NOBUFS) => return false,
            Ok(None) | Err(_) => {
                self.worker_closed_link();
                return false;
            }
        };
        match request {
            Some(request) => self.handle_one(request, fds),
            None => self.log_limited(format_args!("ignoring a malformed message of the worker")),
        }
        true
    }

    /// Logs a refused request of the worker, up to a limit per worker.
    #[track_caller]
    pub(crate) fn log_limited(&mut self, line: std::fmt::Arguments<'_>) {
        let Some(worker) = self.worker.current_mut() else { return log(line) };
        worker.refusals = worker.refusals.saturating_add(1);
        if worker.refusals <= REFUSALS_LOGGED_MAX {
            log(line);
        }
    }

    fn handle_one(&mut self, request: Request, mut fds: Vec<OwnedFd>) {
        match request {
            Request::Hello { version } => self.on_hello(version),
            Request::Serving => {
                self.worker.served();
                self.notify_serving();
            }
            Request::Spawn { slot, .. } | Request::Adopt { slot, .. } if !self.is_free(slot) => {}
            Request::Spawn { slot, options, held, targets } => {
                let request = SpawnRequest::new(options, held, targets, fds);
                let entry = self.start(request).unwrap_or_else(Entry::failed);
                self.insert(slot, entry);
            }
            Request::Adopt { slot, state, held, .. }
                if fds.len() < held.len() + usize::from(!matches!(state, ProcessState::Failed(_))) =>
            {
                self.log_limited(format_args!(
                    "too few descriptors to adopt slot {slot:x}; the worker retries"
                ));
                self.insert(slot, Entry::failed(NOT_ADOPTED));
            }
            Request::Adopt { slot, pid, state, held } => {
                self.insert(slot, Entry::adopted(pid, state, held, fds));
                self.expect_exit(slot);
            }
            Request::Hold { slot, role } => self.hold(slot, role, fds.pop()),
            Request::Release { slot, role } => {
                self.remove_role_from_fdstore(slot, role);
                if let Some(entry) = self.table.get_mut(&slot) {
                    entry.release(role);
                }
            }
            Request::Signal { slot, signal, group } => self.signal(slot, signal, group),
            Request::Forget { slot } => self.forget(slot),
            Request::Replace(Component::Worker) => self.start_candidate(fds.pop()),
            Request::Replace(Component::Keeper) => self.replace_self(fds.pop()),
            Request::Notify(readiness) => self.notify(readiness),
            Request::Resend { slot } => {
                if let Some(entry) = self.table.get_mut(&slot) {
                    entry.pending = Pending::All;
                    self.events.mark_dirty(slot);
                }
            }
            Request::ShowStatus => self.show_status(fds.pop()),
            Request::Heartbeat { interval_ms } => self.on_heartbeat(interval_ms),
            Request::Stop => self.stop(),
        }
    }

    /// Schedules the whole table. A worker of another version does not get it.
    pub(crate) fn on_hello(&mut self, version: u32) {
        if version != LINK_VERSION {
            let line = format_args!("ignoring a worker with link version {version}, not {LINK_VERSION}");
            return self.log_limited(line);
        }
        if let Some(worker) = self.worker.current_mut() {
            worker.is_subscribed = true;
        }
        for entry in self.table.values_mut() {
            entry.pending = Pending::All;
        }
        self.events.mark_table(&self.table);
    }

    /// Sends pending events until all are sent or the worker's queue is full.
    pub(crate) fn flush_events(&mut self) {
        self.retry_by_timer = false;
        let takes_events =
            |worker: &Worker| worker.is_subscribed && !worker.is_link_closed && !worker.is_backpressured;
        let Some(worker) = self.worker.current_mut().filter(|worker| takes_events(worker)) else { return };
        if self.events.is_empty() {
            return;
        }
        let sent = self.events.send(&worker.link, &mut self.table);
        // No event announces that memory is free again, that fewer descriptors are in flight, or that a link which
        // cannot be watched has room. The death of the worker is reported by its pidfd.
        self.retry_by_timer = sent.is_err();
        if sent == Err(Errno::AGAIN) {
            worker.is_backpressured = self.epoll.modify(&worker.link, LINK, Interest::ReadWrite).is_ok();
            self.retry_by_timer = !worker.is_backpressured;
        }
    }
}
