//! The keeper's table: who runs, and which descriptors are held for whom.

use crate::log::log;
use crate::message::{Event, Roles, Standing};
use crate::state::StoredEntry;
use outpost_sys::epoll::{Epoll, Interest, is_readable};
use outpost_sys::pidfd::{Exit, Pidfd};
use outpost_sys::spawn::{Failure, Progress, Report};
use outpost_sys::{Errno, Result, file, pidfd, pipe};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The slot of the daemon's own descriptors: listening sockets and the lock.
pub const OWN_SLOT: u64 = 0;

/// Under this role of its own slot a keeper that ends with its worker has the directory of the cgroups that go then.
pub const CGROUPS_ROLE: u8 = 254;

/// Under this role of its own slot a keeper has the socket of whoever supervises it.
pub const NOTIFY_ROLE: u8 = 253;

/// Under this role of its own slot a keeper has the socket of a supervisor that keeps descriptors for it.
pub const STORE_ROLE: u8 = 252;

/// Under this role of its own slot a keeper has the socket of exit events. Workers are not given it.
pub const EXITS_ROLE: u8 = 251;

/// Slots below this are not for children.
pub const SLOT_MIN: u64 = 16;

/// Slots with this bit have no child: they hold descriptors for the worker until it has them forgotten.
pub const KEPT: u64 = 1 << 62;

/// The most descriptors one slot may hold.
pub const HELD_MAX: usize = 16;

/// The most slots there may be.
pub(crate) const SLOTS_MAX: usize = 16 * 1024;

/// Descriptors by role.
type Held = Vec<(u8, OwnedFd)>;

pub(crate) struct Entry {
    pub(crate) pid: i32,
    pub(crate) standing: Standing,
    /// None when it never ran, and for the daemon's own slot.
    pub(crate) pidfd: Option<Pidfd>,
    pub(crate) held: Held,
    /// While it is starting.
    pub(crate) report: Option<Report>,
    /// Until the worker has been told of it, what keeps it from executing its program.
    pub(crate) gate: Option<OwnedFd>,
    /// It was forked ahead, and the worker has not said yet that it was told what to become. It may have become that.
    pub(crate) ahead: bool,
    /// The supervisor has its descriptors too.
    pub(crate) stored: bool,
    /// How it ended, by an exit event of the kernel. Only where an earlier keeper is its parent.
    pub(crate) reported_exit: Option<Exit>,
    pub(crate) untold: Untold,
}

/// What looking at a child has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Nothing,
    Started,
    Ended,
    /// It has ended, and how is not known yet.
    EndedSomehow,
}

/// What the worker has not been told of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Untold {
    Nothing,
    /// How it stands.
    Standing,
    /// How it stands, and its pidfd.
    Start,
    /// Everything, since the worker is new.
    All,
}

impl Entry {
    pub(crate) fn new(pid: i32, standing: Standing, pidfd: Option<Pidfd>, held: Held) -> Entry {
        Entry {
            pid,
            standing,
            pidfd,
            held,
            report: None,
            gate: None,
            ahead: false,
            stored: false,
            reported_exit: None,
            untold: Untold::Nothing,
        }
    }

    pub(crate) fn own() -> Entry {
        Entry::new(0, Standing::Running, None, Vec::new())
    }

    /// Descriptors without a child.
    pub(crate) fn kept() -> Entry {
        Entry::new(0, Standing::Ended(Exit::UNKNOWN), None, Vec::new())
    }

    /// A child that could not even be begun.
    pub(crate) fn failed(failure: Failure) -> Entry {
        Entry { standing: Standing::Failed(failure), untold: Untold::Standing, ..Entry::own() }
    }

    /// From a worker whose keeper died.
    pub(crate) fn adopted(pid: i32, standing: Standing, held: Roles, fds: Vec<OwnedFd>) -> Entry {
        let mut fds = fds.into_iter();
        let pidfd = if matches!(standing, Standing::Failed(_)) { None } else { fds.next() };
        let pidfd = pidfd.map(|fd| Pidfd::received(pid, fd));
        Entry::new(pid, standing, pidfd, held.iter().zip(fds).collect())
    }

