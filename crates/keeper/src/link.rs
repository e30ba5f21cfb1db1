//! The link to the worker: what it asks, and what it is told.

use crate::LINK_VERSION;
use crate::keeper::{Keeper, LINK};
use crate::log::log;
use crate::message::{Event, MESSAGE_BYTES, NOT_ADOPTED, Request, Standing, What};
use crate::order::Order;
use crate::table::{Entry, Untold};
use crate::worker::Worker;
use outpost_sys::epoll::Interest;
use outpost_sys::{Errno, Result, message};
use std::os::fd::OwnedFd;

/// Requests handled before others get their turn.
const REQUESTS_AT_ONCE: usize = 64;

/// Events other than entries that may wait for the worker.
const EVENTS_MAX: usize = 16;

/// So many refused requests of a worker are logged. Others are only counted: one gone mad must not fill the disk.
pub(crate) const COMPLAINTS_MAX: u64 = 8;

impl Keeper {
    pub(crate) fn handle_requests(&mut self) {
        if let Some(worker) = &mut self.worker
            && worker.choked
        {
            worker.choked = self.epoll.modify(&worker.link, LINK, Interest::Read).is_err();
        }
        for _ in 0..REQUESTS_AT_ONCE {
            if !self.handle_request() {
                break;
            }
        }
    }

    /// Takes one request from the worker; false when there is none.
    pub(crate) fn handle_request(&mut self) -> bool {
        let Some(worker) = self.worker.as_ref().filter(|worker| !worker.unlinked) else { return false };
        let mut bytes = [0; MESSAGE_BYTES];
        let mut fds = Vec::new();
        let request = match message::receive(&worker.link, &mut bytes, &mut fds) {
            Ok(Some(len)) => bytes.get(..len).and_then(Request::decode),
            Err(Errno::MSGSIZE) => None,
            Err(Errno::AGAIN | Errno::NOMEM | Errno::NOBUFS) => return false,
            Ok(None) | Err(_) => {
                self.worker_unlinked();
                return false;
            }
        };
        match request {
            Some(request) => self.act(request, fds),
            None => self.complain(format_args!("the worker sent a message that is none; ignored")),
        }
        true
    }

    #[track_caller]
    pub(crate) fn complain(&mut self, line: std::fmt::Arguments<'_>) {
        let Some(worker) = &mut self.worker else { return log(line) };
        worker.complaints = worker.complaints.saturating_add(1);
        if worker.complaints <= COMPLAINTS_MAX {
            log(line);
        }
    }

    fn act(&mut self, request: Request, mut fds: Vec<OwnedFd>) {
        if let Request::Spawn { slot, .. } = request {
            // One that waits there was not told.
            self.dismiss(slot);
            self.note_start();
        }
        match request {
            Request::Hello { version } => self.greet(version),
            Request::Serving => {
                self.fallback = None;
                if let Some(worker) = &mut self.worker {
                    worker.served = true;
                }
                self.restarts.served();
                self.say_served();
            }
            Request::Spawn { slot, .. } | Request::Adopt { slot, .. } if !self.is_free(slot) => {}
            Request::Spawn { slot, cgroup, held, targets } => {
                let order = Order::new(cgroup, held, targets, fds);
                let entry = self.begin(order).unwrap_or_else(Entry::failed);
                self.insert(slot, entry);
            }
            Request::Recruit { slot, oom_score } => self.want_recruit(slot, oom_score, fds),
            Request::Muster => self.muster(),
            Request::Rest => self.rest(),
            Request::Enlist { slot, held } => self.enlist(slot, held, fds),
            Request::Adopt { slot, standing, held, .. }
                if fds.len() < held.len() + usize::from(!matches!(standing, Standing::Failed(_))) =>
            {
                self.complain(format_args!(
                    "no descriptors to take over slot {slot:x}; the worker tries again"
                ));
                self.insert(slot, Entry::failed(NOT_ADOPTED));
            }
            Request::Adopt { slot, pid, standing, held } => {
                self.insert(slot, Entry::adopted(pid, standing, held, fds));
                self.expect_exit(slot);
            }
            Request::Hold { slot, role } => self.hold(slot, role, fds.pop()),
            Request::Release { slot, role } => {
                self.unstore_one(slot, role);
                if let Some(entry) = self.table.get_mut(&slot) {
                    entry.release(role);
                }
            }
            Request::Signal { slot, signal, group } => self.signal(slot, signal, group),
            Request::Forget { slot } => self.forget(slot),
            Request::Replace(What::Worker) => self.start_candidate(fds.pop()),
            Request::Replace(What::Keeper) => self.replace_self(fds.pop()),
            Request::Notify(said) => self.notify(said),
            Request::Resend { slot } => {
                if let Some(entry) = self.table.get_mut(&slot) {
                    entry.untold = Untold::All;
                    self.news.insert(slot);
                }
            }
            Request::Say => self.say_text(fds.pop()),
            Request::Alive { every_ms } => self.worker_beats(every_ms),
            Request::Stop => self.stop(),
        }
    }

    /// A worker of another version is not given the table.
    pub(crate) fn greet(&mut self, version: u32) {
        if version != LINK_VERSION {
            let line = format_args!("the worker speaks version {version}, not {LINK_VERSION}; ignored");
            return self.complain(line);
        }
        if let Some(worker) = &mut self.worker {
            worker.listens = true;
        }
        for entry in self.table.values_mut() {
            entry.untold = Untold::All;
        }
        self.news = self.table.keys().copied().collect();
        self.table_end = true;
    }

    pub(crate) fn tell(&mut self, event: Event) {
        if self.events.len() < EVENTS_MAX {
            self.events.push_back(event);
        }
    }

    pub(crate) fn has_news(&self) -> bool {
        !self.news.is_empty() || self.table_end || !self.events.is_empty()
    }

    /// Sends what is untold until all is, or the worker's queue is full.
    pub(crate) fn tell_news(&mut self) {
        self.stuck = false;
        let listens = |worker: &Worker| worker.listens && !worker.unlinked && !worker.choked;
        if !self.has_news() || !self.worker.as_ref().is_some_and(listens) {
            return;
        }
        let told = self.tell_all();
        // Without memory, or with too many descriptors under way, nothing says when to go on. Nor does a link that
        // cannot be watched. The worker's death is told by its pidfd.
        self.stuck = told.is_err();
        if let (Err(Errno::AGAIN), Some(worker)) = (told, &mut self.worker) {
            worker.choked = self.epoll.modify(&worker.link, LINK, Interest::ReadWrite).is_ok();
            self.stuck = !worker.choked;
        }
    }

    fn tell_all(&mut self) -> Result<()> {
        let Some(Worker { link, .. }) = &self.worker else { return Ok(()) };
        while let Some(slot) = self.news.first().copied() {
            // It may have been forgotten meanwhile.
            if let Some(entry) = self.table.get_mut(&slot) {
                let (event, fds) = entry.news(slot);
                message::send(link, &event.encode(), &fds)?;
                entry.told_all();
            }
            self.news.remove(&slot);
        }
        if self.table_end {
            message::send(link, &Event::TableEnd.encode(), &[])?;
            self.table_end = false;
        }
        while let Some(event) = self.events.front() {
            message::send(link, &event.encode(), &[])?;
            self.events.pop_front();
        }
        Ok(())
    }
}
