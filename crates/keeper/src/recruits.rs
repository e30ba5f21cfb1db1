//! Recruits: children that are forked before they are needed and wait to be told what to become. The worker tells them
//! itself, so that who starts a process waits neither for a fork nor for us.
//!
//! It says so to us after that. Until then we know a recruit as one that was forked ahead, whatever it has become, and end it
//! with the worker. One that nobody can tell any more ends by itself, without having done anything.

use crate::keeper::{Keeper, REPORT};
use crate::message::{MESSAGE_BYTES, ORDER_SPEC_BYTES_MAX, Request, Roles, Standing, Targets};
use crate::order::Order;
use crate::spec::Spec;
use crate::table::{Entry, KEPT, SLOT_MIN, SLOTS_MAX, Untold};
use outpost_sys::signal::Signal;
use outpost_sys::spawn::{self, Child, Failure, Ordered, Started, Step};
use outpost_sys::{Errno, memory, message};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// So many wait between one start and the next, and so many when there was none for a while.
const WAITING_MAX: usize = 3;
const WAITING_AT_REST: usize = 1;

/// The most that may be asked for ahead.
const WANTED_MAX: usize = 64;

/// A fork takes its time from whoever is started or waits to hear of that. So they are forked when nothing was started for
/// so long, or when the worker says that now is the time.
const CALM: Duration = Duration::from_millis(3);

/// Who is wanted, and who waits.
#[derive(Default)]
pub(crate) struct Recruits {
    wanted: VecDeque<Wanted>,
    /// Slots of those that wait, each with our copy of the socket for its order. A keeper that was replaced has no copies.
    waiting: BTreeMap<u64, Option<OwnedFd>>,
    /// When one was told what to become, or another was asked for.
    last_use: Option<Instant>,
    /// When it may have been calm for long enough, while one is missing.
    fork_by: Option<Instant>,
    /// Nothing has been started for a while.
    at_rest: bool,
    /// Whether we can have any. Looked up once: we start no threads.
    possible: Option<bool>,
}

struct Wanted {
    slot: u64,
    orders: OwnedFd,
    report: OwnedFd,
    cgroup: Option<OwnedFd>,
    oom_score: Option<i32>,
}

impl Recruits {
    pub(crate) fn next(&self) -> Option<Instant> {
        self.fork_by
    }
}

impl Keeper {
    pub(crate) fn want_recruit(&mut self, slot: u64, oom_score: Option<i32>, fds: Vec<OwnedFd>) {
        let mut fds = fds.into_iter();
        let (Some(orders), Some(report)) = (fds.next(), fds.next()) else { return };
        // The worker wants another one in this place, so it orders nothing from the one before.
        self.dismiss(slot);
        let known = slot < SLOT_MIN || slot & (REPORT | KEPT) != 0 || self.table.contains_key(&slot);
        if known || self.is_embedded() {
            return;
        }
        self.recruits.wanted.retain(|wanted| wanted.slot != slot);
        if self.recruits.wanted.len() < WANTED_MAX {
            self.recruits.wanted.push_back(Wanted { slot, orders, report, cgroup: fds.next(), oom_score });
            self.recruit_later();
        }
    }

    fn recruit_later(&mut self) {
        let now = Instant::now();
        self.recruits.last_use = Some(now);
        self.recruits.fork_by.get_or_insert(now + CALM);
    }

    /// Forks those that are missing, once it has been calm.
    pub(crate) fn recruit_due(&mut self, now: Instant) {
        if self.recruits.fork_by.is_some_and(|by| by <= now) {
            let calm = self.recruits.last_use.map(|last| last + CALM);
            self.recruits.fork_by = calm.filter(|calm| *calm > now);
            if self.recruits.fork_by.is_none() {
                self.fork_recruits(if self.recruits.at_rest { WAITING_AT_REST } else { WAITING_MAX });
            }
        }
    }

    /// Nothing has been started for a while: what that takes is given back, but for what makes the next start a fast one.
    pub(crate) fn rest(&mut self) {
        self.recruits.at_rest = true;
        let surplus: Vec<u64> = self.recruits.waiting.keys().copied().skip(WAITING_AT_REST).collect();
        surplus.into_iter().for_each(|slot| self.close_orders(slot));
        memory::forget_program();
    }

    /// Ends a child that waits, unless the worker has sent its order already: the socket delivers what is queued and takes
    /// nothing more. The child stays in the table until it has ended or the worker has enlisted it.
    fn close_orders(&mut self, slot: u64) {
        match self.recruits.waiting.remove(&slot).flatten() {
            Some(orders) if message::shut_receiving(&orders).is_ok() => {}
            _ => self.dismiss(slot),
        }
    }

    /// Something is started again.
    pub(crate) fn note_start(&mut self) {
        self.recruits.at_rest = false;
    }

    /// The worker has time for one.
    pub(crate) fn muster(&mut self) {
        if !self.recruits.at_rest {
            self.fork_recruits(WAITING_MAX.min(self.recruits.waiting.len() + 1));
        }
    }

    fn fork_recruits(&mut self, enough: usize) {
        while self.recruits.waiting.len() < enough && self.table.len() < SLOTS_MAX {
            let Some(wanted) = self.recruits.wanted.pop_front() else { break };
            self.fork_recruit(wanted);
        }
    }

    /// Only an answer is kept. One that could not be had may come with the next recruit.
    fn may_fork(&mut self) -> bool {
        if self.recruits.possible.is_none() {
            self.recruits.possible = spawn::has_one_thread().ok();
        }
        self.recruits.possible == Some(true)
    }

