//! Sandbox programs: what a child does to itself between clone and exec, compiled to bytes.
//!
//! A [`Program`] is a flat list of operations with all their arguments. The sandbox planner compiles it with
//! a [`Builder`]. It is sent as bytes. The child interprets it with system calls only, because the child is a
//! fork of one thread of a process that may have others. [`Program::from_bytes`] checks everything that the
//! interpreter relies on.
//!
//! Three processes take part, in the order of the operations:
//! - The *outer* process is the one that the parent spawned. It holds placeholders, waits, and exits as the
//!   command exited.
//! - *Init*, from [`Builder::fork_init`] on, is the first process of a pid namespace. It builds the view and
//!   the Landlock ruleset, and reaps. Its exit kills everything in the namespace.
//! - The *command*, from [`Builder::begin_command`] on, drops its rights and executes. It is forked together
//!   with init and shares its descriptor table. Its operations before [`Builder::await_view`] run
//!   concurrently with init.
//!
//! Without `fork_init` and `begin_command`, the child itself executes all operations.

mod builder;
mod calls;
mod run;
mod watch;

pub use builder::{Builder, Register, attr};
pub(crate) use calls::{join_new_keyring, set_capabilities};
pub(crate) use run::{Run, run};

use crate::{Errno, Result, fault};
use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The maximum size of a program: enough for some thousand masks with long paths.
pub const PROGRAM_BYTES_MAX: usize = 6 * 1024 * 1024;

/// The number of registers, which hold descriptors.
pub const REGISTERS: usize = 224;

/// The maximum number of placeholders that the outer process holds.
pub const PLACEHOLDERS_MAX: usize = 128;

/// The mode of a placeholder: a directory that was created only to be mounted upon. The mode is unusual, so
/// that no other directory has it by chance.
pub const PLACEHOLDER_MODE: u32 = 0o1555;

/// Whether a directory has that mode, apart from bits that a umask has cleared.
pub fn is_placeholder_mode(mode: u32) -> bool {
    mode & 0o7222 == PLACEHOLDER_MODE & 0o7222
}

/// Removes a placeholder if the name still resolves to it and it is empty.
pub fn remove_placeholder(parent: BorrowedFd<'_>, name: &CStr, opened: BorrowedFd<'_>) -> Result<()> {
    fault::failpoint()?;
    calls::remove_placeholder(parent, name, opened).map_err(Errno::from_raw_os_error)
}

/// Filters the system calls of this thread and its descendants, by seccomp instructions of eight bytes each.
/// Without CAP_SYS_ADMIN, the kernel requires no_new_privs first; a process with CAP_SYS_ADMIN keeps set-uid
/// programs working.
pub fn filter_own_calls(instructions: &[u8]) -> Result<()> {
    fault::failpoint()?;
    let filtered = match calls::filter(instructions) {
        Err(libc::EACCES) => calls::set_no_new_privs().and_then(|()| calls::filter(instructions)),
        filtered => filtered,
    };
    filtered.map_err(Errno::from_raw_os_error)
}

/// The same, and returns the listener on which another process receives the intercepted calls.
#[cfg(feature = "intercept")]
pub(crate) fn intercept_own_calls(instructions: &[u8]) -> Result<std::os::fd::OwnedFd> {
    calls::set_no_new_privs()
        .and_then(|()| calls::filter_with_listener(instructions))
        .map_err(Errno::from_raw_os_error)
}

/// No register: paths are absolute.
const NO_REGISTER: u8 = u8::MAX;

const MAGIC: [u8; 4] = *b"OPC1";

/// The size of an operation without its texts.
const HEAD_BYTES: usize = 28;

