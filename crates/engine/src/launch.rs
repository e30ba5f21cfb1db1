//! The start of a child: the request to the keeper, and the record of the start.

use crate::child::Child;
use outpost_keeper::{FdRoles, FdTargets, Request, SpawnOptions};
use outpost_sys::pipe::{self, Pipe};
use outpost_sys::{Errno, file};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use tokio::sync::oneshot;

/// A start that is not confirmed yet, with all that a second request to another keeper needs.
pub(crate) struct Launch {
    pub(crate) reply: oneshot::Sender<crate::Result<()>>,
    /// The specification in a sealed memfd.
    pub(crate) specification: OwnedFd,
    pub(crate) cgroup: Option<OwnedFd>,
    /// The file to execute and the working directory, where they are open files.
    pub(crate) program: Option<OwnedFd>,
    pub(crate) directory: Option<OwnedFd>,
    /// The child's descriptors with their numbers.
    pub(crate) given: Vec<(OwnedFd, u8)>,
    /// The exec gate that the last request contained.
    pub(crate) exec_gate: Option<Pipe>,
    /// The child has executed its program. The start is confirmed when it is recorded too.
    pub(crate) has_executed: bool,
    /// The pid that the keeper reported when no descriptor was free for the pidfd. The child may have executed its
    /// program.
    pub(crate) reported_pid: Option<i32>,
}

impl Child {
    /// The request to start this child, with its descriptors; `None` when the start is confirmed. Makes a new exec gate
    /// unless there is one.
    pub(crate) fn spawn_request(&mut self) -> outpost_sys::Result<Option<(Request, Vec<BorrowedFd<'_>>)>> {
        let slot = self.slot();
        if let Some(launch) = self.launch.as_mut().filter(|launch| launch.exec_gate.is_none()) {
            launch.exec_gate = Some(pipe::pipe()?);
        }
        let Some(launch) = &self.launch else { return Ok(None) };
        let held = self.held();
        let roles = FdRoles::new(held.iter().map(|(role, _)| *role)).ok_or(Errno::MFILE)?;
        let targets = FdTargets::new(launch.given.iter().map(|(_, target)| *target)).ok_or(Errno::MFILE)?;
        let options = SpawnOptions {
            cgroup: launch.cgroup.is_some(),
            program: launch.program.is_some(),
            directory: launch.directory.is_some(),
        };
        let gate = launch.exec_gate.iter().flat_map(|gate| [&gate.read, &gate.write]);
        let optional = launch.cgroup.iter().chain(&launch.program).chain(&launch.directory);
        let first = [&launch.specification].into_iter().chain(gate).chain(optional).map(AsFd::as_fd);
        let held = held.iter().map(|(_, fd)| *fd);
        let given = launch.given.iter().map(|(fd, _)| fd.as_fd());
        let fds = first.chain(held).chain(given).collect();
        Ok(Some((Request::Spawn { slot, options, held: roles, targets }, fds)))
    }

    /// The child has executed its program. Returns the launch if it can be confirmed now. A start is confirmed only
    /// when it is recorded, since a worker that finds a process without a description kills it.
    pub(crate) fn take_executed(&mut self) -> Option<Launch> {
        let launch = self.launch.as_mut()?;
        launch.has_executed = true;
        match self.start_unrecorded {
            true => None,
            false => self.launch.take(),
        }
    }

    /// Writes the description and the start record, unless they are written.
    pub(crate) fn record_start(&mut self) -> crate::Result<()> {
        if let Some((file, description)) = &self.unwritten_description {
            file::write_all_at(file, description, 0)
                .map_err(|errno| crate::Error::io("write", "the description of a process", errno))?;
            self.unwritten_description = None;
        }
        if let Some(os) = self.process.inner.os.get() {
            self.writer.started(os.pid, os.start_ticks)?;
        }
        Ok(())
    }
}