    fn fork_recruit(&mut self, wanted: Wanted) {
        if !self.may_fork() || !self.has_descriptors_to_spare() {
            return;
        }
        let Wanted { slot, orders, report, cgroup, oom_score } = wanted;
        let (cgroup, bytes_max) = (cgroup.as_ref().map(AsFd::as_fd), MESSAGE_BYTES + ORDER_SPEC_BYTES_MAX);
        match spawn::recruit(orders.as_fd(), report.as_fd(), cgroup, oom_score, bytes_max, rehearse, obey) {
            Ok(Started { pid, pidfd }) => {
                let entry = Entry::new(pid, Standing::Waiting, Some(pidfd), Vec::new());
                self.recruits.waiting.insert(slot, Some(orders));
                self.insert(slot, Entry { untold: Untold::Start, ahead: true, ..entry });
            }
            // The worker has just removed the place, and has us forget it next.
            Err(Failure { errno: Errno::NOENT, .. }) if cgroup.is_some() => {}
            Err(Failure { step, errno, .. }) => {
                self.complain(format_args!("no child could be forked ahead ({step:?}: {errno})"));
            }
        }
    }

    /// The worker has sent the child that waits under this slot its order.
    pub(crate) fn enlist(&mut self, slot: u64, held: Roles, fds: Vec<OwnedFd>) {
        self.note_start();
        let complete = fds.len() == held.len();
        let Some(entry) = self.table.get_mut(&slot).filter(|entry| entry.ahead) else {
            if self.is_free(slot) {
                self.insert(slot, Entry::failed(Failure::at(Step::Gate, Errno::CHILD)));
            }
            return;
        };
        entry.enlist(held.iter().zip(fds).collect());
        if !entry.lives() {
            self.news.insert(slot);
        }
        self.recruits.waiting.remove(&slot);
        self.recruit_later();
        self.store_later(slot);
        if !complete {
            // It must not run without them. Its end is reported as that of any other child.
            self.complain(format_args!("descriptors of slot {slot:x} are missing; killing its child"));
            self.signal(slot, Signal::KILL, true);
        }
    }

    /// Ends the child that waits under this slot. The worker sends it no order any more, or has ended.
    pub(crate) fn dismiss(&mut self, slot: u64) {
        self.recruits.wanted.retain(|wanted| wanted.slot != slot);
        self.recruits.waiting.remove(&slot);
        if self.table.get(&slot).is_some_and(|entry| entry.ahead) {
            // A worker that ended before it enlisted the child may have sent the order.
            self.signal(slot, Signal::KILL, true);
            self.news.remove(&slot);
            let entry = self.table.remove(&slot);
            self.discarded.extend(entry.and_then(|entry| entry.unwatch(&self.epoll)));
            self.recruit_later();
        }
    }

    /// There is nobody any more who could tell them anything.
    pub(crate) fn dismiss_all(&mut self) {
        self.recruits.wanted.clear();
        let ahead = self.table.iter().filter(|(_, entry)| entry.ahead).map(|(slot, _)| *slot);
        for slot in ahead.collect::<Vec<_>>() {
            self.dismiss(slot);
        }
    }

    /// Something has happened to one who was forked ahead. What the worker has said comes first; what it has not said yet
    /// is waited for. One that was killed is no use, and the worker sees that itself.
    pub(crate) fn look_at_one_ahead(&mut self, slot: u64) {
        while self.handle_request() {}
        let Some(entry) = self.table.get_mut(&slot) else { return };
        if !entry.ahead {
            return self.look_at(slot);
        }
        // A child of this keeper, which reaps it.
        entry.look(&self.epoll, true);
        if self.recruits.waiting.remove(&slot).is_some() {
            self.recruit_later();
        }
    }

    /// Goes on with those of the keeper before us.
    pub(crate) fn inherit_recruits(&mut self) {
        let ahead = self.table.iter().filter(|(_, entry)| entry.ahead && entry.standing == Standing::Waiting);
        self.recruits.waiting = ahead.map(|(slot, _)| (*slot, None)).collect();
    }
}

/// The recruit's side.
fn obey(Ordered { bytes, fds }: Ordered) -> Failure {
    let enlisted = Order::of_recruit(bytes, fds).and_then(|order| {
        // Its OOM score it has already.
        let enlist = |child: &Child<'_>| spawn::enlist(&Child { oom_score: None, ..*child });
        order.with_child(None, enlist)
    });
    enlisted.unwrap_or_else(|errno| Failure::at(Step::Prepare, errno))
}

/// Goes through an order as far as that can be done without any: it lacks the descriptors that every child has. Its
/// environment is ours, so that it takes as much memory as most do.
fn rehearse() {
    let environment = spawn::own_environment();
    let spec: Spec<&CStr> = Spec {
        program: c"",
        arguments: vec![c""],
        environment: environment.iter().map(CString::as_c_str).collect(),
        directory: None,
        standing: spawn::Standing::Session,
        limits: Vec::new(),
        umask: None,
        oom_score: None,
        confinement: None,
        credentials: None,
    };
    let request = Request::Spawn { slot: 0, cgroup: false, held: Roles::EMPTY, targets: Targets::EMPTY };
    let bytes = [request.encode().as_slice(), &spec.encode()].concat();
    let _lacks_descriptors = obey(Ordered { bytes, fds: Vec::new() });
}
