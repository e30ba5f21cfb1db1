//! How a child comes to be: somebody who waits becomes it, or the keeper is asked for one.

use crate::child::Child;
use crate::process::Os;
use crate::spares::Recruit;
use outpost_keeper::{GATE_TARGET, OPENER_TARGET, ORDER_SPEC_BYTES_MAX, Request, Roles, Targets};
use outpost_sys::pipe::{self, Pipe};
use outpost_sys::spawn::{Failure, Progress, Report};
use outpost_sys::{Errno, file, message};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use tokio::sync::oneshot;

/// A start that the keeper has not answered yet, with what it takes to ask again.
pub(crate) struct Starting {
    pub(crate) reply: oneshot::Sender<crate::Result<()>>,
    /// Its specification, and a file with that once it has been needed.
    pub(crate) spec: Vec<u8>,
    pub(crate) spec_file: Option<OwnedFd>,
    pub(crate) cgroup: Option<OwnedFd>,
    /// The child's own descriptors, and the numbers it is to have them under.
    pub(crate) theirs: Vec<(OwnedFd, u8)>,
    /// Somebody who waits to become it.
    pub(crate) recruit: Option<Recruit>,
    /// From somebody who has been told to, and what it said when it could not: then it has still to end.
    pub(crate) report: Option<Report>,
    pub(crate) failed: Option<Failure>,
    /// Where one that the keeper forks for it waits until we have heard of that.
    pub(crate) gate: Option<Pipe>,
    /// The child has executed its program, but its start is not recorded yet, so it is not confirmed.
    pub(crate) has_executed: bool,
    /// The pid that the keeper reported when no descriptor was free for the pidfd. The child may have executed its program.
    pub(crate) reported: Option<i32>,
}

impl Starting {
    fn make_spec_file(&mut self) -> outpost_sys::Result<()> {
        if self.spec_file.is_none() {
            self.spec_file = Some(file::sealed_memory("outpost-spec", &self.spec)?);
        }
        Ok(())
    }
}

impl Child {
    /// What it takes to ask the keeper for this child; `None` when it has been started.
    pub(crate) fn request(&mut self) -> outpost_sys::Result<Option<(Request, Vec<BorrowedFd<'_>>)>> {
        let slot = self.slot();
        if let Some(starting) = &mut self.starting {
            starting.make_spec_file()?;
            if starting.gate.is_none() {
                starting.gate = Some(pipe::pipe()?);
            }
        }
        let Some(starting) = &self.starting else { return Ok(None) };
        let held = self.held();
        let roles = Roles::new(held.iter().map(|(role, _)| *role)).ok_or(Errno::MFILE)?;
        let gate = starting.gate.iter();
        let gate = gate.flat_map(|Pipe { read, write }| [(read, GATE_TARGET), (write, OPENER_TARGET)]);
        let theirs = starting.theirs.iter().map(|(fd, target)| (fd, *target)).chain(gate);
        let targets = Targets::new(theirs.clone().map(|(_, target)| target)).ok_or(Errno::MFILE)?;
        let request = Request::Spawn { slot, cgroup: starting.cgroup.is_some(), held: roles, targets };
        let first = starting.spec_file.iter().chain(&starting.cgroup).map(AsFd::as_fd);
        let rest = held.iter().map(|(_, fd)| *fd).chain(theirs.map(|(fd, _)| fd.as_fd()));
        Ok(Some((request, first.chain(rest).collect())))
    }

    /// Asks the keeper for this child. False when that cannot be done now.
    pub(crate) fn ask(&mut self, keeper: &OwnedFd) -> bool {
        match self.request() {
            Ok(Some((request, fds))) => message::send(keeper, &request.encode(), &fds).is_ok(),
            Ok(None) | Err(_) => false,
        }
    }

    /// Has somebody who waits become this child, and says who that is; none when nobody can. The keeper is told after that,
    /// so that nobody waits for it meanwhile. If we do not live to do so, it ends the child: nobody has heard of that.
    pub(crate) fn enlist(&mut self, keeper: &Arc<OwnedFd>) -> Option<Os> {
        let starting = self.starting.as_mut()?;
        let Recruit { orders, report, os, .. } =
            starting.recruit.take().filter(|recruit| recruit.serves(keeper))?;
        starting.report = Some(report);
        let told = self.order().and_then(|(order, fds)| message::send(&orders, &order, &fds));
        if told.is_err() {
            // It ends when we close its socket.
            self.starting.as_mut()?.report = None;
            return None;
        }
        Some(os)
    }

    /// Looks how far somebody is who was told to become this child.
    pub(crate) fn look_at_report(&mut self) -> Progress {
        let Some(starting) = &mut self.starting else { return Progress::Executed };
        let progress = match (&starting.failed, &starting.report) {
            (Some(failure), _) => Progress::Failed(*failure),
            (None, Some(report)) => report.read(),
            (None, None) => Progress::Pending,
        };
        if let Progress::Failed(failure) = progress {
            starting.failed = Some(failure);
        }
        if progress != Progress::Pending {
            starting.report = None;
        }
        progress
    }

    /// What the keeper is told of somebody who becomes this child.
    pub(crate) fn enlisting(&self) -> outpost_sys::Result<(Request, Vec<BorrowedFd<'_>>)> {
        let held = self.held();
        let roles = Roles::new(held.iter().map(|(role, _)| *role)).ok_or(Errno::MFILE)?;
        let request = Request::Enlist { slot: self.slot(), held: roles };
        Ok((request, held.into_iter().map(|(_, fd)| fd).collect()))
    }

    /// What somebody who waits is told, to become this child.
    fn order(&mut self) -> outpost_sys::Result<(Vec<u8>, Vec<BorrowedFd<'_>>)> {
        let slot = self.slot();
        let Some(starting) = &mut self.starting else { return Err(Errno::INVAL) };
        let is_short = starting.spec.len() <= ORDER_SPEC_BYTES_MAX;
        if !is_short {
            starting.make_spec_file()?;
        }
        let targets = Targets::new(starting.theirs.iter().map(|(_, target)| *target)).ok_or(Errno::MFILE)?;
        let request = Request::Spawn { slot, cgroup: false, held: Roles::EMPTY, targets };
        let mut message = request.encode().to_vec();
        if is_short {
            message.extend_from_slice(&starting.spec);
        }
        let file = starting.spec_file.iter().filter(|_| !is_short);
        Ok((message, file.chain(starting.theirs.iter().map(|(fd, _)| fd)).map(AsFd::as_fd).collect()))
    }

    /// The child has executed its program. Returns the start if it can be confirmed now. A start is confirmed only when it
    /// is recorded: a worker that finds a process without a description undoes it.
    pub(crate) fn take_executed(&mut self) -> Option<Starting> {
        let starting = self.starting.as_mut()?;
        starting.has_executed = true;
        match self.start_unrecorded {
            true => None,
            false => self.starting.take(),
        }
    }

    /// Writes the description and the start record, whichever is missing.
    pub(crate) fn record_start(&mut self) -> crate::Result<()> {
        if let Some((file, description)) = &self.undescribed {
            file::write_all_at(file, description, 0)
                .map_err(|errno| crate::Error::io("write", "the description of a process", errno))?;
            self.undescribed = None;
        }
        if let Some(os) = self.process.inner.os.get() {
            self.writer.started(os.pid, os.start_ticks)?;
        }
        Ok(())
    }
}
