//! The keeper's table: who runs, and which descriptors are held for whom.

use crate::message::{Roles, Standing};
use outpost_sys::pidfd::{self, Exit};
use outpost_sys::spawn::{self, Failure, Progress, Report};
use outpost_sys::{Errno, Result};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The slot of the daemon's own descriptors: listening sockets and the lock.
pub const OWN_SLOT: u64 = 0;

/// Slots below this are not for children.
pub const SLOT_MIN: u64 = 16;

/// The most descriptors one slot may hold.
pub const HELD_MAX: usize = 16;

/// The most slots there may be.
pub(crate) const SLOTS_MAX: usize = 16 * 1024;

pub(crate) struct Entry {
    pub(crate) pid: i32,
    pub(crate) standing: Standing,
    /// None when it never ran, and for the daemon's own slot.
    pub(crate) pidfd: Option<OwnedFd>,
    pub(crate) held: Vec<(u8, OwnedFd)>,
    /// While it is starting.
    pub(crate) report: Option<Report>,
    pub(crate) untold: Untold,
}

/// What the worker has not been told of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    pub(crate) fn own() -> Entry {
        Entry { pid: 0, standing: Standing::Running, pidfd: None, held: Vec::new(), report: None, untold: Untold::Nothing }
    }

    /// A child that could not even be begun.
    pub(crate) fn failed(failure: Failure) -> Entry {
        Entry { standing: Standing::Failed(failure), untold: Untold::Standing, ..Entry::own() }
    }

    pub(crate) fn roles(&self) -> Roles {
        Roles::new(self.held.iter().map(|(role, _)| *role)).unwrap_or(Roles::EMPTY)
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

    /// The descriptors to send with what is untold.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let pidfd = self.pidfd.as_ref().filter(|_| matches!(self.untold, Untold::Start | Untold::All));
        let held = self.held.iter().filter(|_| self.untold == Untold::All).map(|(_, fd)| fd.as_fd());
        pidfd.map(AsFd::as_fd).into_iter().chain(held).collect()
    }

    /// Whether there is a process that has not been reaped.
    pub(crate) fn lives(&self) -> bool {
        matches!(self.standing, Standing::Starting | Standing::Running)
    }

    /// Looks how far a starting child is. True when it has started or failed.
    pub(crate) fn look_at_report(&mut self) -> bool {
        let Some(report) = self.report.as_ref() else { return false };
        self.standing = match report.read() {
            Progress::Pending => return false,
            Progress::Executed => Standing::Running,
            Progress::Failed(failure) => {
                if let Some(pidfd) = self.pidfd.take() {
                    spawn::bury(&pidfd);
                }
                self.held.clear();
                Standing::Failed(failure)
            }
        };
        self.report = None;
        if self.untold == Untold::Nothing {
            self.untold = Untold::Start;
        }
        true
    }

    /// Looks whether the process has ended and notes how. True when there is news.
    pub(crate) fn look(&mut self) -> bool {
        // One that was killed on its way to exec has not failed: it ran, if only as a copy of us.
        self.look_at_report();
        let Some(pidfd) = self.pidfd.as_ref().filter(|_| self.lives()) else { return false };
        let exit = match pidfd::reap(pidfd) {
            Ok(Some(exit)) => exit,
            Ok(None) => return false,
            // A keeper before us was its parent; who reaps it now, if anybody, does not tell us.
            Err(Errno::CHILD) => match has_ended(pidfd) {
                true => pidfd::exit_of_stranger(pidfd, self.pid),
                false => return false,
            },
            // Cannot be known now; the pidfd stays readable and brings us back here.
            Err(_) => return false,
        };
        self.ended(exit);
        true
    }

    fn ended(&mut self, exit: Exit) {
        self.standing = Standing::Ended(exit);
        self.report = None;
        if self.untold == Untold::Nothing {
            self.untold = Untold::Standing;
        }
    }
}

fn has_ended(pidfd: &OwnedFd) -> bool {
    outpost_sys::epoll::is_readable(pidfd)
}

pub(crate) type Table = BTreeMap<u64, Entry>;
