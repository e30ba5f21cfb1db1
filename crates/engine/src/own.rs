//! Descriptors that are no child's and that the keeper holds for workers to come: the daemon's own by role, and those
//! that are kept under a number.

use crate::reactor::Reactor;
use crate::{Error, Result};
use outpost_keeper::{OWN_SLOT, Request};
use outpost_sys::{file, message};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use tokio::sync::oneshot;

type Reply = oneshot::Sender<Result<()>>;

/// What the rest of the program asks for. Answered when the keeper has been told: from then on this worker may be killed.
pub(crate) enum Order {
    Hold { role: u8, fd: OwnedFd, reply: Reply },
    Release { role: u8, reply: Reply },
    Keep { number: u64, role: u8, fd: OwnedFd, reply: Reply },
    LetGo { number: u64 },
}

#[derive(Default)]
pub(crate) struct Own {
    by_role: BTreeMap<u8, OwnedFd>,
    /// By number, each with its role.
    kept: BTreeMap<u64, (u8, OwnedFd)>,
    /// Who waits until everything so far has been sent.
    unanswered: Vec<Reply>,
}

impl Own {
    /// Takes over what the keeper held for the daemon.
    pub(crate) fn adopt(&mut self, held: HashMap<u8, OwnedFd>) {
        self.by_role = held.into_iter().collect();
    }

    /// Takes over what the keeper kept under a number.
    pub(crate) fn adopt_kept(&mut self, number: u64, held: HashMap<u8, OwnedFd>) {
        self.kept.extend(held.into_iter().map(|descriptor| (number, descriptor)));
    }

    pub(crate) fn copies(&self) -> impl Iterator<Item = (u8, OwnedFd)> {
        self.by_role.iter().filter_map(|(role, fd)| Some((*role, file::duplicate(fd).ok()?)))
    }

    /// Number, role.
    pub(crate) fn copies_of_kept(&self) -> impl Iterator<Item = (u64, u8, OwnedFd)> {
        self.kept.iter().filter_map(|(number, (role, fd))| Some((*number, *role, file::duplicate(fd).ok()?)))
    }
}

impl Reactor {
    pub(crate) fn order_own(&mut self, order: Order) {
        let (done, reply) = match order {
            Order::Hold { role, fd, reply } => (self.hold_own(role, fd), reply),
            Order::Release { role, reply } => {
                self.link.send(Request::Release { slot: OWN_SLOT, role }, Vec::new());
                if let Some(fd) = self.own.by_role.remove(&role) {
                    // A listening socket refuses clients at once, whatever process still has a copy of it.
                    message::shut_down(&fd);
                }
                (Ok(()), reply)
            }
            Order::Keep { number, role, fd, reply } => (self.keep(number, role, fd), reply),
            Order::LetGo { number } => {
                if self.own.kept.remove(&number).is_some() {
                    self.link.send(Request::Forget { slot: number }, Vec::new());
                }
                return;
            }
        };
        match done {
            Ok(()) => self.own.unanswered.push(reply),
            Err(error) => {
                let _gone = reply.send(Err(error));
            }
        }
    }

    /// Gives the keeper one of the daemon's own descriptors.
    pub(crate) fn hold_own(&mut self, role: u8, fd: OwnedFd) -> Result<()> {
        self.give_copy(OWN_SLOT, role, &fd)?;
        self.own.by_role.insert(role, fd);
        Ok(())
    }

    fn keep(&mut self, number: u64, role: u8, fd: OwnedFd) -> Result<()> {
        self.give_copy(number, role, &fd)?;
        self.own.kept.insert(number, (role, fd));
        Ok(())
    }

    fn give_copy(&mut self, slot: u64, role: u8, fd: &OwnedFd) -> Result<()> {
        let passed = self.link.pass(Request::Hold { slot, role }, &[fd.as_fd()]);
        passed.map_err(|errno| Error::io("pass", "a descriptor to the keeper", errno))
    }

    /// Tells those whose wish has reached the keeper. Without one, nobody could do more for them.
    pub(crate) fn answer_own(&mut self) {
        let held = self.link.is_flushed() && !self.unheld.contains(&OWN_SLOT);
        if held || self.keeper_gone {
            for reply in self.own.unanswered.drain(..) {
                let _gone = reply.send(Ok(()));
            }
        }
    }

    /// Gives everything to a new keeper. May be repeated.
    pub(crate) fn give_own(&mut self) -> outpost_sys::Result<()> {
        let own = self.own.by_role.iter().map(|(role, fd)| (OWN_SLOT, *role, fd));
        let kept = self.own.kept.iter().map(|(number, (role, fd))| (*number, *role, fd));
        own.chain(kept)
            .try_for_each(|(slot, role, fd)| self.link.pass(Request::Hold { slot, role }, &[fd.as_fd()]))
    }
}
