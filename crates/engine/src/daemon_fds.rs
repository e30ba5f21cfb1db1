//! Descriptors without a child that the keeper holds for later workers: the daemon's own by role, and kept ones by
//! number.

use crate::reactor::Reactor;
use crate::{Error, Result};
use outpost_keeper::{OWN_SLOT, Request};
use outpost_sys::{file, message};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use tokio::sync::oneshot;

type Reply = oneshot::Sender<Result<()>>;

/// A command about such a descriptor. The reply comes when the keeper was sent the request, so that this worker may be
/// killed.
pub(crate) enum FdCommand {
    Hold { role: u8, fd: OwnedFd, reply: Reply },
    Release { role: u8, reply: Reply },
    Keep { number: u64, role: u8, fd: OwnedFd, reply: Reply },
    DropKept { number: u64 },
}

#[derive(Default)]
pub(crate) struct DaemonFds {
    by_role: BTreeMap<u8, OwnedFd>,
    /// By number, each with its role.
    kept: BTreeMap<u64, (u8, OwnedFd)>,
    /// Replies that wait until every request was sent.
    replies: Vec<Reply>,
}

impl DaemonFds {
    /// Adopts what the keeper held for the daemon.
    pub(crate) fn adopt(&mut self, held: HashMap<u8, OwnedFd>) {
        self.by_role = held.into_iter().collect();
    }

    /// Adopts what the keeper held under a number.
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
    pub(crate) fn handle_fd_command(&mut self, command: FdCommand) {
        let (done, reply) = match command {
            FdCommand::Hold { role, fd, reply } => (self.hold_daemon_fd(role, fd), reply),
            FdCommand::Release { role, reply } => {
                self.shared.link.send(Request::Release { slot: OWN_SLOT, role }, Vec::new());
                if let Some(fd) = self.daemon_fds.by_role.remove(&role) {
                    // A listening socket refuses clients at once, also while another process has a copy of it.
                    message::shut_down(&fd);
                }
                (Ok(()), reply)
            }
            FdCommand::Keep { number, role, fd, reply } => (self.keep(number, role, fd), reply),
            FdCommand::DropKept { number } => {
                if self.daemon_fds.kept.remove(&number).is_some() {
                    self.shared.link.send(Request::Forget { slot: number }, Vec::new());
                }
                return;
            }
        };
        match done {
            Ok(()) => self.daemon_fds.replies.push(reply),
            Err(error) => {
                let _gone = reply.send(Err(error));
            }
        }
    }

    /// Has the keeper hold one of the daemon's own descriptors.
    pub(crate) fn hold_daemon_fd(&mut self, role: u8, fd: OwnedFd) -> Result<()> {
        self.pass_fd(OWN_SLOT, role, &fd)?;
        self.daemon_fds.by_role.insert(role, fd);
        Ok(())
    }

    fn keep(&mut self, number: u64, role: u8, fd: OwnedFd) -> Result<()> {
        self.pass_fd(number, role, &fd)?;
        self.daemon_fds.kept.insert(number, (role, fd));
        Ok(())
    }

    fn pass_fd(&mut self, slot: u64, role: u8, fd: &OwnedFd) -> Result<()> {
        let passed = self.shared.link.pass(Request::Hold { slot, role }, &[fd.as_fd()]);
        passed.map_err(|errno| Error::io("pass", "a descriptor to the keeper", errno))
    }

    /// Replies to commands whose request was sent, or when there is no keeper.
    pub(crate) fn reply_daemon_fds(&mut self) {
        let held = self.shared.link.is_flushed() && !self.keeper.lacks(OWN_SLOT);
        if held || self.keeper.is_gone() {
            for reply in self.daemon_fds.replies.drain(..) {
                let _gone = reply.send(Ok(()));
            }
        }
    }

    /// Hands everything to a new keeper. May be repeated.
    pub(crate) fn hand_over_daemon_fds(&mut self) -> outpost_sys::Result<()> {
        let own = self.daemon_fds.by_role.iter().map(|(role, fd)| (OWN_SLOT, *role, fd));
        let kept = self.daemon_fds.kept.iter().map(|(number, (role, fd))| (*number, *role, fd));
        own.chain(kept).try_for_each(|(slot, role, fd)| {
            self.shared.link.pass(Request::Hold { slot, role }, &[fd.as_fd()])
        })
    }
}
