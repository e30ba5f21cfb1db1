//! What a child is to become: its specification and its descriptors, as the worker sends them to us or to a recruit.

use crate::message::{DIRECTORY_TARGET, MESSAGE_BYTES, NO_NUMBERS, PROGRAM_TARGET, Request};
use crate::spec::{SPEC_BYTES_MAX, Spec};
use crate::{Roles, Targets};
use outpost_sys::spawn::{Child, Directory, Program};
use outpost_sys::{Errno, Result, file};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Where the specification of a child is.
enum Specified {
    File(OwnedFd),
    Here(Vec<u8>),
}

/// What came with a request to start a child.
pub(crate) struct Order {
    spec: Specified,
    cgroup: Option<OwnedFd>,
    pub(crate) held: Vec<(u8, OwnedFd)>,
    targets: Targets,
    theirs: Vec<OwnedFd>,
}

impl Order {
    pub(crate) fn new(cgroup: bool, held: Roles, targets: Targets, fds: Vec<OwnedFd>) -> Result<Order> {
        if fds.len() != 1 + usize::from(cgroup) + held.len() + targets.len() {
            return Err(Errno::MFILE);
        }
        let mut fds = fds.into_iter();
        let spec = fds.next().ok_or(Errno::MFILE)?;
        let cgroup = if cgroup { fds.next() } else { None };
        let held = held.iter().zip(fds.by_ref()).collect();
        Ok(Order { spec: Specified::File(spec), cgroup, held, targets, theirs: fds.collect() })
    }

    /// What a recruit is told. A short specification stands behind the message.
    pub(crate) fn of_recruit(mut message: Vec<u8>, fds: Vec<OwnedFd>) -> Result<Order> {
        let spec = message.split_off(MESSAGE_BYTES.min(message.len()));
        match Request::decode(&message) {
            Some(Request::Spawn { cgroup, held, targets, .. }) if spec.is_empty() => {
                Order::new(cgroup, held, targets, fds)
            }
            Some(Request::Spawn { targets, .. }) if fds.len() == targets.len() => Ok(Order {
                spec: Specified::Here(spec),
                cgroup: None,
                held: Vec::new(),
                targets,
                theirs: fds,
            }),
            Some(Request::Spawn { .. }) => Err(Errno::MFILE),
            _ => Err(Errno::PROTO),
        }
    }

    /// What is given under this number.
    pub(crate) fn given(&self, wanted: u8) -> Option<BorrowedFd<'_>> {
        let mut given = self.theirs.iter().zip(self.targets.iter());
        given.find(|(_, target)| *target == wanted).map(|(fd, _)| fd.as_fd())
    }

    /// Calls `make` with the child that is described.
    pub(crate) fn with_child<R>(
        &self,
        gate: Option<BorrowedFd<'_>>,
        make: impl FnOnce(&Child<'_>) -> R,
    ) -> Result<R> {
        let read;
        let bytes = match &self.spec {
            Specified::Here(bytes) => bytes,
            Specified::File(file) => {
                // Far more than the kernel takes for arguments and environment.
                read = file::read_whole(file, SPEC_BYTES_MAX).map_err(|errno| match errno {
                    Errno::FBIG => Errno::TOOBIG,
                    other => other,
                })?;
                &read
            }
        };
        let spec = Spec::decode(bytes).ok_or(Errno::INVAL)?;
        let descriptors: Vec<_> = self
            .theirs
            .iter()
            .map(AsFd::as_fd)
            .zip(self.targets.iter())
            .filter(|(_, target)| !NO_NUMBERS.contains(target))
            .map(|(fd, target)| (fd, i32::from(target)))
            .collect();
        let directory = self.given(DIRECTORY_TARGET).map(Directory::Open);
        Ok(make(&Child {
            program: self.given(PROGRAM_TARGET).map_or(Program::Path(spec.program), Program::Open),
            arguments: &spec.arguments,
            environment: &spec.environment,
            directory: directory.or(spec.directory.map(Directory::Path)),
            standing: spec.standing,
            descriptors: &descriptors,
            limits: &spec.limits,
            umask: spec.umask,
            oom_score: spec.oom_score,
            cgroup: self.cgroup.as_ref().map(AsFd::as_fd),
            gate,
            confinement: spec.confinement.as_ref(),
            credentials: spec.credentials.as_ref(),
        }))
    }
}
