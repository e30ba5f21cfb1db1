//! A confinement as bytes: what a child does to itself between clone and exec so that it can do little afterwards.
//!
//! A [`Program`] is a flat list of operations with everything they need in it. Whoever decides compiles it with a
//! [`Builder`]; it travels as bytes; the child interprets it with nothing but system calls, since it is a copy of one
//! thread of a process that may have others. [`Program::from_bytes`] checks everything the interpreter relies on.
//!
//! Three processes take part, in the order of the operations:
//! - the *outer* one, which the parent knows. It holds leases and waits; it ends as the command ended.
//! - *init*, from [`Builder::enter`] on: first process of a pid namespace. It builds the view and the rules about it, reaps,
//!   and its end is the end of everything in the namespace.
//! - the *command*, from [`Builder::command`] on: it takes its rights away and executes. It is started together with init
//!   and shares its descriptors: what it does before [`Builder::view`] it does while init is at work.
//!
//! A program without `enter` and `command` is carried out by the child itself.

mod builder;
mod calls;
mod run;
mod watch;

pub use builder::{Builder, Register, attr};
pub(crate) use calls::{join_new_keyring, set_capabilities};
pub(crate) use run::{Run, run};

use crate::{Errno, Result, fault};
use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The most bytes a program may have: some thousand masks with long paths.
pub const PROGRAM_BYTES_MAX: usize = 6 * 1024 * 1024;

/// Descriptors that operations can keep at one time.
pub const REGISTERS: usize = 224;

/// The most leases the outer process can hold.
pub const LEASES_MAX: usize = 128;

/// The mode of a directory that was made only to be mounted upon: nobody makes such a one by chance.
pub const LEASE_MODE: u32 = 0o1555;

/// Whether a directory has that mode, or what a creation mask has left of it.
pub fn is_lease_mode(mode: u32) -> bool {
    mode & 0o7222 == LEASE_MODE & 0o7222
}

/// Removes a directory that was made to be mounted upon, if the name still leads to it and nothing is in it.
pub fn remove_lease(parent: BorrowedFd<'_>, name: &CStr, opened: BorrowedFd<'_>) -> Result<()> {
    fault::gate()?;
    calls::remove_if_same(parent.as_raw_fd(), name, opened.as_raw_fd()).map_err(Errno::from_raw_os_error)
}

/// Filters the system calls of this thread and of all that it starts, by seccomp instructions of eight bytes each. The
/// kernel lets a process without CAP_SYS_ADMIN do so only if it gives up privileges of programs to come (set-uid); a
/// process with it keeps them.
pub fn filter_own_calls(instructions: &[u8]) -> Result<()> {
    fault::gate()?;
    let filtered = match calls::filter(instructions) {
        Err(libc::EACCES) => {
            calls::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0).and_then(|()| calls::filter(instructions))
        }
        filtered => filtered,
    };
    filtered.map_err(Errno::from_raw_os_error)
}

/// The same, and returns the descriptor by which another process answers the calls that the filter hands over.
#[cfg(feature = "intercept")]
pub(crate) fn hand_over_own_calls(instructions: &[u8]) -> Result<std::os::fd::OwnedFd> {
    calls::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0)
        .and_then(|()| calls::filter_with_listener(instructions))
        .map_err(Errno::from_raw_os_error)
}

/// A register that stands for none: paths are then taken from the root.
const NO_REGISTER: u8 = u8::MAX;

/// The flag of a command that says itself when it waits for its view. One without, which workers of before an upgrade
/// send, waits at once.
const AHEAD: u32 = 1;

const MAGIC: [u8; 4] = *b"OPC1";

/// The bytes in front of an operation's texts.
const HEAD_BYTES: usize = 28;

macro_rules! codes {
    ($($code:ident)*) => {
        /// What an operation does, numbered in this order.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        enum Code {
            $($code,)*
        }

        impl Code {
            const ALL: &[Code] = &[$(Code::$code),*];
        }
    };
}
codes!(
    Lease Join Enter Write Private Take Attributes Place New Open MakeDirectory MakeFile MakeLink Pivot
    Close Command Keyring Limit ChildLimits Ruleset Rule TerminalRule Enforce NoNewPrivileges DropCapabilities Filter Candidates
    Cover Bounding View
);

impl Code {
    fn from_number(number: u8) -> Option<Code> {
        Code::ALL.iter().copied().find(|code| *code as u8 == number)
    }

    /// How many of its texts are C strings; the others are bytes.
    fn strings(self) -> usize {
        use Code::*;
        match self {
            New => 3,
            Lease | MakeLink | Cover => 2,
            Write | Take | Attributes | Place | Open | MakeDirectory | MakeFile | Rule => 1,
            _ => 0,
        }
    }

    /// Which process carries it out: 0 the outer one, 1 init, 2 the command.
    fn belongs_to(self, phase: u8) -> bool {
        use Code::*;
        match self {
            Lease | Join | Enter => phase == 0,
            Write | Private | Take | Attributes | Place | New | Open | MakeDirectory | MakeFile
            | MakeLink | Pivot | Close | Command | Cover => phase == 1,
            View => phase == 2,
            Ruleset | Rule | TerminalRule => true,
            Keyring | Limit | ChildLimits | Enforce | NoNewPrivileges | Bounding | DropCapabilities
            | Filter | Candidates => phase != 1,
        }
    }
}

/// A flag of `Rule`: a path that is not there is none to allow.
const MAY_BE_GONE: u32 = 1;

