//! The entries of the keeper's table: one per child, with its state and its held descriptors.

use crate::log::log;
use crate::message::{Event, FdRoles, ProcessState};
use crate::state::SerializedEntry;
use outpost_sys::epoll::{Epoll, Interest, is_readable};
use outpost_sys::pidfd::{Exit, Pidfd};
use outpost_sys::spawn::{ExecStatus, ExecStatusPipe, Failure};
use outpost_sys::{Errno, Result, file, pidfd, pipe};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The slot of the daemon's own descriptors: listening sockets and the lock.
pub const OWN_SLOT: u64 = 0;

/// Role in [`OWN_SLOT`]: the directory of the cgroups that a keeper removes when it ends with its worker.
pub const CGROUPS_ROLE: u8 = 254;

/// Role in [`OWN_SLOT`]: the notification socket of the supervisor.
pub const NOTIFY_ROLE: u8 = 253;

/// Role in [`OWN_SLOT`]: the socket of a supervisor with a file descriptor store.
pub const STORE_ROLE: u8 = 252;

/// Role in [`OWN_SLOT`]: the netlink socket of exit events. The keeper does not send it to workers.
pub const EXITS_ROLE: u8 = 251;

/// Slots below this are not for children.
pub const SLOT_MIN: u64 = 16;

/// Slots with this bit have no child. They hold descriptors until the worker has them forgotten.
pub const FDS_ONLY: u64 = 1 << 62;

/// Maximum number of descriptors that one slot may hold.
pub const HELD_MAX: usize = 16;

/// Maximum number of slots.
pub(crate) const SLOTS_MAX: usize = 16 * 1024;

/// Descriptors by role.
type Held = Vec<(u8, OwnedFd)>;

pub(crate) struct Entry {
    pub(crate) pid: i32,
    pub(crate) state: ProcessState,
    /// `None` when the child never ran, and for slots without a child.
    pub(crate) pidfd: Option<Pidfd>,
    pub(crate) held: Held,
    /// The pipe on which the child reports its exec. The slot has it from clone to exec. After a failed start the slot
    /// keeps it until the child is reaped, since the child runs in the keeper's memory until then.
    exec_status: Option<ExecStatusPipe>,
    /// The write end of the exec gate, until the worker was sent the child.
    exec_gate: Option<OwnedFd>,
    /// The supervisor's store has its descriptors too.
    pub(crate) in_fdstore: bool,
    /// The exit status by an exit event of the kernel. Only where an earlier keeper is the parent.
    pub(crate) reported_exit: Option<Exit>,
    pub(crate) pending: Pending,
}

/// What a look at a child has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Observed {
    Nothing,
    Started,
    Ended,
    /// It has ended, and its exit status is not known yet.
    EndedUnknown,
}

/// The part of an entry that the worker was not sent yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pending {
    Nothing,
    State,
    /// The state and the pidfd.
    Start,
    /// Everything, since the worker is new.
    All,
}

impl Entry {
    fn new(pid: i32, state: ProcessState, pidfd: Option<Pidfd>, held: Held) -> Entry {
        Entry {
            pid,
            state,
            pidfd,
            held,
            exec_status: None,
            exec_gate: None,
            in_fdstore: false,
            reported_exit: None,
            pending: Pending::Nothing,
        }
    }

    /// The entry of [`OWN_SLOT`].
    pub(crate) fn own() -> Entry {
        Entry::new(0, ProcessState::Running, None, Vec::new())
    }

    /// An entry of a slot with [`FDS_ONLY`].
    pub(crate) fn fds_only() -> Entry {
        Entry::new(0, ProcessState::Ended(Exit::UNKNOWN), None, Vec::new())
    }

    /// A child that was cloned.
    pub(crate) fn starting(begun: outpost_sys::spawn::Begun, exec_gate: OwnedFd, held: Held) -> Entry {
        let entry = Entry::new(begun.pid, ProcessState::Starting, Some(begun.pidfd), held);
        Entry {
            exec_status: Some(begun.status),
            exec_gate: Some(exec_gate),
            pending: Pending::Start,
            ..entry
        }
    }

    /// A child that could not be cloned.
    pub(crate) fn failed(failure: Failure) -> Entry {
        Entry { state: ProcessState::Failed(failure), pending: Pending::State, ..Entry::own() }
    }

