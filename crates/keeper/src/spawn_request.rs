//! A request to start a child, with its specification and its descriptors.

use crate::message::{FdRoles, FdTargets, SpawnOptions};
use crate::spec::{SPEC_BYTES_MAX, Spec};
use outpost_sys::spawn::{Child, Executable, WorkingDirectory};
use outpost_sys::{Errno, Result, file};
use std::os::fd::{AsFd, OwnedFd};

/// A request to start a child.
pub(crate) struct SpawnRequest {
    specification: OwnedFd,
    /// The child reads from the first end and executes when a byte comes out of it.
    gate_read: OwnedFd,
    pub(crate) gate_write: OwnedFd,
    cgroup: Option<OwnedFd>,
    program: Option<OwnedFd>,
    directory: Option<OwnedFd>,
    pub(crate) held: Vec<(u8, OwnedFd)>,
    /// The child's descriptors with their numbers.
    given: Vec<(OwnedFd, u8)>,
}

impl SpawnRequest {
    /// Takes the descriptors of a [`Request::Spawn`](crate::Request::Spawn) apart.
    pub(crate) fn new(
        options: SpawnOptions,
        held: FdRoles,
        targets: FdTargets,
        fds: Vec<OwnedFd>,
    ) -> Result<SpawnRequest> {
        let SpawnOptions { cgroup, program, directory } = options;
        let optional: usize = [cgroup, program, directory].into_iter().map(usize::from).sum();
        if fds.len() != 3 + optional + held.len() + targets.len() {
            return Err(Errno::MFILE);
        }
        let mut fds = fds.into_iter();
        let mut next = |present: bool| if present { fds.next() } else { None };
        let request = SpawnRequest {
            specification: next(true).ok_or(Errno::MFILE)?,
            gate_read: next(true).ok_or(Errno::MFILE)?,
            gate_write: next(true).ok_or(Errno::MFILE)?,
            cgroup: next(cgroup),
            program: next(program),
            directory: next(directory),
            held: Vec::new(),
            given: Vec::new(),
        };
        let held = held.iter().zip(fds.by_ref()).collect();
        Ok(SpawnRequest { held, given: fds.zip(targets.iter()).collect(), ..request })
    }

    /// Calls `start` with the child that the request describes.
    pub(crate) fn with_child<R>(&self, start: impl FnOnce(&Child<'_>) -> R) -> Result<R> {
        let bytes = file::read_whole(&self.specification, SPEC_BYTES_MAX).map_err(|errno| match errno {
            Errno::FBIG => Errno::TOOBIG,
            other => other,
        })?;
        let spec = Spec::decode(&bytes).ok_or(Errno::INVAL)?;
        let descriptors: Vec<_> =
            self.given.iter().map(|(fd, target)| (fd.as_fd(), i32::from(*target))).collect();
        let program = self.program.as_ref().map(|file| Executable::Open(file.as_fd()));
        let directory = self.directory.as_ref().map(|directory| WorkingDirectory::Open(directory.as_fd()));
        Ok(start(&Child {
            program: program.unwrap_or(Executable::Path(spec.program)),
            arguments: &spec.arguments,
            environment: &spec.environment,
            directory: directory.or(spec.directory.map(WorkingDirectory::Path)),
            session: spec.session,
            descriptors: &descriptors,
            limits: &spec.limits,
            umask: spec.umask,
            oom_score: spec.oom_score,
            cgroup: self.cgroup.as_ref().map(AsFd::as_fd),
            exec_gate: Some(self.gate_read.as_fd()),
            confinement: spec.confinement.as_ref(),
            credentials: spec.credentials.as_ref(),
        }))
    }
}