    /// From the keeper before us.
    pub(crate) fn inherited(stored: &StoredEntry) -> Result<Entry> {
        let fd = |number| (number >= 0).then(|| file::inherited(number)).transpose();
        let held = stored.held.iter().map(|(role, number)| Ok((*role, file::inherited(*number)?)));
        let pidfd = fd(stored.pidfd)?.map(|fd| Pidfd::received(stored.pid, fd));
        let entry = Entry::new(stored.pid, stored.standing, pidfd, held.collect::<Result<_>>()?);
        let (report, ahead) =
            (fd(stored.report)?.map(Report::inherited), stored.standing == Standing::Waiting);
        // Whether they are stored nobody says; that they are not any more can be said of any.
        Ok(Entry { report, ahead, stored: true, ..entry })
    }

    /// For the keeper after us.
    pub(crate) fn stored(&self, slot: u64) -> StoredEntry {
        let pidfd = self.pidfd.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let report = self.report.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let held = self.held.iter().map(|(role, fd)| (*role, fd.as_raw_fd())).collect();
        let standing = if self.ahead { Standing::Waiting } else { self.standing };
        StoredEntry { slot, pid: self.pid, standing, pidfd, held, report }
    }

    /// Every descriptor.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let held = self.held.iter().map(|(_, fd)| fd.as_fd());
        self.pidfd.iter().map(AsFd::as_fd).chain(held).chain(self.report.as_ref().map(AsFd::as_fd))
    }

    /// What is untold, and the descriptors that go with it.
    pub(crate) fn news(&self, slot: u64) -> (Event, Vec<BorrowedFd<'_>>) {
        let pidfd = self.pidfd.as_ref().filter(|_| self.untold >= Untold::Start);
        let is_told = |role: u8| self.untold == Untold::All && (slot, role) != (OWN_SLOT, EXITS_ROLE);
        let held = self.held.iter().filter(|(role, _)| is_told(*role));
        let roles = Roles::new(held.clone().map(|(role, _)| *role)).unwrap_or(Roles::EMPTY);
        let (pid, standing) = (self.pid, self.told());
        let event = Event::Entry { slot, pid, standing, pidfd: pidfd.is_some(), held: roles };
        (event, pidfd.into_iter().map(AsFd::as_fd).chain(held.map(|(_, fd)| fd.as_fd())).collect())
    }

    /// The worker knows all there is to know; a child may do what it was started for. Whatever happens to us from here
    /// on, its end will be known.
    pub(crate) fn told_all(&mut self) {
        self.untold = Untold::Nothing;
        if let Some(gate) = self.gate.take()
            && let Err(errno) = pipe::write_byte(&gate)
            && errno != Errno::PIPE
        {
            log(format_args!("child {} cannot be let through to its program ({errno}); it ends", self.pid));
        }
    }

    pub(crate) fn hold(&mut self, role: u8, fd: OwnedFd) -> Result<()> {
        self.release(role);
        if self.held.len() >= HELD_MAX {
            return Err(Errno::MFILE);
        }
        self.held.push((role, fd));
        Ok(())
    }

    pub(crate) fn release(&mut self, role: u8) {
        self.held.retain(|(held, _)| *held != role);
    }

    /// Whether there is a process that has not been reaped. One whose start failed has still to end.
    pub(crate) fn lives(&self) -> bool {
        match self.standing {
            Standing::Waiting | Standing::Starting | Standing::Running => true,
            Standing::Failed(_) => self.pidfd.is_some(),
            Standing::Ended(_) => false,
        }
    }

    /// How it stands for the worker, which forgets a failed one as soon as it hears of it: there must be none to reap.
    fn told(&self) -> Standing {
        match self.standing {
            _ if self.ahead => Standing::Waiting,
            Standing::Failed(_) if self.lives() => Standing::Starting,
            standing => standing,
        }
    }

    /// Has `epoll` tell when there is something to look at. May be repeated.
    pub(crate) fn watch(&self, epoll: &Epoll, token: u64, report_token: u64) -> Result<()> {
        if let Some(pidfd) = self.pidfd.as_ref().filter(|_| self.lives()) {
            watched(epoll.add(pidfd, token, Interest::Read))?;
        }
        match &self.report {
            Some(report) => watched(epoll.add(report, report_token, Interest::Read)),
            None => Ok(()),
        }
    }

    /// Takes a pre-forked child out of the table. Returns its pidfd if it has not been reaped.
    pub(crate) fn unwatch(mut self, epoll: &Epoll) -> Option<Pidfd> {
        self.close_report(epoll);
        if let Some(pidfd) = &self.pidfd {
            // The worker has a copy, so closing ours would not end the readiness.
            let _not_registered = epoll.remove(pidfd);
        }
        let lives = self.lives();
        self.pidfd.filter(|_| lives)
    }

    /// The worker says that it has told one that was forked ahead what to become. That may be old news. How far it gets with
    /// it the worker hears from itself.
    pub(crate) fn enlist(&mut self, held: Held) {
        (self.ahead, self.held) = (false, held);
        if self.standing == Standing::Waiting {
            // One of an older version reports to us.
            self.standing = if self.report.is_some() { Standing::Starting } else { Standing::Running };
        }
    }

    /// Looks how far a starting child is. True when it has started.
    fn look_at_report(&mut self, epoll: &Epoll) -> bool {
        let progress = match self.report.as_ref().map(Report::read) {
            None | Some(Progress::Pending) => return false,
            Some(progress) => progress,
        };
        self.close_report(epoll);
        match progress {
            // Not waited for here: the end of a process may take its time. The pidfd tells.
            Progress::Failed(failure) => self.standing = Standing::Failed(failure),
            Progress::Executed | Progress::Pending => {
                self.standing = Standing::Running;
                self.untold = self.untold.max(Untold::Start);
            }
        }
        self.standing == Standing::Running
    }

    /// A child that is being cloned has a copy for a moment, so closing ours would not end the readiness.
    fn close_report(&mut self, epoll: &Epoll) {
        if let Some(report) = self.report.take() {
            let _not_registered = epoll.remove(&report);
        }
    }

    /// Looks whether the process has started or ended and notes how. With `is_overdue` an exit that is not known by now
    /// is recorded as unknown.
    pub(crate) fn look(&mut self, epoll: &Epoll, is_overdue: bool) -> Seen {
        let started = if self.look_at_report(epoll) { Seen::Started } else { Seen::Nothing };
        let Some(pidfd) = self.pidfd.as_ref().filter(|_| self.lives()) else { return started };
        let exit = match pidfd::reap(pidfd) {
            Ok(Some(exit)) => exit,
            Ok(None) => return started,
            // An earlier keeper was its parent, and another process reaps it.
            Err(Errno::CHILD) if !is_readable(pidfd) => return started,
            Err(Errno::CHILD) => match self.foreign_exit(pidfd) {
                None if !is_overdue => return Seen::EndedSomehow,
                exit => exit.unwrap_or(Exit::UNKNOWN),
            },
            // Cannot be known now; the pidfd stays readable and brings us back here.
            Err(_) => return started,
        };
        // The worker holds the same open file description, so closing our copy would not end its readiness.
        let _not_registered = epoll.remove(pidfd);
        // It may have reported since we looked. One that was killed on its way to exec has not: it ran, if only as a
        // copy of us.
        self.look_at_report(epoll);
        self.close_report(epoll);
        let untold = if self.standing == Standing::Starting { Untold::Start } else { Untold::Standing };
        self.untold = self.untold.max(untold);
        if let Standing::Failed(_) = self.standing {
            self.pidfd = None;
            self.held.clear();
        } else {
            self.standing = Standing::Ended(exit);
        }
        Seen::Ended
    }

    /// How a process ended that is not our child.
    fn foreign_exit(&self, pidfd: &Pidfd) -> Option<Exit> {
        pidfd::exit_note(pidfd).or(self.reported_exit).or_else(|| pidfd::exit_of_zombie(pidfd))
    }
}

/// What is watched already needs no watching.
pub(crate) fn watched(added: Result<()>) -> Result<()> {
    match added {
        Err(Errno::EXIST) => Ok(()),
        added => added,
    }
}

pub(crate) type Table = BTreeMap<u64, Entry>;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use outpost_sys::pipe::pipe;

    /// What the state names and the new binary does not inherit would be closed by the exec.
    #[test]
    fn every_descriptor_that_is_handed_over_by_number_is_inherited() {
        let (held, more) = (pipe().unwrap(), pipe().unwrap());
        let entry = Entry {
            report: Some(Report::inherited(more.read)),
            ..Entry::new(
                7,
                Standing::Starting,
                Some(Pidfd::received(7, held.read)),
                vec![(1, held.write), (2, more.write)],
            )
        };
        let stored = entry.stored(20);
        let mut named: Vec<i32> = stored.held.iter().map(|(_, number)| *number).collect();
        named.extend([stored.pidfd, stored.report]);
        let mut inherited: Vec<i32> = entry.descriptors().map(|fd| fd.as_raw_fd()).collect();
        named.sort_unstable();
        inherited.sort_unstable();
        assert_eq!(named.len(), 4);
        assert_eq!(inherited, named);
    }
}