    /// An entry of a keeper that died, from its worker.
    pub(crate) fn adopted(pid: i32, state: ProcessState, held: FdRoles, fds: Vec<OwnedFd>) -> Entry {
        let mut fds = fds.into_iter();
        let pidfd = if matches!(state, ProcessState::Failed(_)) { None } else { fds.next() };
        let pidfd = pidfd.map(|fd| Pidfd::received(pid, fd));
        Entry::new(pid, state, pidfd, held.iter().zip(fds).collect())
    }

    /// An entry of the keeper that this one has replaced.
    pub(crate) fn inherited(serialized: &SerializedEntry) -> Result<Entry> {
        let fd = |number| (number >= 0).then(|| file::inherited(number)).transpose();
        let held = serialized.held.iter().map(|(role, number)| Ok((*role, file::inherited(*number)?)));
        let pidfd = fd(serialized.pidfd)?.map(|fd| Pidfd::received(serialized.pid, fd));
        let entry = Entry::new(serialized.pid, serialized.state, pidfd, held.collect::<Result<_>>()?);
        let exec_status = fd(serialized.exec_status)?.map(ExecStatusPipe::inherited);
        // The state does not include whether the store has them. Removing from it what is not there is harmless.
        Ok(Entry { exec_status, in_fdstore: true, ..entry })
    }

    /// The entry for the keeper that replaces this one.
    pub(crate) fn serialize(&self, slot: u64) -> SerializedEntry {
        let pidfd = self.pidfd.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let exec_status = self.watched_status().map_or(-1, AsRawFd::as_raw_fd);
        let held = self.held.iter().map(|(role, fd)| (*role, fd.as_raw_fd())).collect();
        SerializedEntry { slot, pid: self.pid, state: self.state, pidfd, held, exec_status }
    }

    /// How many descriptors the keeper has open for the entry: the pidfd, held ones, and those of a start under way.
    pub(crate) fn open_descriptors(&self) -> usize {
        1 + self.held.len() + usize::from(self.exec_status.is_some()) + usize::from(self.exec_gate.is_some())
    }

