//! The plan of a start: a copy of everything that a child reads between clone and exec.

use super::{Child, DESCRIPTORS_MAX, Executable, ResourceLimit, SessionKind, WorkingDirectory};
use crate::confine;
use crate::credentials::Credentials;
use std::ffi::{CStr, c_char};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;

/// C strings in one block, and a null-terminated array of pointers to them, as execve(2) takes it.
pub(super) struct Strings {
    _text: Vec<u8>,
    pointers: Vec<*const c_char>,
}

// SAFETY: the pointers lead into `_text`, which this value owns and never changes.
unsafe impl Send for Strings {}

impl Strings {
    pub(super) fn new(strings: &[&CStr]) -> Strings {
        let mut text = Vec::with_capacity(strings.iter().map(|string| string.count_bytes() + 1).sum());
        strings.iter().for_each(|string| text.extend_from_slice(string.to_bytes_with_nul()));
        let mut next: *const u8 = text.as_ptr();
        let mut pointers = Vec::with_capacity(strings.len() + 1);
        for string in strings {
            pointers.push(next.cast());
            next = next.wrapping_add(string.count_bytes() + 1);
        }
        pointers.push(ptr::null());
        Strings { _text: text, pointers }
    }

    /// Points to the first pointer.
    pub(super) fn as_ptr(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }

    /// The first string, or null.
    pub(super) fn first(&self) -> *const c_char {
        self.pointers.first().copied().unwrap_or(ptr::null())
    }
}

/// Descriptors of the parent that the child uses itself and does not pass to its program.
#[derive(Clone, Copy)]
pub(super) struct OwnFds {
    pub(super) status: RawFd,
    pub(super) program: Option<RawFd>,
    pub(super) exec_gate: Option<RawFd>,
    pub(super) directory: Option<RawFd>,
}

/// All that the child reads on its way to exec, but for what a child that shares our memory does not have.
pub(super) struct Plan {
    /// Empty when the program is an open file.
    pub(super) program: Strings,
    pub(super) arguments: Strings,
    pub(super) environment: Strings,
    /// Empty when there is none or it is an open directory.
    pub(super) directory: Strings,
    pub(super) session: SessionKind,
    pub(super) descriptors: Vec<(RawFd, RawFd)>,
    pub(super) own: OwnFds,
    pub(super) limits: Vec<ResourceLimit>,
    pub(super) umask: Option<u32>,
    pub(super) oom_score: Option<i32>,
    pub(super) cgroup: Option<RawFd>,
    /// The lowest number above all that the program gets.
    pub(super) above: RawFd,
}

/// What only a child with memory of its own can do to itself.
#[derive(Clone, Copy, Default)]
pub(super) struct Privileges<'a> {
    pub(super) confinement: Option<&'a confine::Program>,
    pub(super) credentials: Option<&'a Credentials>,
}

impl Plan {
    /// For a child that was checked. `status` is the child's end of its status pipe.
    pub(super) fn new(child: &Child<'_>, status: RawFd) -> Plan {
        let (program, program_fd) = match child.program {
            Executable::Path(path) => (Strings::new(&[path]), None),
            Executable::Open(file) => (Strings::new(&[]), Some(file.as_raw_fd())),
        };
        let (directory, directory_fd) = match child.directory {
            Some(WorkingDirectory::Path(path)) => (Strings::new(&[path]), None),
            Some(WorkingDirectory::Open(directory)) => (Strings::new(&[]), Some(directory.as_raw_fd())),
            None => (Strings::new(&[]), None),
        };
        let descriptors = child.descriptors.iter().take(DESCRIPTORS_MAX);
        let exec_gate = child.exec_gate.map(|gate| gate.as_raw_fd());
        Plan {
            program,
            arguments: Strings::new(child.arguments),
            environment: Strings::new(child.environment),
            directory,
            session: child.session,
            descriptors: descriptors.map(|(fd, target)| (fd.as_raw_fd(), *target)).collect(),
            own: OwnFds { status, program: program_fd, exec_gate, directory: directory_fd },
            limits: child.limits.to_vec(),
            umask: child.umask,
            oom_score: child.oom_score,
            cgroup: child.cgroup.map(|cgroup| cgroup.as_raw_fd()),
            above: child.descriptors.iter().map(|(_, target)| *target).max().unwrap_or(2) + 1,
        }
    }
}