macro_rules! codes {
    ($($code:ident)*) => {
        /// What an operation does. The number on the wire is the index in this list.
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
    HoldPlaceholder SetNs ForkInit WriteFile MakePrivate OpenTree SetAttributes MoveMount Mount OpenDirectory
    MakeDirectory MakeFile MakeLink PivotRoot Close BeginCommand NewKeyring LowerLimit SetChildLimits
    CreateRuleset AddRule AddTerminalRule EnforceRuleset NoNewPrivileges DropCapabilities InstallFilter Candidates
    BindOver BoundCapabilities AwaitView
);

impl Code {
    fn from_number(number: u8) -> Option<Code> {
        Code::ALL.iter().copied().find(|code| *code as u8 == number)
    }

    /// How many of its texts are C strings; the others are bytes.
    fn strings(self) -> usize {
        use Code::*;
        match self {
            Mount => 3,
            HoldPlaceholder | MakeLink | BindOver => 2,
            WriteFile | OpenTree | SetAttributes | MoveMount | OpenDirectory | MakeDirectory | MakeFile
            | AddRule => 1,
            _ => 0,
        }
    }

    /// Which process executes it: 0 the outer process, 1 init, 2 the command.
    fn belongs_to(self, phase: u8) -> bool {
        use Code::*;
        match self {
            HoldPlaceholder | SetNs | ForkInit => phase == 0,
            WriteFile | MakePrivate | OpenTree | SetAttributes | MoveMount | Mount | OpenDirectory
            | MakeDirectory | MakeFile | MakeLink | PivotRoot | Close | BeginCommand | BindOver => phase == 1,
            AwaitView => phase == 2,
            CreateRuleset | AddRule | AddTerminalRule => true,
            NewKeyring | LowerLimit | SetChildLimits | EnforceRuleset | NoNewPrivileges
            | BoundCapabilities | DropCapabilities | InstallFilter | Candidates => phase != 1,
        }
    }
}

/// A flag of `AddRule`: a missing path is not an error.
const MISSING_OK: u32 = 1;

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

    /// A text that `is_sound` has verified to be a C string.
    fn string(&self, index: usize) -> &'a CStr {
        CStr::from_bytes_with_nul(self.text(index)).unwrap_or_default()
    }
}

/// What a spawn needs for a sandbox: the program, and descriptors with their numbers in the child. The command does
/// not inherit them.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub program: Program,
    pub descriptors: Vec<(Arc<OwnedFd>, u8)>,
}

/// A checked program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program(Vec<u8>);

impl Program {
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// `None` for bytes that are not a valid program.
    pub fn from_bytes(bytes: &[u8]) -> Option<Program> {
        if bytes.len() > PROGRAM_BYTES_MAX {
            return None;
        }
        let mut rest = bytes.strip_prefix(&MAGIC)?;
        let (mut phase, mut placeholders, mut last, mut needs_view) = (0, 0, false, false);
        while !rest.is_empty() {
            let (operation, after) = split(rest)?;
            rest = after;
            placeholders += usize::from(operation.code == Code::HoldPlaceholder);
            // `Candidates` must come last: no operation may follow the lookup of what is executed.
            if last
                || !operation.code.belongs_to(phase)
                || !is_sound(&operation)
                || placeholders > PLACEHOLDERS_MAX
            {
                return None;
            }
            match operation.code {
                Code::ForkInit => phase = 1,
                Code::BeginCommand => (phase, needs_view) = (2, true),
                Code::AwaitView if needs_view => needs_view = false,
                Code::AwaitView => return None,
                Code::Candidates => last = true,
                _ => {}
            }
        }
        // Init needs a command to wait for, and a command must wait for its view.
        (phase != 1 && !needs_view).then(|| Program(bytes.to_vec()))
    }

    /// The same program with a list of paths. Inside the sandbox it executes the first one that can be
    /// executed, as execvp(3) does, in place of the child's own program.
    pub fn with_candidates(&self, paths: &[&CStr]) -> Option<Program> {
        let texts: Vec<u8> = paths.iter().flat_map(|path| path.to_bytes_with_nul()).copied().collect();
        let mut bytes = self.0.clone();
        builder::append(&mut bytes, Code::Candidates, (NO_REGISTER, NO_REGISTER), 0, 0, [&texts, &[], &[]]);
        // The other operations were checked when the program was made.
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

    /// An operation and its paths, for people: `OpenTree /home/user`.
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

/// The first operation of the bytes, and the bytes after it.
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

/// Whether the interpreter can execute the operation without further checks.
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
        Code::ForkInit => {
            operation.flags & !NAMESPACES == 0 && operation.flags & libc::CLONE_NEWPID as u32 != 0
        }
        Code::InstallFilter => {
            let len = operation.text(0).len();
            len > 0 && len.is_multiple_of(8) && len / 8 <= 4096
        }
        Code::CreateRuleset => operation.text(0).len() == 24,
        Code::Candidates => operation.text(0).last() == Some(&0),
        Code::SetNs => operation.value <= 64,
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