    /// Every descriptor that [`Entry::serialize`] names.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let held = self.held.iter().map(|(_, fd)| fd.as_fd());
        self.pidfd.iter().map(AsFd::as_fd).chain(held).chain(self.watched_status().map(AsFd::as_fd))
    }

    /// The status pipe, while its result is not known.
    fn watched_status(&self) -> Option<&ExecStatusPipe> {
        self.exec_status.as_ref().filter(|_| self.state == ProcessState::Starting)
    }

    /// The event for what is pending, with its descriptors.
    pub(crate) fn event(&self, slot: u64) -> (Event, Vec<BorrowedFd<'_>>) {
        let pidfd = self.pidfd.as_ref().filter(|_| self.pending >= Pending::Start);
        let is_sent = |role: u8| self.pending == Pending::All && (slot, role) != (OWN_SLOT, EXITS_ROLE);
        let held = self.held.iter().filter(|(role, _)| is_sent(*role));
        let roles = FdRoles::new(held.clone().map(|(role, _)| *role)).unwrap_or(FdRoles::EMPTY);
        let (pid, state) = (self.pid, self.reported_state());
        let event = Event::Entry { slot, pid, state, pidfd: pidfd.is_some(), held: roles };
        (event, pidfd.into_iter().map(AsFd::as_fd).chain(held.map(|(_, fd)| fd.as_fd())).collect())
    }

    /// The worker was sent everything. Opens the exec gate: if this keeper dies from here on, the worker knows the
    /// child.
    pub(crate) fn mark_sent(&mut self) {
        self.pending = Pending::Nothing;
        if let Some(gate) = self.exec_gate.take()
            && let Err(errno) = pipe::write_byte(&gate)
            && errno != Errno::PIPE
        {
            log(format_args!("cannot open the exec gate of child {} ({errno}); the child exits", self.pid));
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

    /// The descriptor that is held under a role.
    pub(crate) fn held(&self, role: u8) -> Option<&OwnedFd> {
        self.held.iter().find(|(held, _)| *held == role).map(|(_, fd)| fd)
    }

    pub(crate) fn release(&mut self, role: u8) {
        self.held.retain(|(held, _)| *held != role);
    }

    /// Whether there is a process that was not reaped. One whose start failed has still to exit.
    pub(crate) fn is_alive(&self) -> bool {
        match self.state {
            ProcessState::Starting | ProcessState::Running => true,
            ProcessState::Failed(_) => self.pidfd.is_some(),
            ProcessState::Ended(_) => false,
        }
    }

    /// The state as reported to the worker. The worker forgets a failed child at the report of the failure, so the keeper
    /// reports the failure only after it has reaped the child.
    fn reported_state(&self) -> ProcessState {
        match self.state {
            ProcessState::Failed(_) if self.is_alive() => ProcessState::Starting,
            state => state,
        }
    }

    /// Registers the child's descriptors. May be repeated.
    pub(crate) fn watch(&self, epoll: &Epoll, token: u64, status_token: u64) -> Result<()> {
        if let Some(pidfd) = self.pidfd.as_ref().filter(|_| self.is_alive()) {
            watched(epoll.add(pidfd, token, Interest::Read))?;
        }
        match self.watched_status() {
            Some(pipe) => watched(epoll.add(pipe, status_token, Interest::Read)),
            None => Ok(()),
        }
    }

    /// Reads the status pipe. True when the child has executed its program.
    fn poll_exec_status(&mut self, epoll: &Epoll) -> bool {
        let Some(pipe) = self.watched_status() else { return false };
        let status = pipe.read();
        if status == ExecStatus::Pending {
            return false;
        }
        // A child that is being cloned has a copy for a moment, so closing ours would not end the readiness.
        let _not_registered = epoll.remove(pipe);
        match status {
            // Not waited for here: the exit may take its time, and the pidfd reports it.
            ExecStatus::Failed(failure) => self.state = ProcessState::Failed(failure),
            ExecStatus::Executed | ExecStatus::Pending => {
                self.exec_status = None;
                self.state = ProcessState::Running;
                self.pending = self.pending.max(Pending::Start);
            }
        }
        self.state == ProcessState::Running
    }

    /// Updates the state by the status pipe and the pidfd. With `is_overdue` an exit status that is not known is
    /// recorded as unknown.
    pub(crate) fn poll(&mut self, epoll: &Epoll, is_overdue: bool) -> Observed {
        let started = if self.poll_exec_status(epoll) { Observed::Started } else { Observed::Nothing };
        let Some(pidfd) = self.pidfd.as_ref().filter(|_| self.is_alive()) else { return started };
        let exit = match pidfd::reap(pidfd) {
            Ok(Some(exit)) => exit,
            Ok(None) => return started,
            // An earlier keeper was its parent, and another process reaps it.
            Err(Errno::CHILD) if !is_readable(pidfd) => return started,
            Err(Errno::CHILD) => match self.exit_of_non_child(pidfd) {
                None if !is_overdue => return Observed::EndedUnknown,
                exit => exit.unwrap_or(Exit::UNKNOWN),
            },
            // The pidfd stays readable, so this is tried again.
            Err(_) => return started,
        };
        // The worker has the same open file description, so closing our copy would not end the readiness.
        let _not_registered = epoll.remove(pidfd);
        // The child may have reported since. A child that was killed before exec has not: it counts as one that ran.
        self.poll_exec_status(epoll);
        self.close_exec_status(epoll);
        let pending = if self.state == ProcessState::Starting { Pending::Start } else { Pending::State };
        self.pending = self.pending.max(pending);
        if let ProcessState::Failed(_) = self.state {
            self.pidfd = None;
            self.held.clear();
        } else {
            self.state = ProcessState::Ended(exit);
        }
        Observed::Ended
    }

    fn close_exec_status(&mut self, epoll: &Epoll) {
        if let Some(pipe) = self.exec_status.take() {
            let _not_registered = epoll.remove(&pipe);
        }
    }

    /// The exit status of a process that is not our child.
    fn exit_of_non_child(&self, pidfd: &Pidfd) -> Option<Exit> {
        pidfd::recorded_exit(pidfd).or(self.reported_exit).or_else(|| pidfd::exit_of_zombie(pidfd))
    }
}

/// Accepts that a descriptor is registered already.
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

    /// The exec would close a descriptor that the state names and the new binary does not inherit.
    #[test]
    fn every_serialized_descriptor_is_inherited() {
        let (held, more) = (pipe().unwrap(), pipe().unwrap());
        let entry = Entry {
            exec_status: Some(ExecStatusPipe::inherited(more.read)),
            ..Entry::new(
                7,
                ProcessState::Starting,
                Some(Pidfd::received(7, held.read)),
                vec![(1, held.write), (2, more.write)],
            )
        };
        let serialized = entry.serialize(20);
        let mut named: Vec<i32> = serialized.held.iter().map(|(_, number)| *number).collect();
        named.extend([serialized.pidfd, serialized.exec_status]);
        let mut inherited: Vec<i32> = entry.descriptors().map(|fd| fd.as_raw_fd()).collect();
        named.sort_unstable();
        inherited.sort_unstable();
        assert_eq!(named.len(), 4);
        assert_eq!(inherited, named);
    }
}