/// One operation, borrowed from a program's bytes.
#[derive(Clone, Copy)]
struct Operation<'a> {
    code: Code,
    register: u8,
    other: u8,
    flags: u32,
    value: u64,
    texts: [&'a [u8]; 3],
}

impl<'a> Operation<'a> {
    fn text(&self, index: usize) -> &'a [u8] {
        self.texts.get(index).copied().unwrap_or_default()
    }

    /// A text that the check has found to be a C string.
    fn string(&self, index: usize) -> &'a CStr {
        CStr::from_bytes_with_nul(self.text(index)).unwrap_or_default()
    }
}

/// A program that the interpreter can rely on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program(Vec<u8>);

impl Program {
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// `None` for bytes that are no program.
    pub fn from_bytes(bytes: &[u8]) -> Option<Program> {
        if bytes.len() > PROGRAM_BYTES_MAX {
            return None;
        }
        let mut rest = bytes.strip_prefix(&MAGIC)?;
        let (mut phase, mut leases, mut last, mut is_ahead) = (0, 0, false, false);
        while !rest.is_empty() {
            let (operation, after) = split(rest)?;
            rest = after;
            leases += usize::from(operation.code == Code::Lease);
            // What is executed must be the last word: nothing may follow that undoes a check.
            if last || !operation.code.belongs_to(phase) || !is_sound(&operation) || leases > LEASES_MAX {
                return None;
            }
            match operation.code {
                Code::Enter => phase = 1,
                Code::Command => (phase, is_ahead) = (2, operation.flags == AHEAD),
                Code::View if is_ahead => is_ahead = false,
                Code::View => return None,
                Code::Candidates => last = true,
                _ => {}
            }
        }
        // Init alone would have nothing to wait for, and a command that does not wait for its view would have another.
        (phase != 1 && !is_ahead).then(|| Program(bytes.to_vec()))
    }

    /// The same program, which then executes the first of these paths that can be, as execvp(3) does, in place of the
    /// child's own program: the names are looked up inside the confinement.
    pub fn with_candidates(&self, paths: &[&CStr]) -> Option<Program> {
        let texts: Vec<u8> = paths.iter().flat_map(|path| path.to_bytes_with_nul()).copied().collect();
        let mut bytes = self.0.clone();
        builder::append(&mut bytes, Code::Candidates, (NO_REGISTER, NO_REGISTER), 0, 0, [&texts, &[], &[]]);
        // All before them has been checked.
        let has_some = self.operations().any(|operation| operation.code == Code::Candidates);
        (!has_some && !texts.is_empty() && bytes.len() <= PROGRAM_BYTES_MAX).then_some(Program(bytes))
    }

    fn operations(&self) -> impl Iterator<Item = Operation<'_>> {
        let mut rest = self.0.get(MAGIC.len()..).unwrap_or_default();
        std::iter::from_fn(move || {
            let (operation, after) = split(rest)?;
            rest = after;
            Some(operation)
        })
    }

    /// What an operation is and what it is about, for people: `Take /home/user`.
    pub fn describe(&self, index: usize) -> Option<String> {
        let operation = self.operations().nth(index)?;
        let texts = (0..operation.code.strings()).map(|index| operation.string(index).to_string_lossy());
        let texts: Vec<_> = texts.filter(|text| !text.is_empty()).collect();
        Some(format!("{:?} {}", operation.code, texts.join(" ")).trim_end().to_owned())
    }
}

impl std::fmt::Display for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lines = (0..).map_while(|index| self.describe(index));
        lines.enumerate().try_for_each(|(index, line)| writeln!(f, "{index:4} {line}"))
    }
}

/// The first operation of the bytes and what follows it.
fn split(bytes: &[u8]) -> Option<(Operation<'_>, &[u8])> {
    let (head, mut rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    let [code, register, other, _, tail @ ..] = head;
    let (flags, tail) = tail.split_first_chunk()?;
    let (value, tail) = tail.split_first_chunk()?;
    let mut texts: [&[u8]; 3] = [&[]; 3];
    for (text, len) in texts.iter_mut().zip(tail.chunks_exact(4)) {
        let len = usize::try_from(u32::from_le_bytes(len.try_into().ok()?)).ok()?;
        (*text, rest) = rest.split_at_checked(len)?;
    }
    let operation = Operation {
        code: Code::from_number(*code)?,
        register: *register,
        other: *other,
        flags: u32::from_le_bytes(*flags),
        value: u64::from_le_bytes(*value),
        texts,
    };
    Some((operation, rest))
}

/// Whether the interpreter can carry it out without looking again.
fn is_sound(operation: &Operation<'_>) -> bool {
    const NAMESPACES: u32 = (libc::CLONE_NEWNS
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWNET) as u32;
    let is_register = |number: u8| number == NO_REGISTER || usize::from(number) < REGISTERS;
    let is_string = |text: &&[u8]| CStr::from_bytes_with_nul(text).is_ok();
    let strings = operation.code.strings();
    let shape = match operation.code {
        Code::Enter => operation.flags & !NAMESPACES == 0 && operation.flags & libc::CLONE_NEWPID as u32 != 0,
        Code::Filter => {
            let len = operation.text(0).len();
            len > 0 && len.is_multiple_of(8) && len / 8 <= 4096
        }
        Code::Ruleset => operation.text(0).len() == 24,
        Code::Candidates => operation.text(0).last() == Some(&0),
        Code::Join => operation.value <= 64,
        _ => true,
    };
    shape
        && is_register(operation.register)
        && is_register(operation.other)
        && operation.texts.iter().take(strings).all(is_string)
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests;
